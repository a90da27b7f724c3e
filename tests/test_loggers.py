"Loggers say what the history says, value by value, also after a crash"
import json, sys
from types import ModuleType, SimpleNamespace

import pytest, torch

from common import batches, make_learner, record, shuffled
from trainer_nb.checkpoint import Checkpoint
from trainer_nb.hooks import LambdaHook
from trainer_nb.loggers import CSVLogger, JSONLLogger
from trainer_nb.metrics import accuracy
from trainer_nb.trackers import MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger

FIT = dict(n_epochs=3, valid_every=2)


def start(seed, *hooks):
    torch.manual_seed(seed)
    return make_learner(train_dl=shuffled(), valid_dl=batches(seed=2), metrics=[accuracy], seed=7, hooks=hooks)

def crash(step):
    def fail(learn):
        if learn.training and learn.state.optimizer_step == step: raise ZeroDivisionError('on purpose')
    return LambdaHook(after_loss=fail)

def crashed_and_resumed(tmp_path, make, steps=(4, 8, 13)):
    "A training that fails three times, each time after its last checkpoint, and goes on in a new learner with a new logger"
    for i, step in enumerate(steps):
        with pytest.raises(ZeroDivisionError): start(i, make(), crash(step), Checkpoint(tmp_path/'c', every=3)).fit(**FIT, resume=True)
    learn = start(9, make(), Checkpoint(tmp_path/'c', every=3))
    learn.fit(**FIT, resume=True)
    whole = start(0)
    whole.fit(**FIT)
    assert record(learn) == record(whole)
    return learn.history

def expected(h, epoch=''):
    "dict: name → [(step, value)] of a history"
    res = {name: list(enumerate(values, 1)) for name, values in h.steps.items()}
    for row in h.valid_rows:
        for k, v in row.items():
            if k.startswith('valid_'): res.setdefault(k, []).append((row['batch'], v))
    for end, row in zip(h.ends, h.epoch_rows):
        for k, v in row.items():
            if k.startswith('train_') or k == 'time_s': res.setdefault(epoch + k, []).append((end, v))
    return res

def test_jsonl(tmp_path):
    h = crashed_and_resumed(tmp_path, lambda: JSONLLogger(tmp_path/'log.jsonl'))
    rows, got = [json.loads(o) for o in (tmp_path/'log.jsonl').read_text().splitlines()], {}
    for o in rows:
        names = {'step': ('train_loss', 'lr'), 'valid': ('valid_loss', 'valid_accuracy'), 'epoch': ('train_loss', 'train_accuracy', 'time_s')}[o['kind']]
        for k in names: got.setdefault('epoch/'*(o['kind'] == 'epoch') + k, []).append((o['batch'], o[k]))
    assert got == expected(h, 'epoch/') and [o['batch'] for o in rows] == sorted(o['batch'] for o in rows)

@pytest.mark.parametrize('what', ['epochs', 'steps', 'valids'])
def test_csv(tmp_path, what):
    from pandas import read_csv
    h = crashed_and_resumed(tmp_path, lambda: CSVLogger(tmp_path/'log.csv', what))
    table = read_csv(tmp_path/'log.csv')
    for name, values in getattr(h, what).items(): assert table[name].tolist() == values, name

def test_tensorboard(tmp_path):
    "Read with TensorBoard's own reader, which leaves out what was purged; it keeps float32"
    pytest.importorskip('tensorboard')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    h = crashed_and_resumed(tmp_path, lambda: TensorBoardLogger(tmp_path/'tb'))
    events = EventAccumulator(str(tmp_path/'tb'), size_guidance={'scalars': 0, 'images': 0}).Reload()
    for name, points in expected(h, 'epoch/').items():
        got = [(o.step, o.value) for o in events.Scalars(name)]
        assert got == [(i, torch.tensor(v).float().item()) for i, v in points], name
    assert any(o.startswith('hooks/Checkpoint') for o in events.Tags()['scalars']) and events.Tags()['images'] == ['history']

def test_mlflow(tmp_path):
    "The real one, with a database in a file"
    mlflow = pytest.importorskip('mlflow')
    pytest.importorskip('sqlalchemy')
    uri, ids = f'sqlite:///{tmp_path/"mlflow.db"}', set()
    def make(): return MLflowLogger('test', tracking_uri=uri)
    h = crashed_and_resumed(tmp_path, make, steps=(8, 13))
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name('test').experiment_id])
    assert [o.info.status for o in runs] == ['FINISHED']
    for name, points in expected(h, 'epoch_').items():
        if 'time_s' in name: continue       # of an epoch that was trained twice, the first one is there
        assert [(o.step, o.value) for o in client.get_metric_history(runs[0].info.run_id, name)] == points, name

def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    learn = start(0, WandbLogger('test', dir=str(tmp_path)))
    learn.fit(1)
    assert list(tmp_path.glob('wandb/offline-run-*'))

@pytest.mark.parametrize('cls, name', [(WandbLogger, 'wandb'), (TrackioLogger, 'trackio')])
def test_trackers_that_are_not_here(tmp_path, monkeypatch, cls, name):
    "Fakes with the calls that we make, which keep what they are sent"
    fake, runs, log = ModuleType(name), [], []
    def init(project, config, resume, name=None, id=None):
        run = SimpleNamespace(id=id or 'run 1', name=name or 'run 1', step=max((i for i, _ in log), default=0) + 1 if log else 0,
                              log=lambda values, step: log.append((step, values)), finish=lambda exit_code: None)
        runs.append(id or name)
        return run
    fake.init, fake.log, fake.finish = init, lambda values, step: log.append((step, values)), lambda: None
    monkeypatch.setitem(sys.modules, name, fake)
    learn = start(0, cls('p'))
    learn.fit(**FIT)
    got = {}
    for step, values in log:
        for k, v in values.items(): got.setdefault(k, []).append((step, v))
    assert got == expected(learn.history, 'epoch_')
    learn.fit(1)
    assert runs == [None, 'run 1']

def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'trackio', None)
    with pytest.raises(ImportError, match='pip install trackio'): start(0, TrackioLogger()).fit(1)

def test_logging_changes_no_number(tmp_path):
    plain, logged = start(0), start(0, JSONLLogger(tmp_path/'a'), CSVLogger(tmp_path/'b', 'steps'))
    def stop(learn):
        if learn.training and learn.state.optimizer_step == 7: learn.stop()
    for o in plain, logged: o.fit(2, hooks=[LambdaHook(after_step=stop)])
    for o in plain, logged: o.resume()
    assert record(plain) == record(logged)
