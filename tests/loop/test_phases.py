"Metrics of one phase only, and recorded values whose mean is a column of the epoch"

import json

import pytest, torch, torch.nn.functional as F

from common import batches, check_resume, lazy, make_learner, stop_at, stop_when
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.loop.hooks import CancelStep, LambdaHook
from trainer_nb.loop.metrics import Metric, accuracy
from trainer_nb.show.loggers import JSONLLogger

MulticlassAccuracy = lazy('torchmetrics.classification', 'MulticlassAccuracy')
TRAIN, VALID = batches(), batches(seed=2, bs=7)

def both(batch, learn):
    "Training returns 'aux', validation 'pred'"
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'targ': batch[1], ('aux' if learn.training else 'pred'): pred}

def mean_of(pred, targ): return pred.mean()

def start(metrics, step=both, **kwargs):
    torch.manual_seed(0)
    return make_learner(**{'train_dl': TRAIN, 'valid_dl': VALID, 'train_step': step, 'metrics': metrics, 'seed': 7,
                           **kwargs})

def of_one(): return [accuracy, Metric(MulticlassAccuracy(3, average='micro'), name='object')]

@pytest.mark.parametrize('valid_first', [False, True])
def test_a_metric_is_recorded_where_its_keys_are(valid_first):
    learn = start(of_one())
    learn.fit(2, valid_first=valid_first)
    with torch.no_grad():
        right = sum((learn.model.eval()(x).argmax(1) == y).sum().item() for x, y in VALID)/sum(len(y) for _, y in VALID)
    rows = learn.history.epochs
    assert {o for o in rows if o[:6] in ('train_', 'valid_')} == {
        'train_loss', 'valid_loss', 'valid_accuracy', 'valid_object'}
    assert rows['valid_accuracy'][-1] == rows['valid_object'][-1] == pytest.approx(right)
    assert all(v == v for values in rows.values() for v in values)
    assert set(learn.validate()) == {'valid_loss', 'valid_accuracy', 'valid_object'}

@pytest.mark.parametrize('key, valid_dl, n_steps, valid_first', [
    ('nothing', VALID, 5, False), ('nothing', VALID, 5, True), ('nothing', None, 0, False)])
def test_a_key_that_no_phase_returns_is_an_error(key, valid_dl, n_steps, valid_first):
    "At once where there is no validation, which might return it; else when that begins"
    learn = start([Metric(accuracy, pred=key)], valid_dl=valid_dl)
    with pytest.raises(KeyError,
                       match=f"metric `accuracy` needs '{key}', but the step returned 'loss', 'targ', '(aux|pred)'"):
        learn.fit(1, valid_first=valid_first)
    assert learn.state.optimizer_step == (0 if valid_first else n_steps)

def test_what_only_training_returns_is_no_metric():
    learn = start([Metric(accuracy, pred='aux')])
    with pytest.raises(KeyError, match='needs .aux.'): learn.validate()

@pytest.mark.parametrize('at', [2, 'valid'])
def test_a_resume_knows_what_was_left_out(at, tmp_path):
    "In mid-training and in mid-validation, with another learner that has seen nothing"
    def with_records(batch, learn):
        res = both(batch, learn)
        learn.record('size', float(len(batch[1])), mean=True)
        learn.record('norm', batch[0].norm(), mean=True)
        return res
    stop = stop_at(at) if at == 2 else stop_when(lambda learn: learn.valid_idx == 2 and not learn.state.epoch)
    check_resume(lambda: start(of_one(), with_records), tmp_path, stop, n_epochs=2)


# Means of recorded values

@pytest.mark.parametrize('value', [lambda x: x.norm(), lambda x: x.norm().item()], ids=['tensor', 'number'])
def test_a_recorded_mean_is_weighted_by_samples(value):
    "In both phases, and nobody but the epoch's row sees that of validation"
    def step(batch, learn):
        res = both(batch, learn)
        learn.record('norm', value(batch[0]), mean=True)
        learn.record('plain', value(batch[0]))
        return res
    def mean(data): return sum(x.norm().item()*len(y) for x, y in data)/sum(len(y) for _, y in data)
    learn = start([], step)
    learn.fit(2)
    rows = learn.history.epochs
    assert rows['train_norm'] == pytest.approx([mean(TRAIN)]*2) and rows['valid_norm'] == pytest.approx([mean(VALID)]*2)
    assert learn.history.valids['valid_norm'] == rows['valid_norm'] and 'train_plain' not in rows
    assert learn.history.steps['norm'] == learn.history.steps['plain'] == pytest.approx(
        [x.norm().item() for x, _ in TRAIN]*2)
    assert learn.validate()['valid_norm'] == pytest.approx(mean(VALID))

def test_a_recorded_mean_weighs_what_the_step_says_and_leaves_out_what_is_not_there():
    def step(batch, learn):
        i = learn.state.batch_idx if learn.training else learn.valid_idx
        if i != 1: learn.record('i', float(i), mean=True)
        if i == 3: raise CancelStep
        return {**both(batch, learn), 'n': i + 1}
    learn = start([], step)
    learn.fit(1)
    assert learn.history.epochs['train_i'] == [pytest.approx((0*1 + 2*3 + 4*5)/(1 + 3 + 5))]
    assert learn.history.epochs['valid_i'] == [pytest.approx((0*1 + 2*3)/(1 + 3))]

@pytest.mark.parametrize('at', [0, 3])      # stopped after so many batches, 0: not at all
def test_values_of_a_validation_and_of_an_epoch(tmp_path, at):
    "They are in the rows of the history, in the table and in logs, and survive a resume"
    def make(folder):
        learn = make_learner(train_dl=batches(), valid_dl=batches(seed=2), seed=0)
        for hook in (Checkpoint(folder), JSONLLogger(folder/'log.jsonl'), LambdaHook(
                after_valid=lambda learn: learn.record('of_valid', learn.state.optimizer_step),
                after_epoch=lambda learn: learn.record('of_epoch', torch.tensor(learn.state.epoch + .5)))):
            learn.add_hook(hook)
        return learn
    learn = make(tmp_path)
    if at:
        learn.fit(2, valid_every=2, hooks=stop_at(at))
        learn = make(tmp_path)
        learn.fit(2, valid_every=2, resume=True)
    else: learn.fit(2, valid_every=2)
    h = learn.history
    steps = h.valids['step']
    assert h.valids['of_valid'] == steps and len(steps) > 4
    assert h.epochs['of_valid'] == [5, 10] and h.epochs['of_epoch'] == [1.5, 2.5]
    assert {'of_valid', 'of_epoch'} <= {*h.lines()[0]} and 'of_epoch' not in h.steps
    rows = [json.loads(o) for o in (tmp_path/'log.jsonl').read_text().splitlines()]
    assert [o['of_epoch'] for o in rows if o['kind'] == 'epoch'] == [1.5, 2.5]
    assert [o['of_valid'] for o in rows if o['kind'] == 'valid'] == steps
