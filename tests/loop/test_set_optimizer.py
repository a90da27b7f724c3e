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

def test_from_one_fit_to_the_next(tmp_path):
    "Columns of rates follow, and so do files"
    learn = make_learner(optim=lambda params: torch.optim.AdamW(params, lr=.01))
    learn.fit(1)
    groups = [{'params': learn.model[0].parameters(), 'lr': .2}, {'params': learn.model[3].parameters()}]
    learn.opt = torch.optim.SGD(groups, lr=.1)
    learn.fit(1)
    learn.opt = torch.optim.RMSprop
    learn.fit(1)
    steps, epochs = learn.history.steps, learn.history.epochs
    assert epochs['lr'] == [.01, .2, .01] and steps['lr'] == [.01]*5 + [.2]*5 + [.01]*5
    assert epochs['lr_1'][1] == .1 and steps['lr_1'][5:10] == [.1]*5
    learn.save(tmp_path/'a')
    other = make_learner(optim=torch.optim.RMSprop)
    other.load(tmp_path/'a')
    assert same(*[[s['square_avg'] for s in o.opt.state.values()] for o in (learn, other)])
    with pytest.raises(ValueError, match='different optimizer'): make_learner().load(tmp_path/'a')

def test_wrong_ones_are_refused_and_nothing_changes():
    learn = make_learner()
    before = learn.opt
    with pytest.raises(ValueError, match='not parameters of the model'): learn.opt = sgd(make_model().parameters())
    with pytest.raises(TypeError, match='optim is a str'): learn.opt = 'sgd'
    with pytest.raises(ValueError, match='empty dict'): learn.opts = {}
    def swap(learn): learn.opt = sgd(learn.model.parameters())
    with pytest.raises(RuntimeError, match='between two fits'): learn.fit(1, hooks=[LambdaHook(after_step=swap)])
    assert learn.opt is before and learn.opts == {'': before}
    learn.model = make_model()
    with pytest.raises(ValueError, match='not parameters of the model'): learn.fit(1)
    learn.opt = sgd
    learn.fit(1)

def test_after_a_stop():
    "What was stopped inside an epoch was a fit of the old optimizer; a new fit takes the new one"
    learn = make_learner()
    learn.fit(2, hooks=[stop_at(3)])
    learn.opt = sgd
    with pytest.raises(RuntimeError, match='optimizer was replaced'): learn.resume()
    learn.fit(1)
    assert learn.history.steps['lr'] == [.001]*3 + [.1]*5

def test_a_group_that_is_added_in_mid_epoch_has_its_rate_from_then_on():
    model = make_model()
    def unfreeze(learn):
        if learn.training and learn.state.optimizer_step == 3:
            learn.opt.add_param_group({'params': model[0].parameters(), 'lr': .02})
    learn = make_learner(model, optim=sgd(model[3].parameters()), hooks=[LambdaHook(after_step=unfreeze)])
    before = weights(model[0])
    learn.fit(2)
    lr = learn.history.steps['lr_1']
    assert all(o != o for o in lr[:3]) and lr[3:] == [.02]*7 and learn.history.epochs['lr_1'] == [.02, .02]
    assert learn.history.steps['lr'] == [.1]*10 and not same(weights(model[0]), before)
