"Loggers agree with the history, value by value, also after a crash"
import csv, json, sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest, torch
from torch import nn

from common import batches, digest, make_learner, record, shuffled, stop_at
from trainer_nb.loop.hooks import CancelStep, Hook, LambdaHook
from trainer_nb.loop.metrics import accuracy
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.show.loggers import (
    CSVLogger, JSONLLogger, MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger
)

FIT = dict(n_epochs=3, valid_every=2)


def start(seed, *hooks, **kwargs):
    torch.manual_seed(seed)
    return make_learner(**{'train_dl': shuffled(), 'valid_dl': batches(seed=2), 'metrics': [accuracy], 'seed': 7,
                           'hooks': hooks, **kwargs})

ODD = 'two\nlines\u2028end "a, b"\rc'

class Note(Hook):
    "Records two values of each training batch, reads the history early, and cancels some batches"
    def after_loss(self, learn):
        if not learn.training: return
        step = learn.state.optimizer_step
        for name in 'mine', ODD: learn.record(name, step + .5)
        if step % 4 == 1: learn.history.recent()
        if learn.state.batch_idx == 1: raise CancelStep

def all_of(tmp_path):
    "Loggers of all kinds, and hooks that record values"
    files = [CSVLogger(tmp_path/f'{what}.csv', what) for what in ('epochs', 'steps', 'valids')]
    services = [TensorBoardLogger(tmp_path/'tb'), MLflowLogger('p'), WandbLogger('p')]
    return [JSONLLogger(tmp_path/'log.jsonl'), *files, *services, Note()]

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

def lines(path): return [json.loads(o) for o in path.read_text().splitlines()]

def check_logs(tmp_path, h, run, events):
    "Files, and what services got, agree with the history"
    got, rows = {}, lines(tmp_path/'log.jsonl')
    for o in rows:
        kind, batch = o.pop('kind'), o.pop('batch')
        for k in (k for k in o if k not in ('epoch', 'step') and (kind != 'epoch' or k[:5] in ('train', 'time_'))):
            got.setdefault('epoch/'*(kind == 'epoch') + k, []).append((batch, o[k]))
    assert got == expected(h, 'epoch/')
    for what in 'epochs', 'steps', 'valids':
        with open(tmp_path/f'{what}.csv', newline='') as f: table = [*csv.DictReader(f)]
        for name, values in getattr(h, what).items(): assert [float(o[name]) for o in table] == values, (what, name)
    kept = events(tmp_path/'tb')        # in float32
    for name, points in expected(h, 'epoch/').items():
        if name == ODD: continue        # no tag of TensorBoard
        assert [(o.step, o.value) for o in kept.Scalars(name)] == [
            (i, torch.tensor(v).float().item()) for i, v in points], name
    sent = {(k, step): v for k, step, v in run.sent if k != 'epoch_time_s'}      # which cannot tell what they have
    assert sent == {(k, step): v for k, points in expected(h, 'epoch_').items() for step, v in points
                    if k != 'epoch_time_s'}

def fitted(seed, tmp_path, *hooks):
    "A learner whose fit is resumed from its checkpoint, if there is one; it may crash"
    learn = start(seed, *all_of(tmp_path), Checkpoint(tmp_path/'c', every=3), *hooks)
    try: learn.fit(**FIT, resume=True)
    except ZeroDivisionError: assert hooks
    return learn

@pytest.mark.parametrize('how', ['crash', 'resume', 'checkpoint'])
def test_loggers_agree_with_the_history(tmp_path, how, run, events):
    "After three crashes, each after the last checkpoint; or a stop that finds values unpacked; in new learners, too"
    def crash(step):
        return LambdaHook(after_loss=lambda learn: learn.training and 1/(learn.state.optimizer_step != step))
    if how == 'crash':
        for i, step in enumerate((2, 6, 9)): fitted(i, tmp_path, crash(step))
        learn = fitted(9, tmp_path)
    else:
        learn = fitted(0, tmp_path, stop_at(7))
        assert learn.stopped
        if how == 'resume': learn.resume()
        else: learn = fitted(9, tmp_path)
    whole = start(0, Note())
    whole.fit(**FIT)
    assert record(learn) == record(whole)
    check_logs(tmp_path, learn.history, run, events)


