"The column that a hook looks at: which values are better, and names that no epoch can have"
import pytest
from torch import nn

from common import batches, make_learner
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, LRScheduler, Metric, accuracy, sweep
from trainer_nb.save import as_mode


@pytest.mark.parametrize('name, values', [('F1', [.5, .7, .9, .8, .7]), ('MSE', [.5, .3, .1, .2, .3])])
def test_the_name_tells_which_values_are_better(name, values, tmp_path):
    stop = EarlyStopping(2, monitor=f'valid_{name}')
    keep = Checkpoint(tmp_path/'kept', keep=1, monitor=f'valid_{name}')
    metric = Metric(lambda pred, targ: values[learn.state.epoch], name=name)
    learn = make_learner(nn.Linear(4, 3), batches(), batches(), metrics=[metric], hooks=[stop, keep])
    learn.fit(5)
    assert stop.best_epoch == 2 and stop.best == keep.best()['metric'] == pytest.approx(values[2])

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
    assert as_mode('min', 'valid_accuracy') == 'min'
    with pytest.raises(ValueError, match="mode is 'larger'"): as_mode('larger', 'valid_loss')

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
    assert stop.best == 1
