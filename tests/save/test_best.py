"`load_best` and `fit(keep_best=True)`: the weights of the best epoch, and nothing else"
import re

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import LambdaHook, equal, make_learner, problem, same, weights
from trainer_nb.all import EMA, Checkpoint, EarlyStopping, OneCycle, accuracy
from trainer_nb.draw import Plot

X, Y = problem(60)
VALUES = [.5, .2, .9, .9, .4, .3]      # of the column, epoch by epoch

def learner(*hooks, seed=0, **kwargs):
    torch.manual_seed(seed)
    return make_learner(None, (X[:40], Y[:40]), (X[40:], Y[40:]), bs=10, seed=1, hooks=[*hooks], lr=.05, **kwargs)

def kept_weights(into): return LambdaHook(after_epoch=lambda learn: into.append(weights(learn.model)))

@pytest.mark.parametrize('mode,best', [('max', 2), ('min', 1)])
def test_the_best_by_what_was_monitored(tmp_path, mode, best):
    "also in a learner that knows no mode; the first of two equal ones, or that with the lower loss"
    def score(pred, targ): return torch.tensor(VALUES[learn.state.epoch])
    each, hook = [], Checkpoint(tmp_path, monitor='valid_score', mode=mode, keep=1)
    learn = learner(kept_weights(each), OneCycle(), hook, metrics=[score])
    learn.fit(5)
    before = learn.history.epochs, learn.opt.state_dict(), learn.lrs(), learn.state.epoch
    learn.load_best()
    assert learn.history.latest.kept['epoch'] == learn.history.best()
    if mode == 'max': best += learn.history.epochs['valid_loss'][3] < learn.history.epochs['valid_loss'][2]
    assert same(weights(learn.model), each[best]) and not same(each[best], each[4])
    assert equal(before, (learn.history.epochs, learn.opt.state_dict(), learn.lrs(), learn.state.epoch))
    assert learn.history.best() == best
    other = learner(seed=5)
    other.load_best(tmp_path)
    assert same(weights(other.model), each[best]) and other.state.epoch == 0
    learn.fit(1)        # trains on from there
    assert learn.state.epoch == 6

def test_the_average_comes_along(tmp_path):
    learn = learner(EMA(.5), Checkpoint(tmp_path))
    learn.fit(4)
    losses = learn.history.epochs['valid_loss']
    learn.load_best()
    assert learn.validate()['valid_loss'] == pytest.approx(min(losses), abs=1e-6)
    other = learner(EMA(.5), seed=5)
    other.load_best(tmp_path)
    assert torch.equal(other.predict(X), learn.predict(X))
    alone = learner(seed=5)
    old = weights(alone.model)
    with pytest.raises(ValueError, match='an average of the weights there or here'): alone.load_best(tmp_path)
    assert same(weights(alone.model), old)

def test_errors_leave_the_learner_alone(tmp_path):
    learn = learner(Checkpoint(tmp_path/'a', monitor=None))
    with pytest.raises(FileNotFoundError, match='no checkpoint'): learn.load_best()
    learn.fit(1)
    with pytest.raises(ValueError, match='no checkpoint has monitor=None'): learn.load_best()
    with pytest.raises(ValueError, match='fit.*keep_best=True'): learner().load_best()
    good = learner(Checkpoint(tmp_path/'b'))
    good.fit(1)
    other = make_learner(nn.Linear(4, 3))
    old = weights(other.model)
    with pytest.raises(ValueError, match='different model'): other.load_best(tmp_path/'b')
    assert same(weights(other.model), old)

