"The column that a hook looks at: which values are better, and names that no epoch can have"
import pytest
from torch import nn

from common import batches, make_learner, stop_when
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, LRScheduler, Metric, accuracy, sweep


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

@pytest.mark.parametrize('hook, words', [
    (EarlyStopping(monitor='valid_accuracy'), 'no valid_dl'),
    (EarlyStopping(monitor='val_loss', mode='min'), 'Did you mean `valid_loss`'),
    (LRScheduler(lambda opt: None, 'metric', 'train_losss'), 'Did you mean `train_loss`')])
def test_a_column_that_cannot_be_is_refused_before_training(hook, words):
    learn = start(hook, valid_dl=None)
    with pytest.raises(ValueError, match=words): learn.fit(1)
    assert not learn.state.optimizer_step

@pytest.mark.parametrize('name', ['accuracy2', 'MeanSquaredLogError', 'other'])
def test_columns_that_only_an_epoch_shows_are_not_refused(name):
    "A hook, a loss that is yielded by name or a dict of torchmetrics may bring them, whatever they resemble"
    stop = EarlyStopping(monitor=f'valid_{name}', mode='min')
    record = LambdaHook(after_loss=lambda learn: learn.record(name, 1., mean=True))
    start(stop, record, metrics=[accuracy, Metric(accuracy, name='MeanSquaredError')]).fit(1)
    assert stop.best_row[f'valid_{name}'] == 1

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