# Services

@dataclass
class Arch:
    depth: int = 3
    act: type = nn.Tanh
    sizes: list = field(default_factory=lambda: [8, 3])

CONFIG = {'model': Arch(), 'optim': SimpleNamespace(lr=.1, nesterov=True), 'note': None}
FLAT = {'model.depth': 3, 'model.act': 'Tanh', 'model.sizes': '[8, 3]', 'optim.lr': .1, 'optim.nesterov': True,
        'note': 'None'}

class Run:
    "What wandb and trackio return, and MLflow's settings: it keeps what it is sent"
    def __init__(self): self.sent, self.configs, self.params, self.calls = [], [], {}, []
    def init(self, project, config):
        self.configs.append(config)
        return self
    def log_params(self, values):
        assert not self.params.keys() & values.keys() and len(values) <= 100     # as the service demands
        self.calls.append(len(values))
        self.params.update(values)
    def log(self, values, step): self.sent.extend((k, step, v) for k, v in values.items())
    def finish(self): pass

@pytest.fixture
def run(monkeypatch):
    "Stands for all services, by the names of their packages"
    run, mlflow = Run(), ModuleType('mlflow')
    mlflow.start_run, mlflow.end_run, mlflow.set_experiment = (lambda: None), (lambda: None), (lambda name: None)
    mlflow.log_metrics, mlflow.log_params = run.log, run.log_params
    for name, o in ('wandb', run), ('trackio', run), ('mlflow', mlflow): monkeypatch.setitem(sys.modules, name, o)
    return run

def test_services_get_settings(run):
    "MLflow takes a hundred at once, as text"
    for cls in WandbLogger, TrackioLogger:
        start(0, cls('p'), config=CONFIG).fit(1)
        start(0, cls('p', config={'mine': 1}), config=CONFIG).fit(1)
    assert run.configs == [FLAT, {'mine': 1}]*2 and {'train_loss', 'epoch_train_loss'} < {k for k, *_ in run.sent}
    more = {'more': {i: i for i in range(150)}, 'a=b': 'x'*9000}
    start(0, MLflowLogger('p'), config={**CONFIG, **more}).fit(1)
    assert {k: v for k, v in run.params.items() if k in FLAT} == {k: str(v) for k, v in FLAT.items()}
    assert run.calls == [100, 57] and run.params['more.149'] == '149' and len(run.params['a_b']) == 6000

@pytest.fixture
def events():
    "What TensorBoard's own reader reads of a folder; it leaves out what was purged"
    accumulator = 'tensorboard.backend.event_processing.event_accumulator'
    reader = pytest.importorskip(accumulator, reason='needs tensorboard').EventAccumulator
    return lambda folder: reader(str(folder), size_guidance={'scalars': 0}).Reload()

class ByName(nn.Module):
    "Draws from the RNG in evaluation mode, too"
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(4, 8), nn.Sequential(nn.Dropout(.5), nn.Linear(8, 3))
    def forward(self, *, y, x, scale=2.):
        return {'loss': (self.rest(self.first(x))*scale).square().mean() + 0*y.sum()*torch.rand(())}

class Odd(nn.Linear):
    "Cannot be traced"
    def forward(self, x): return super().forward(x) if not torch.jit.is_tracing() else 1/0

