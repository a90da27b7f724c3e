"`learn.opt` and `learn.opts` can be set between two fits"
import pytest, torch

from common import make_learner, make_model, plain_loop, same, sgd, shuffled, stop_at, weights
from trainer_nb.all import LambdaHook


def test_an_optimizer_that_was_set_trains():
    torch.manual_seed(0)
    learn = make_learner(optim=torch.optim.Adam)
    assert isinstance(learn.opt, torch.optim.Adam) and learn.opts == {'': learn.opt}
    learn.opt = opt = sgd(learn.model.parameters())
    assert learn.opt is opt and learn.opts == {'': opt}
    learn.fit(2)
    torch.manual_seed(0)
    model, train_dl = make_model(), shuffled()
    losses = plain_loop(model, sgd(model.parameters()), train_dl, 2)
    assert learn.history.steps['train_loss'] == losses and same(weights(learn.model), weights(model))

def test_columns_of_rates_and_files_follow(tmp_path):
    "From one fit to the next, and where a group is added in mid-epoch"
    learn = make_learner(optim=torch.optim.AdamW, lr=.01)
    learn.fit(1)
    learn.opt = torch.optim.SGD(learn.model[3].parameters(), lr=.1)
    def unfreeze(learn):
        if learn.training and learn.state.optimizer_step == 8:
            learn.opt.add_param_group({'params': learn.model[0].parameters(), 'lr': .02})
    learn.fit(1, hooks=[LambdaHook(after_step=unfreeze)])
    learn.opt = torch.optim.RMSprop
    learn.fit(1)
    steps, epochs = learn.history.steps, learn.history.epochs
    assert epochs['lr'] == [.01, .1, .01] and steps['lr'] == [.01]*5 + [.1]*5 + [.01]*5
    assert epochs['lr_1'][1] == .02 and steps['lr_1'][8:10] == [.02]*2 and all(o != o for o in steps['lr_1'][:8])
    learn.save(tmp_path/'a')
    other = make_learner(optim=torch.optim.RMSprop)
    other.load(tmp_path/'a')
    assert same(*[[s['square_avg'] for s in o.opt.state.values()] for o in (learn, other)])
    with pytest.raises(ValueError, match='different optimizer'): make_learner().load(tmp_path/'a')

def test_wrong_ones_are_refused_and_nothing_changes():
    learn = make_learner()
    before = learn.opt
    with pytest.raises(ValueError, match='not parameters of the model'): learn.opt = sgd(make_model().parameters())
    with pytest.raises(ValueError, match='empty dict'): learn.opts = {}
    def swap(learn): learn.opt = sgd(learn.model.parameters())
    with pytest.raises(RuntimeError, match='between two fits'): learn.fit(1, hooks=[LambdaHook(after_step=swap)])
    def swap_model(learn, nxt): learn.model = make_model()
    with pytest.raises(RuntimeError, match='def model_for'): learn.fit(1, hooks=[LambdaHook(do_step=swap_model)])
    assert learn.opt is before and learn.opts == {'': before}
    learn.model = make_model()
    with pytest.raises(ValueError, match='not parameters of the model'): learn.fit(1)

def test_after_a_stop():
    "What was stopped inside an epoch was a fit of the old optimizer; a new fit takes the new one"
    learn = make_learner()
    learn.fit(2, hooks=[stop_at(3)])
    learn.opt = sgd
    with pytest.raises(RuntimeError, match='optimizer was replaced'): learn.resume()
    learn.fit(1)
    assert learn.history.steps['lr'] == [.001]*3 + [.1]*5