@pytest.mark.parametrize('monitor', [True, 'valid_accuracy'])
def test_keep_best(monitor, capsys):
    each = []
    learn = learner(kept_weights(each), metrics=[accuracy])
    learn.fit(6, keep_best=monitor)
    rows = learn.history.epoch_rows
    key = (lambda o: o['valid_loss']) if monitor is True else lambda o: (-o['valid_accuracy'], o['valid_loss'])
    best = min(rows, key=key)['epoch']
    assert same(weights(learn.model), each[best]) and len(rows) == 6 and learn.history.best() == best
    assert f'was best in epoch {best}' in capsys.readouterr().out and not learn.get_hook('EarlyStopping', default=None)
    plain = learner(LambdaHook(), metrics=[accuracy])
    plain.fit(6)
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
        if learn.training and learn.state.batch_idx == 32:
            if ends == 'error': raise ArithmeticError
            if ends != 'done': learn.stop()
    hooks = LambdaHook(after_valid=note), LambdaHook(after_step=look)
    learn, stops = falling(*hooks, Checkpoint(tmp_path)), LambdaHook(after_step=interfere)
    learn.add_hook(stops)
    kwargs = {'max_steps': 40, 'valid_every': 5, 'keep_best': True}
    try: learn.fit(**kwargs)
    except ArithmeticError: pass
    if ends == 'resumed': learn.resume()
    if ends == 'elsewhere':
        learn = falling(*hooks, Checkpoint(tmp_path))
        learn.fit(**kwargs, resume=True)
    loss, best = min(each, key=lambda o: o[0])
    assert same(weights(learn.model), best) and learn.validate()['valid_loss'] == loss < each[-1][0]/1000
    assert len(each) == (6 if ends == 'error' else 8) and learn.history.latest.kept['valid_loss'] == loss
    assert 'was best in epoch 0, after batch 10' in capsys.readouterr().out

def test_what_is_shown_of_a_validation_in_mid_epoch():
    "No row of the table has its value: none is marked, and a line says which one it is"
    learn = falling()
    learn.fit(2, valid_every=5, keep_best=True)
    h = learn.history
    assert h.marked() is None and '*' not in repr(h) and h.epochs['valid_loss'][0] > 1000*h.latest.kept['valid_loss']
    assert repr(h).endswith('restored: the weights of epoch 0, after batch 10') and '<b>' not in h.html()
    assert re.search(r'best valid_loss 0.04\d* in epoch 0, after batch 10, whose weights learn has',
                     learn.history.outcome())
    assert 'best' not in Plot().chart(h.plot_data()).svg()
    learn.fit(1, hooks=[LambdaHook(after_step=lambda learn: learn.stop())])
    assert 'restored' not in repr(h)     # it has trained on
    learn = falling()
    learn.fit(2, keep_best=True)
    assert learn.history.marked() == learn.history.best() == 0 and '* 0' in repr(learn.history)

def test_an_epoch_is_as_good_as_its_best_validation():
    "The first epoch ends far above its best; all others are worse, so patience counts from there"
    stop = EarlyStopping(3)
    learn = falling(stop, n=12)
    learn.fit(20, valid_every=5)
    assert stop.is_over and len(learn.history) == 4 and stop.best_row['batch'] == 10 and stop.n_waited == 3

@pytest.mark.parametrize('there, here, epochs', [(2, 2, 3), (9, 2, 5), (2, 6, 7)])
def test_the_patience_of_the_fit_that_resumes_counts(there, here, epochs, tmp_path, capsys):
    "The best epoch is the first; the checkpoint is that of epoch 4, or of an early end"
    def learner(patience): return falling(EarlyStopping(patience), Checkpoint(tmp_path), n=12)
    learner(there).fit(5)
    capsys.readouterr()
    (learn := learner(here)).fit(50, resume=True)
    words = f'since epoch 0 (patience {here}); these are its weights\n'
    assert len(learn.history) == epochs
    said = f'early after epoch {epochs - 1} of 50: valid_loss has not improved {words}'
    assert capsys.readouterr().out.endswith(said)

def test_keep_best_beside_early_stopping():
    hook = EarlyStopping(2)
    learn = learner(hook)
    learn.fit(2, keep_best=True)
    assert learn.hooks.count(hook) == 1
    with pytest.raises(ValueError, match='disagree on the weights'): learn.fit(1, keep_best='train_loss')
    with pytest.raises(ValueError, match='disagree'): learner(EarlyStopping(restore_best=False)).fit(1, keep_best=True)
    with pytest.raises(ValueError, match='no valid_dl'): make_learner().fit(1, keep_best=True)

def test_keep_best_survives_a_stop():
    def stop(learn):
        if learn.state.optimizer_step == 6: learn.stop()
    one, two = learner(), learner()
    one.fit(5, keep_best=True)
    two.fit(5, keep_best=True, hooks=[LambdaHook(after_step=stop)])
    assert two.stopped
    two.resume()
    assert same(weights(one.model), weights(two.model))
