"The column that a hook looks at: which values are better, and names that no epoch can have"
import pytest
from torch import nn

from common import batches, make_learner, stop_when
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, LRScheduler, Metric, accuracy, sweep
from trainer_nb.draw import Plot


def start(*hooks, valid_dl=batches(), metrics=(accuracy,)):
    return make_learner(nn.Linear(4, 3), batches(), valid_dl, metrics=metrics, hooks=hooks)

@pytest.mark.parametrize('name, values', [('F1', [.5, .7, .9, .8, .7]), ('MSE', [.5, .3, .1, .2, .3])])
def test_the_name_tells_which_values_are_better(name, values, tmp_path):
    stop = EarlyStopping(2, monitor=f'valid_{name}')
    keep = Checkpoint(tmp_path/'kept', keep=1, monitor=f'valid_{name}')
    learn = start(stop, keep, metrics=[Metric(lambda pred, targ: values[learn.state.epoch], name=name)])
    learn.fit(5)
    assert stop.best_epoch == 2 and stop.best_row[f'valid_{name}'] == keep.best()['metric'] == pytest.approx(values[2])

def test_a_name_that_does_not_tell_needs_a_mode(tmp_path):
    "Whatever the name of its validation set"
    def fit(*hooks):
        sets = {'noisy': batches(), 'other': batches()}
        start(*hooks, valid_dl=sets, metrics=[accuracy, Metric(accuracy, name='accuracy_gap')]).fit(1)
    column, stop = 'valid_accuracy_gap', EarlyStopping(monitor='valid_noisy_accuracy')
    for wrong in (lambda: fit(EarlyStopping(monitor=column)), lambda: fit(Checkpoint(tmp_path, monitor=column)),
                  lambda: sweep(print, 1, tmp_path/'s', n_epochs=1, monitor=column)):
        with pytest.raises(ValueError, match=f"'{column}' does not tell .* mode='min'"): wrong()
    fit(EarlyStopping(monitor=column, mode='min'))
    fit(stop)
    assert stop.mode == 'max'

def of_stop(monitor, tmp): return EarlyStopping(monitor=monitor, mode='min')
def of_checkpoint(monitor, tmp): return Checkpoint(tmp/'kept', monitor=monitor, mode='min')
def of_scheduler(monitor, tmp): return LRScheduler(lambda opt: None, 'metric', monitor)

@pytest.mark.parametrize('make, monitor, valid_dl, words', [
    (of_stop, 'val_loss', batches(), 'valid_loss'), (of_checkpoint, 'valid_acuracy', batches(), 'valid_accuracy'),
    (of_scheduler, 'train_losss', None, 'train_loss'), (of_stop, 'valid_accuracy', None, 'no valid_dl')])
def test_a_column_that_cannot_be_is_refused_before_training(make, monitor, valid_dl, words, tmp_path):
    learn = start(make(monitor, tmp_path), valid_dl=valid_dl)
    with pytest.raises(ValueError, match=words): learn.fit(1)
    assert not learn.state.optimizer_step

@pytest.mark.parametrize('name', ['accuracy2', 'MeanSquaredLogError', 'f2', 'other'])
def test_columns_that_only_an_epoch_shows_are_not_refused(name):
    "A hook, a loss that is yielded by name or a dict of torchmetrics may bring them, whatever they resemble"
    stop = EarlyStopping(monitor=f'valid_{name}', mode='min')
    record = LambdaHook(after_loss=lambda learn: learn.record(name, 1., mean=True))
    start(stop, record, metrics=[accuracy, Metric(accuracy, name='MeanSquaredError'), Metric(accuracy, name='f1')]).fit(1)
    assert stop.best_row[f'valid_{name}'] == 1

def test_the_best_is_judged_by_what_a_hook_monitors_without_a_display():
    "Of the latest fit for the mark, which is explained; of all fits for `best`"
    values = [.9, .2, .4, .6, .3]
    def score(pred, targ): return values[learn.state.epoch]
    learn = start(EarlyStopping(None, monitor='valid_score', mode='max', restore_best=False), metrics=[score])
    learn.fit(2)
    h = learn.history
    assert h.best() == h.marked() == 0 and 'marked' not in repr(h)
    learn.fit(3)
    assert h.best() == 0 and h.best(1) == h.marked() == 3
    assert h.text().splitlines()[4].lstrip().startswith('* 3') and 'marked' in repr(h)
    assert 'marked' in h.html() and 'marked' not in h.html(first=2)
    assert 'valid_score 0.6 · epoch 3' in Plot().chart(h.plot_data()).svg()

def test_each_validation_of_a_fit_has_a_row():
    learn = start(LambdaHook(after_epoch=lambda learn: learn.validate(batches(seed=3))))
    learn.fit(2, valid_every=2)
    h = learn.history
    assert h.valids['batch'] == [2, 4, 5, 6, 8, 10] and h.valids['epoch'] == [0, 0, 0, 1, 1, 1]
    assert h.epochs['valid_loss'] == [h.valids['valid_loss'][i] for i in (2, 5)]

@pytest.mark.parametrize('stop', [LambdaHook(name='Stop', after_epoch=lambda learn: learn.stop()),
                                  stop_when(lambda learn: learn.state.batch_idx == 4)], ids=['epoch', 'batch'])
def test_time_is_counted_once_after_a_resume(stop, tmp_path, monkeypatch):
    "A clock that ticks with each batch: five of training and five of validation; what passes in a stop does not count"
    clock = [0.]
    monkeypatch.setattr('trainer_nb.loop.fit.perf_counter', lambda: clock[0])
    def tick(learn): clock[0] += 1
    here, there = (start(LambdaHook(after_step=tick), Checkpoint(tmp_path)) for _ in range(2))
    here.fit(2, hooks=[stop])
    clock[0] += 100
    there.fit(2, resume=True)
    here.remove_hook('Checkpoint')
    while here.stopped: here.resume()
    for o in here, there: assert o.history.epochs['time_s'] == [10., 10.]
