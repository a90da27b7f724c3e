"Validation: before the first step, in some epochs, and the event when its values are known"
import json, math

import pytest, torch, torch.nn.functional as F

from common import batches, check_resume, make_learner, record, same, shuffled, stop_at, stop_when, weights
from trainer_nb.features.schedules import LRScheduler
from trainer_nb.save import EarlyStopping
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.show.loggers import JSONLLogger
from trainer_nb.show import planned
from trainer_nb.loop.metrics import accuracy

VALID = batches(seed=2, bs=7)

def loss_of(model):
    "On the validation set, by hand: the mean over samples"
    training = model.training
    model.eval()
    with torch.no_grad(): res = sum(F.cross_entropy(model(x), y, reduction='sum').item() for x, y in VALID)/24
    model.train(training)
    return res

def start(*hooks, seed=0, **kwargs):
    torch.manual_seed(seed)
    return make_learner(**{'valid_dl': VALID, 'metrics': [accuracy], 'seed': 7, 'hooks': hooks, **kwargs})

@pytest.mark.parametrize('fit, batch', [(dict(n_epochs=2, valid_every=2), [2, 4, 5, 6, 8, 10]),
                                        (dict(max_steps=7, valid_every=3, valid_first=True), [0, 3, 5, 6, 7])], ids=str)
def test_after_valid_comes_when_the_values_are_known(fit, batch):
    "After every pass of a fit, in mid-epoch and at its end, with the complete row; the model is back in its mode"
    seen = []
    def look(learn):
        row = learn.history.valid_rows[-1]
        assert row['valid_loss'] == pytest.approx(loss_of(learn.model), rel=1e-6)
        assert row['batch'] == learn.history.n_steps and learn.training and learn.model.training
        seen.append(row)
    learn = start()
    learn.fit(**fit, hooks=[LambdaHook(after_valid=look, after_epoch=lambda learn: learn.validate())])
    assert seen == learn.history.valid_rows and [o['batch'] for o in seen] == batch     # `validate` is no pass of a fit
    ends = [o['valid_loss'] for o in seen if o['batch'] in learn.history.ends]
    assert learn.history.epochs['valid_loss'] == ends

def test_validations_before_the_first_step_and_in_mid_epoch_change_no_number(tmp_path):
    "The values of the untouched model, at batch 0; loggers and the bar count it"
    learn, plain, shares = start(JSONLLogger(tmp_path/'log'), display='tty'), start(), []
    untouched = loss_of(learn.model)
    bar = LambdaHook(ord=101, after_fit=lambda learn: shares.append(learn.display.pace.share))
    plain.fit(2)
    learn.fit(2, valid_first=True, valid_every=3, hooks=[bar])
    assert same(weights(learn.model), weights(plain.model)) and shares == [1.]
    ours, theirs = (record(o) | {'valids': None} for o in (learn, plain))
    assert ours == theirs
    learn.fit(1, valid_first=True)
    valids = learn.history.valids
    assert valids['batch'] == valids['step'] == [0, 3, 5, 6, 9, 10, 10, 15]
    assert valids['epoch'] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert valids['valid_loss'][0] == pytest.approx(untouched, rel=1e-6)
    assert valids['valid_loss'][6] == pytest.approx(valids['valid_loss'][5])
    log = [json.loads(o) for o in (tmp_path/'log').read_text().splitlines()]
    assert [(o['kind'], o['batch']) for o in log][:2] == [('valid', 0), ('step', 1)]
    assert sum(o['kind'] == 'valid' for o in log) == 8

def test_a_fit_that_was_stopped_at_after_valid_resumes(tmp_path):
    "No pass is made twice, and none is lost: of the first one, and of one in mid-epoch"
    def stop_after(k):
        def stop(learn): return learn.stop() if len(learn.history.valid_rows) == k else None
        return LambdaHook(name='Stop', after_valid=stop)
    check_resume(start, tmp_path, stop_after(1), stop_after(2), n_epochs=2, valid_every=2, valid_first=True)

def learner(*hooks): return start(*hooks, train_dl=shuffled(20), metrics=[])

def validated(learn): return [o['epoch'] for o in learn.history.valid_rows]

def test_every_nth_epoch_and_the_last():
    "Training is the same; the display knows how many steps and passes are to come"
    learn, plain, seen = learner(), learner(), []
    learn.fit(5, valid_every_epochs=2, hooks=[LambdaHook(before_epoch=lambda learn: seen.append(planned(learn)))])
    plain.fit(5)
    assert seen == [(20, 3), (16, 3), (12, 2), (8, 2), (4, 1)] and validated(learn) == [1, 3, 4]
    assert [math.isnan(o) for o in learn.history.epochs['valid_loss']] == [True, False, True, False, False]
    assert plain.history.steps == learn.history.steps
    learn.fit(2)
    learn.fit(max_steps=10, valid_every_epochs=99)
    assert validated(learn) == [1, 3, 4, 5, 6, 9]
    with pytest.raises(ValueError, match='valid_every_epochs is 0'): learn.fit(1, valid_every_epochs=0)
    learn.valid_dl = None
    with pytest.raises(ValueError, match='valid_every_epochs.* valid_dl'): learn.fit(1, valid_every_epochs=2)

def test_a_resumed_fit_and_hooks_that_watch_the_validation_know_its_epochs(tmp_path):
    def plateau(opt): return torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
    def make(): return learner(EarlyStopping(2), LRScheduler(plateau, 'metric'))
    stops = stop_at(10), stop_when(lambda learn: learn.state.epoch == 1 and learn.valid_idx == 2)
    whole, _, _ = check_resume(make, tmp_path, *stops, n_epochs=4, valid_every_epochs=2)
    assert validated(whole) == [1, 3]
