"`fit(valid_every_epochs=n)`: which epochs end with a validation, and what watches its values"
import math

import pytest, torch

from common import batches, make_learner, shuffled, stop_when
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, LRScheduler
from trainer_nb.show.status import planned

def learner(*hooks):
    torch.manual_seed(0)
    return make_learner(train_dl=shuffled(20), valid_dl=batches(20), hooks=hooks, seed=1)

def validated(learn): return [o['epoch'] for o in learn.history.valid_rows]

def test_every_nth_epoch_and_the_last():
    learn = learner()
    learn.fit(5, valid_every_epochs=2)
    assert validated(learn) == [1, 3, 4]
    assert [math.isnan(o) for o in learn.history.epochs['valid_loss']] == [True, False, True, False, False]
    learn.fit(2)
    assert validated(learn) == [1, 3, 4, 5, 6]
    steps = learner()
    steps.fit(max_steps=10, valid_every_epochs=9)
    assert validated(steps) == [2]
    plain = learner()
    plain.fit(5)
    assert plain.history.steps == {k: v[:20] for k, v in learn.history.steps.items()}

def test_a_stopped_validation_and_a_resumed_fit(tmp_path):
    for at in (lambda l: l.training and l.history.n_steps == 10), (lambda l: not l.training and l.state.epoch == 1):
        learn = learner()
        learn.fit(5, valid_every_epochs=2, hooks=[stop_when(at)])
        learn.save(tmp_path/'a.pt')
        again = learner()
        again.load(tmp_path/'a.pt')
        again.resume()
        assert validated(again) == [1, 3, 4]

def test_hooks_that_watch_the_validation_wait_for_it(tmp_path):
    plateau = LRScheduler(lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt), 'metric')
    learn = learner(EarlyStopping(2), Checkpoint(tmp_path, monitor='valid_loss', keep=9), plateau)
    learn.fit(6, valid_every_epochs=3)
    assert validated(learn) == [2, 5]
    assert learn.get_hook('Checkpoint').best()['epoch'] == 6
    with pytest.raises(ValueError, match='valid_every_epochs is 0'): learn.fit(1, valid_every_epochs=0)
    learn.valid_dl = None
    with pytest.raises(ValueError, match='valid_every_epochs needs a valid_dl'): learn.fit(1, valid_every_epochs=2)

def test_the_display_counts_them():
    learn = learner()
    seen = []
    learn.fit(5, valid_every_epochs=2, hooks=[LambdaHook(before_epoch=lambda learn: seen.append(planned(learn)))])
    assert seen == [(20, 3), (16, 3), (12, 2), (8, 2), (4, 1)]