@pytest.mark.parametrize('make, parts', [(ByName, ['Linear[first]', 'Linear[1]']), (lambda: Odd(4, 3), [])])
@pytest.mark.filterwarnings('ignore:.*draws no graph.*ZeroDivisionError')
def test_tensorboard_has_graph_and_settings_and_changes_nothing(tmp_path, make, parts, events):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    data = [{'x': x, 'y': y} for x, y in batches()]
    kwargs = dict(train_dl=data, valid_dl=data, metrics=[], loss_fn=None) if make is ByName else {}
    def fit(*hooks):
        torch.manual_seed(0)
        learn = start(0, *hooks, model=make(), config=CONFIG, **kwargs)
        learn.fit(2)
        return learn, digest(learn), torch.rand(3).tolist()
    learn, *drawn = fit(TensorBoardLogger(tmp_path, graph=True))
    assert drawn == [*fit()[1:]] and not any(m._forward_pre_hooks for m in learn.model.modules())
    kept = events(tmp_path)
    assert kept.Tags()['graph'] == bool(parts) and len(kept.Scalars('train_loss')) == 10
    graph = str(kept.Graph()) if parts else ''
    assert all(part in graph for part in parts)
    found = {tag.rsplit('/')[-1]: HParamsPluginData.FromString(content)
             for tag, content in kept.PluginTagToContent('hparams').items()}
    values = found['session_start_info'].session_start_info.hparams
    assert {*values} == {*FLAT} and values['model.depth'].number_value == 3
    assert values['model.act'].string_value == 'Tanh'
    names = [o.name.tag for o in found['experiment'].experiment.metric_infos]
    assert names == ['valid_loss', 'valid_accuracy'][:len(names)] and {*names} < {*kept.Tags()['scalars']}
    assert len(names) == 1 + len(learn.metrics)


# Files that others wrote, moved or deleted, and full disks

FILES = pytest.mark.parametrize('make', [JSONLLogger, CSVLogger])

@FILES
def test_no_line_of_another_run_is_lost(tmp_path, make, capsys):
    "Two runs that take turns at a file: each keeps all of its lines, in a file of its own"
    path = tmp_path/'log.txt'
    a, b = start(0, make(path)), start(1, make(path))
    a.fit(2)
    of_a = path.read_text()
    b.fit(3)
    of_b = path.read_text()
    a.fit(1)
    assert (tmp_path/'log.1.txt').read_text() == of_a and (tmp_path/'log.2.txt').read_text() == of_b
    longer = path.read_text()
    assert longer.startswith(of_a) and len(longer.splitlines()) == len(of_b.splitlines())
    a.fit(1)
    assert path.read_text().startswith(longer) and len([*tmp_path.iterdir()]) == 3
    assert 'log.2.txt' in capsys.readouterr().out

@FILES
def test_a_state_of_anybody_moves_and_cuts_no_file(tmp_path, make):
    "Neither its path, nor a place that is not this run's"
    (tmp_path/'mine').write_text('mine')
    learn = start(0, make(tmp_path/'log'))
    learn.fit(1)
    log, whole = learn.hooks.get(make), (tmp_path/'log').read_text()
    for size, ending in (0, 0), (4, 1):
        log.load_state_dict({**log.state_dict(), 'path': tmp_path/'mine', 'size': size, 'ending': ending})
        learn.fit(1)
    assert (tmp_path/'mine').read_text() == 'mine' and (tmp_path/'log.1').read_text() == whole
    assert (tmp_path/'log').read_text().startswith((tmp_path/'log.2').read_text())

def test_a_column_that_comes_late_is_written_to_a_file_beside_the_table(tmp_path, monkeypatch):
    "A full disk leaves the table as it was"
    path = tmp_path/'log.csv'
    late = LambdaHook(after_loss=lambda learn: learn.state.optimizer_step > 6 and learn.record('late', 1.))
    learn = start(0, CSVLogger(path, 'steps'), late)
    def full(path, flush): raise OSError(28, 'No space left on device')
    with monkeypatch.context() as m, pytest.warns(UserWarning, match='No space left'):
        m.setattr('trainer_nb.show.loggers.replacing', full)
        learn.fit(2)
    assert len(path.read_text().splitlines()) == 8 and [*tmp_path.iterdir()] == [path]
    learn.fit(1)
    assert len(path.read_text().splitlines()) == 16 and path.read_text().startswith('batch,epoch,train_loss,lr,late\n')
