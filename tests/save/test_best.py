"`load_best`, `fit(keep_best=True)` and `EarlyStopping`: the weights of the best validation, and nothing else"
import pytest, torch, torch.nn.functional as F
from torch import nn

from common import LambdaHook, equal, make_learner, problem, same, stop_when, weights
from trainer_nb.all import EMA, Checkpoint, EarlyStopping, OneCycle, accuracy

X, Y = problem(60)

def learner(*hooks, seed=0, **kwargs):
    torch.manual_seed(seed)
    return make_learner(None, (X[:40], Y[:40]), (X[40:], Y[40:]), bs=10, seed=1, hooks=[*hooks], lr=.05, **kwargs)

def kept_weights(into): return LambdaHook(after_epoch=lambda learn: into.append(weights(learn.model)))

@pytest.mark.parametrize('mode, best', [('max', [2, 3]), ('min', [1])])
def test_load_best_loads_weights_alone(tmp_path, mode, best):
    "also in a learner that knows no mode; of two equal ones that with the lower loss"
    def score(pred, targ): return torch.tensor([.5, .2, .9, .9, .4, .3][learn.state.epoch])
    each, hook = [], Checkpoint(tmp_path, monitor='valid_score', mode=mode, keep=1)
    learn = learner(kept_weights(each), OneCycle(), hook, metrics=[score])
    learn.fit(5)
    def rest(): return learn.history.epochs, learn.opt.state_dict(), learn.lrs(), learn.state.epoch
    before = rest()
    learn.load_best()
    best = min(best, key=learn.history.epochs['valid_loss'].__getitem__)
    assert same(weights(learn.model), each[best]) and not same(each[best], each[4])
    assert learn.history.latest.kept['epoch'] == learn.history.best() == best and equal(before, rest())
    (other := learner(seed=5)).load_best(tmp_path)
    assert same(weights(other.model), each[best]) and other.state.epoch == 0
    learn.fit(1)        # trains on from there
    assert learn.state.epoch == 6

def test_the_average_is_loaded_too_and_errors_change_nothing(tmp_path):
    learn = learner(EMA(.5), Checkpoint(tmp_path/'ema'))
    learn.fit(4)
    learn.load_best()
    assert learn.validate()['valid_loss'] == pytest.approx(min(learn.history.epochs['valid_loss']), abs=1e-6)
    (other := learner(EMA(.5), seed=5)).load_best(tmp_path/'ema')
    assert torch.equal(other.predict(X), learn.predict(X))
    for refused, folder, words in [(learner(), None, 'keep_best=True'), (learner(), tmp_path/'ema', 'average'),
                                   (make_learner(nn.Linear(4, 3)), tmp_path/'ema', 'different model')]:
        old = weights(refused.model)
        with pytest.raises(ValueError, match=words): refused.load_best(folder)
        assert same(weights(refused.model), old)

@pytest.mark.parametrize('monitor', [True, 'valid_accuracy'])
def test_keep_best(monitor, capsys):
    "Training is that without it; a tie of accuracies goes to the lower loss"
    each = []
    learn, plain = learner(kept_weights(each), metrics=[accuracy]), learner(LambdaHook(), metrics=[accuracy])
    learn.fit(6, keep_best=monitor)
    plain.fit(6)
    rows = learn.history.epoch_rows
    key = (lambda o: o['valid_loss']) if monitor is True else lambda o: (-o['valid_accuracy'], o['valid_loss'])
    best = min(rows, key=key)['epoch']
    assert same(weights(learn.model), each[best]) and len(rows) == 6 and learn.history.marked() == best
    assert f'best in epoch {best}' in capsys.readouterr().out and len(learn.hooks) == len(plain.hooks)
    assert plain.history.epochs['train_loss'] == learn.history.epochs['train_loss']

def falls_apart(batch, learn):
    "A step that is good for ten steps, then worse and worse"
    loss = F.mse_loss(learn.model(batch[0]), batch[1])
    return {'loss': -loss if learn.training and learn.state.optimizer_step >= 10 else loss}

