"The column that a hook looks at: which values are better, and names that no epoch can have"
import pytest
from torch import nn

from common import batches, make_learner, stop_when
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, LRScheduler, Metric, accuracy, sweep
from trainer_nb.draw import Plot
from trainer_nb.save import Monitor


@pytest.mark.parametrize('name, values', [('F1', [.5, .7, .9, .8, .7]), ('MSE', [.5, .3, .1, .2, .3])])
def test_the_name_tells_which_values_are_better(name, values, tmp_path):
    stop = EarlyStopping(2, monitor=f'valid_{name}')
    keep = Checkpoint(tmp_path/'kept', keep=1, monitor=f'valid_{name}')
    metric = Metric(lambda pred, targ: values[learn.state.epoch], name=name)
    learn = make_learner(nn.Linear(4, 3), batches(), batches(), metrics=[metric], hooks=[stop, keep])
    learn.fit(5)
    assert stop.best_epoch == 2 and stop.best_row[f'valid_{name}'] == keep.best()['metric'] == pytest.approx(values[2])

def test_the_name_of_a_validation_set_does_not_count():
    stop = EarlyStopping(2, monitor='valid_noisy_accuracy')
    sets = {'noisy': batches(), 'other': batches()}
    make_learner(nn.Linear(4, 3), batches(), sets, metrics=[accuracy], hooks=[stop]).fit(1)
    assert stop.mode == 'max'

def test_a_name_that_does_not_tell_needs_a_mode(tmp_path):
    def fit(*hooks):
        metric = Metric(accuracy, name='accuracy_gap')
        make_learner(nn.Linear(4, 3), batches(), batches(), metrics=[metric], hooks=hooks).fit(1)
    column = 'valid_accuracy_gap'
    for wrong in (lambda: fit(EarlyStopping(monitor=column)), lambda: fit(Checkpoint(tmp_path, monitor=column)),
                  lambda: sweep(print, 1, tmp_path/'s', n_epochs=1, monitor=column)):
        with pytest.raises(ValueError, match=f"'{column}' does not tell .* pass mode='min' or mode='max'"): wrong()
    fit(EarlyStopping(monitor=column, mode='max'))
    assert Monitor('valid_accuracy', 'min').mode == 'min'
    with pytest.raises(ValueError, match="mode is 'larger'"): Monitor('valid_loss', 'larger')

@pytest.mark.parametrize('make', [
    lambda monitor, tmp: EarlyStopping(monitor=monitor, mode='min'),
    lambda monitor, tmp: Checkpoint(tmp/'kept', monitor=monitor, mode='min'),
    lambda monitor, tmp: LRScheduler(lambda opt: None, 'metric', monitor)], ids=['stop', 'checkpoint', 'scheduler'])
@pytest.mark.parametrize('monitor, valid_dl, words', [
    ('val_loss', batches(), 'Did you mean `valid_loss`'), ('valid_accuracy', None, 'there is no valid_dl'),
    ('valid_acuracy', batches(), 'Did you mean `valid_accuracy`'), ('train_losss', None, 'Did you mean `train_loss`')])
def test_a_column_that_cannot_be_is_refused_before_training(monitor, valid_dl, words, make, tmp_path):
    learn = make_learner(nn.Linear(4, 3), batches(), valid_dl, metrics=[accuracy], hooks=[make(monitor, tmp_path)])
    with pytest.raises(ValueError, match=words): learn.fit(1)
    assert not learn.state.optimizer_step

@pytest.mark.parametrize('name', ['accuracy2', 'MeanSquaredLogError', 'f2', 'rmse', 'balanced_accuracy', 'other'])
def test_columns_that_only_an_epoch_shows_are_not_refused(name):
    "A hook, a loss that is yielded by name or a dict of torchmetrics may bring them"
    stop = EarlyStopping(monitor=f'valid_{name}', mode='min')
    tell = LambdaHook(after_loss=lambda learn: learn.record(name, 1., mean=True))
    metrics = [accuracy, *(Metric(accuracy, name=o) for o in ('MeanSquaredError', 'f1', 'mse'))]
    make_learner(nn.Linear(4, 3), batches(), batches(), metrics=metrics, hooks=[stop, tell]).fit(1)
    assert stop.best_row[f'valid_{name}'] == 1

def test_the_best_is_judged_by_what_a_hook_monitors_without_a_display(tmp_path):
    "Of the latest fit for the mark, with a word that says so; of all fits for `best`"
    values = [.9, .2, .4, .6, .3]
    def score(pred, targ): return values[learn.state.epoch]
    learn = make_learner(nn.Linear(4, 3), batches(), batches(), metrics=[score],
                         hooks=[EarlyStopping(None, monitor='valid_score', mode='max', restore_best=False)])
    learn.fit(2)
    assert learn.history.best() == learn.history.marked() == 0 and 'marked' not in repr(learn.history)
    learn.fit(3)
    assert learn.history.best() == 0 and learn.history.marked() == 3
    assert learn.history.text().splitlines()[4].lstrip().startswith('* 3')
    assert repr(learn.history).endswith('marked: the best epoch of the latest fit')
    assert 'marked: the best epoch' in learn.history.html() and 'marked' not in learn.history.html(first=2)
    assert 'best of this fit valid_score 0.6 · epoch 3' in Plot().chart(learn.history.plot_data()).svg()
    assert learn.history.best(1) == 3

def test_each_validation_of_a_fit_has_a_row():
    learn = make_learner(nn.Linear(4, 3), batches(), batches())
    learn.add_hook(LambdaHook(after_epoch=lambda learn: learn.validate(batches(seed=3))))
    learn.fit(2, valid_every=2)
    h = learn.history
    assert h.valids['batch'] == [2, 4, 5, 6, 8, 10] and h.valids['epoch'] == [0, 0, 0, 1, 1, 1]
    assert h.epochs['valid_loss'] == [h.valids['valid_loss'][i] for i in (2, 5)]

def test_time_is_counted_once_after_a_resume(tmp_path, monkeypatch):
    "A clock that ticks with each batch: five of training and five of validation; what passes in a stop does not count"
    clock = [0.]
    monkeypatch.setattr('trainer_nb.loop.fit.perf_counter', lambda: clock[0])
    def tick(learn): clock[0] += 1
    def make(): return make_learner(nn.Linear(4, 3), batches(), batches(), hooks=[
        LambdaHook(after_step=tick), Checkpoint(tmp_path)])
    for stop in (LambdaHook(name='Stop', after_epoch=lambda learn: learn.stop()),
                 stop_when(lambda learn: learn.state.batch_idx == 4)):
        here, there = make(), make()
        here.fit(3, hooks=[stop])
        clock[0] += 100
        there.fit(3, resume=True)
        here.remove_hook('Checkpoint')
        while here.stopped: here.resume()
        for o in here, there: assert o.history.epochs['time_s'] == [10., 10., 10.]
