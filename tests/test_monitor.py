"The column that a hook looks at: which values are better, and names that no epoch can have"
import pytest
from torch import nn

from common import batches, make_learner
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, LRScheduler, accuracy, sweep
from trainer_nb.loop import as_mode


class Score:
    "A metric object that returns the next of some values at each validation"
    def __init__(self, values): self.values = values
    def __deepcopy__(self, memo): return self
    def reset(self): pass
    def update(self, pred, targ): pass
    def compute(self): return self.values[0]

def learner(name, values, *hooks):
    score = Score(list(values))
    score.__class__ = type(name, (Score,), {})
    return make_learner(nn.Linear(4, 3), batches(), batches(), metrics=[score], hooks=[
        *hooks, LambdaHook(after_epoch=lambda learn: score.values.pop(0), ord=99)])

@pytest.mark.parametrize('name, values, best', [('accuracy', [.5, .7, .9, .8, .7], 2), ('F1', [.5, .7, .9, .8, .7], 2),
                                                ('MeanSquaredError', [.5, .3, .1, .2, .3], 2)])
def test_the_name_tells_which_values_are_better(name, values, best, tmp_path):
    stop = EarlyStopping(2, monitor=f'valid_{name}')
    keep = Checkpoint(tmp_path/'kept', keep=1, monitor=f'valid_{name}')
    learner(name, values, stop, keep).fit(5)
    assert stop.best_epoch == best
    assert stop.best == keep.best()['metric'] == pytest.approx(values[best])

def test_a_name_that_does_not_tell_needs_a_mode(tmp_path):
    for wrong in (lambda: EarlyStopping(monitor='valid_depth'), lambda: Checkpoint(tmp_path, monitor='valid_depth'),
                  lambda: sweep(print, 1, tmp_path/'s', n_epochs=1, monitor='valid_depth')):
        with pytest.raises(ValueError, match="'valid_depth' does not tell .* pass mode='min' or mode='max'"): wrong()
    assert EarlyStopping(monitor='valid_depth', mode='max').mode == 'max' and as_mode('min', 'valid_accuracy') == 'min'
    with pytest.raises(ValueError, match="mode is 'larger'"): as_mode('larger', 'valid_loss')

@pytest.mark.parametrize('make', [
    lambda monitor, tmp: EarlyStopping(monitor=monitor), lambda monitor, tmp: Checkpoint(tmp/'kept', monitor=monitor),
    lambda monitor, tmp: LRScheduler(lambda opt: None, 'metric', monitor)], ids=['stop', 'checkpoint', 'scheduler'])
@pytest.mark.parametrize('monitor, valid_dl, words', [
    ('val_loss', batches(), 'Did you mean `valid_loss`'), ('valid_accuracy', None, 'there is no valid_dl')])
def test_a_column_that_cannot_be_is_refused_before_training(monitor, valid_dl, words, make, tmp_path):
    learn = make_learner(nn.Linear(4, 3), batches(), valid_dl, metrics=[accuracy], hooks=[make(monitor, tmp_path)])
    with pytest.raises(ValueError, match=words): learn.fit(1)
    assert not learn.state.optimizer_step