def falling(*hooks, n=40):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    data = x, x.sum(1, keepdim=True)
    return make_learner(nn.Linear(3, 1), [data]*n, data, train_step=falls_apart, loss_fn=None, optim=torch.optim.SGD,
                        lr=.1, hooks=hooks)

@pytest.mark.parametrize('ends', ['done', 'error', 'resumed', 'elsewhere'])
def test_each_validation_is_judged(ends, tmp_path, capsys):
    "Eight in one epoch, of which the second is the best; those that a hook makes do not count"
    each = []
    def note(learn): each.append((learn.history.valid_rows[-1]['valid_loss'], weights(learn.own_model)))
    def look(learn):
        if learn.training and learn.state.batch_idx % 10 == 3: learn.validate([(torch.zeros(1, 3), torch.zeros(1, 1))])
    def interfere(learn):
        if not learn.training or learn.state.batch_idx != 32 or ends == 'done': return
        if ends == 'error': raise ArithmeticError
        learn.stop()
    hooks, kwargs = [LambdaHook(after_valid=note), LambdaHook(after_step=look)], {'valid_every': 5, 'keep_best': True}
    learn = falling(*hooks, Checkpoint(tmp_path), LambdaHook(after_step=interfere))
    try: learn.fit(1, **kwargs)
    except ArithmeticError: pass
    if ends == 'resumed': learn.resume()
    if ends == 'elsewhere': (learn := falling(*hooks, Checkpoint(tmp_path))).fit(1, **kwargs, resume=True)
    loss, best = min(each, key=lambda o: o[0])
    assert same(weights(learn.model), best) and learn.validate()['valid_loss'] == loss < each[-1][0]/1000
    h = learn.history
    assert len(each) == (6 if ends == 'error' else 8) and h.latest.kept['valid_loss'] == loss
    assert 'best in epoch 0, after batch 10' in capsys.readouterr().out
    learn.load_best()
    assert same(weights(learn.model), best)     # of its own file
    if ends == 'error': return
    # no row of the table has its value
    assert h.marked() is None and '*' not in repr(h) and '<b>' not in h.html()
    assert repr(h).endswith('weights of epoch 0, after batch 10')
    assert '(epoch 0, after batch 10, the weights' in h.outcome()
    learn.remove_hook('Checkpoint')
    learn.fit(1, hooks=[stop_when(lambda learn: learn.training)])
    assert 'restored' not in repr(h)     # it has trained on

@pytest.mark.parametrize('there, here, epochs', [(2, 2, 3), (9, 2, 5), (2, 6, 7)])
def test_patience_counts_from_the_best_validation(there, here, epochs, tmp_path, capsys):
    """Also in mid-epoch: all of the first are better than the later ones. A fit that resumes has its own patience;
    the checkpoint is that of epoch 4, or of an early end"""
    stop = EarlyStopping(here)
    falling(EarlyStopping(there), Checkpoint(tmp_path), n=12).fit(5, valid_every=5)
    learn = falling(stop, Checkpoint(tmp_path), n=12)
    learn.fit(50, valid_every=5, resume=True)
    assert len(learn.history) == epochs and stop.is_over and stop.best_row['batch'] == 10
    said = capsys.readouterr().out.splitlines()[-1]
    assert f'after epoch {epochs - 1} of 50: valid_loss' in said and f'(patience {here})' in said

def test_which_checkpoints_are_rated(tmp_path):
    "A column of epochs alone rates none of the validations inside; a validation of earlier weights rates no epoch"
    of_epochs = Checkpoint(tmp_path/'a', monitor='train_loss', every=7, keep=99, mode='max')
    learn, of_valids = falling(of_epochs), Checkpoint(tmp_path/'b', keep=99)
    learn.fit(2, valid_every=5)
    rated = [(o['epoch'], o['metric']) for o in of_epochs.folder.manifests() if o['metric'] is not None]
    assert rated == [*enumerate(learn.history.epochs['train_loss'], 1)]
    falling(of_valids).fit(2, valid_every=15, valid_every_epochs=2)
    assert [o['metric'] is None for o in of_valids.folder.manifests() if not o['in_epoch']] == [True, False]
