"Validation passes: before the first step, in some epochs, and the event when their values are known"
import json, math

import pytest, torch, torch.nn.functional as F

from common import batches, digest, make_learner, make_model, record, same, shuffled, stop_when, weights
from trainer_nb.features.schedules import LRScheduler
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.save import EarlyStopping
from trainer_nb.loop.hooks import CancelFit, LambdaHook
from trainer_nb.show.loggers import JSONLLogger
from trainer_nb.show import planned
from trainer_nb.loop.metrics import accuracy


def loss_of(model, data):
    "By hand: mean over samples"
    training = model.training
    model.eval()
    with torch.no_grad():
        res = sum(F.cross_entropy(model(x), y, reduction='sum').item() for x, y in data)/sum(len(y) for _, y in data)
    model.train(training)
    return res

def start(seed=0, **kwargs):
    torch.manual_seed(seed)
    return make_learner(**{'valid_dl': batches(seed=2, bs=7), 'metrics': [accuracy], 'seed': 7, **kwargs})


# The event

@pytest.mark.parametrize('fit', [
    dict(n_epochs=2, valid_every=2), dict(max_steps=7, valid_every=3, valid_first=True)], ids=str)
def test_after_valid_comes_when_the_values_are_known(fit):
    "After every pass of a fit, in mid-epoch and at its end, with the complete row; the model is back in its mode"
    seen, valid = [], batches(seed=2, bs=7)
    def look(learn):
        row = {k: v[-1] for k, v in learn.history.valids.items()}
        assert row['valid_loss'] == pytest.approx(loss_of(learn.model, valid), rel=1e-6)
        assert row['batch'] == learn.history.n_steps
        seen.append((row, learn.training, learn.model.training, len(learn.history.valids['epoch'])))
    learn = start()
    learn.fit(**fit, hooks=[LambdaHook(after_valid=look)])
    assert [o[1:] for o in seen] == [(True, True, i + 1) for i in range(len(seen))]
    assert len(seen) == len(learn.history.valid_rows) > 1
    assert [o[0] for o in seen] == learn.history.valid_rows
    learn.validate()
    assert len(seen) == len(learn.history.valid_rows), '`validate` is no pass of a fit'

@pytest.mark.parametrize('k, valid_first, valid_every', [
    (1, True, None), (2, False, 2), (2, True, 2), (3, False, None)])
def test_stop_save_and_resume_at_after_valid(k, valid_first, valid_every, tmp_path):
    "No pass is made twice, and none is lost"
    fit = dict(n_epochs=2, valid_every=valid_every, valid_first=valid_first)
    whole, n = start(), []
    whole.fit(**fit)
    def at(f):
        return LambdaHook(name='At', after_valid=lambda learn: f(learn) if len(learn.history.valid_rows) == k else None)
    stopped = start()
    stopped.fit(**fit, hooks=[at(lambda learn: learn.stop()), Checkpoint(tmp_path/'a')])
    there = start(1)
    there.fit(**fit, resume=True, hooks=[Checkpoint(tmp_path/'a')])
    if stopped.state.epoch < 2: stopped.resume()
    saved, from_file = start(), start(1)
    saved.fit(**fit, hooks=[at(lambda learn: learn.save(tmp_path/'b'))])
    if (tmp_path/'b').exists():
        from_file.load(tmp_path/'b')
        from_file.resume()
    else: from_file = whole         # there were fewer passes
    for o in stopped, there, saved, from_file: assert digest(o) == digest(whole)

def test_a_fit_that_ends_at_after_valid_validates_no_second_time(tmp_path):
    learn = start(hooks=[Checkpoint(tmp_path)])
    def end(learn):
        learn.get_hook(Checkpoint).save(learn)
        raise CancelFit
    learn.fit(2, valid_every=2, hooks=[LambdaHook(after_valid=end)])
    other, whole = start(1, hooks=[Checkpoint(tmp_path)]), start()
    other.fit(2, valid_every=2, resume=True)
    whole.fit(2, valid_every=2)
    assert digest(other) == digest(whole)


# Before the first step

def test_validation_before_the_first_step():
    "The values of the untouched model, at batch 0; training is the same as without"
    torch.manual_seed(0)
    model = make_model()
    untouched = loss_of(model, batches(seed=2, bs=7))
    learn, plain = start(), start()
    plain.fit(2)
    learn.fit(2, valid_first=True)
    valids = learn.history.valids
    assert valids['batch'] == [0, 5, 10] and valids['epoch'] == [0, 0, 1] and valids['step'] == [0, 5, 10]
    assert valids['valid_loss'][0] == pytest.approx(untouched, rel=1e-6)
    assert same(weights(learn.model), weights(plain.model))
    ours, theirs = ({k: v for k, v in record(o).items() if k != 'valids'} for o in (learn, plain))
    assert ours == theirs
    first = learn.history.valids['valid_loss'][-1]
    learn.fit(1, valid_first=True)
    assert learn.history.valids['batch'] == [0, 5, 10, 10, 15]
    assert learn.history.valids['valid_loss'][3] == pytest.approx(first)

def test_it_is_logged_and_counted_by_the_bar(tmp_path, capsys):
    learn, shares = start(display='tty', hooks=[JSONLLogger(tmp_path/'log')]), []
    learn.fit(2, valid_first=True,
              hooks=[LambdaHook(ord=101, after_fit=lambda learn: shares.append(learn.display.pace.share),
                                after_valid=learn.display.draw)])
    lines = [json.loads(o) for o in (tmp_path/'log').read_text().splitlines()]
    assert [(o['kind'], o['batch']) for o in lines][:2] == [('valid', 0), ('step', 1)]
    assert sum(o['kind'] == 'valid' for o in lines) == 3
    assert shares == [1.]


# In every nth epoch

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
