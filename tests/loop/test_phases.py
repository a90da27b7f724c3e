"Metrics of one phase only, and recorded values whose mean is a column of the epoch"

import pytest, torch, torch.nn.functional as F

from common import Share, batches, check_resume, make_learner, stop_at, stop_when
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.loop.metrics import Metric, accuracy

TRAIN, VALID = batches(), batches(seed=2, bs=7)

def both(batch, learn):
    "Training returns 'aux', validation 'pred'"
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'targ': batch[1], ('aux' if learn.training else 'pred'): pred}

def start(metrics=(), step=both, **kwargs):
    torch.manual_seed(0)
    return make_learner(**{'train_dl': TRAIN, 'valid_dl': VALID, 'train_step': step, 'metrics': metrics, 'seed': 7,
                           **kwargs})

def of_one(): return [accuracy, Metric(Share(), name='object')]

@pytest.mark.parametrize('valid_dl, n_steps', [(VALID, 5), (None, 0)])
def test_a_key_that_no_phase_returns_is_an_error(valid_dl, n_steps):
    "At once where there is no validation, which might return it; else when that begins"
    learn = start([Metric(accuracy, pred='nothing')], valid_dl=valid_dl)
    with pytest.raises(KeyError, match="needs 'nothing'.*'loss', 'targ', '(aux|pred)'"): learn.fit(1)
    assert learn.state.optimizer_step == n_steps
    with pytest.raises(KeyError, match='needs .aux.'): start([Metric(accuracy, pred='aux')]).validate(VALID)

def with_records(batch, learn):
    norm = batch[0].norm()
    learn.record('norm', norm, mean=True)
    learn.record('number', norm.item(), mean=True)
    learn.record('plain', norm)
    return both(batch, learn)

def test_a_recorded_mean_is_weighted_by_samples():
    "In both phases; those of validation are in the epoch's row alone"
    def mean(data): return pytest.approx(sum(x.norm().item()*len(y) for x, y in data)/24)
    learn = start(step=with_records)
    learn.fit(1)
    row, steps = learn.history.epoch_rows[0], learn.history.steps
    assert row['train_norm'] == row['train_number'] == mean(TRAIN) and 'train_plain' not in row
    for o in row, learn.history.valid_rows[0], learn.validate(): assert o['valid_norm'] == mean(VALID)
    assert steps['norm'] == steps['number'] == steps['plain'] == pytest.approx([x.norm().item() for x, _ in TRAIN])

@pytest.mark.parametrize('stop', [stop_at(2), stop_when(lambda learn: learn.valid_idx == 2 and not learn.state.epoch)],
                         ids=['train', 'valid'])
def test_a_resume_knows_what_was_recorded_and_left_out(stop, tmp_path):
    check_resume(lambda: start(of_one(), with_records), tmp_path, stop, n_epochs=2)

def test_values_of_a_validation_and_of_an_epoch(tmp_path):
    "They are in the rows of the history and in the table, and survive a resume"
    def make():
        of_valid = LambdaHook(after_valid=lambda learn: learn.record('of_valid', learn.state.optimizer_step))
        of_epoch = LambdaHook(after_epoch=lambda learn: learn.record('of_epoch', torch.tensor(learn.state.epoch + .5)))
        return start(hooks=[of_valid, of_epoch])
    h = check_resume(make, tmp_path, stop_at(3), n_epochs=2, valid_every=2)[0].history
    assert h.valids['of_valid'] == h.valids['step'] and len(h.valids['step']) > 4
    assert h.epochs['of_valid'] == [5, 10] and h.epochs['of_epoch'] == [1.5, 2.5]
    assert {'of_valid', 'of_epoch'} <= {*h.lines()[0]} and 'of_epoch' not in h.steps
