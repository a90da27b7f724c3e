"Loggers agree with the history, value by value, also after a crash"
import csv, json, random, shutil, sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest, torch
from torch import nn

from common import batches, digest, make_learner, record, shuffled, stop_at, until
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.loop.hooks import CancelEpoch, CancelStep, LambdaHook
from trainer_nb.show.loggers import (
    CSVLogger, JSONLLogger, MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger
)
from trainer_nb.loop.metrics import accuracy

FIT = dict(n_epochs=3, valid_every=2)


def start(seed, *hooks, **kwargs):
    torch.manual_seed(seed)
    return make_learner(**{'train_dl': shuffled(), 'valid_dl': batches(seed=2), 'metrics': [accuracy], 'seed': 7,
                           'hooks': hooks, **kwargs})

def crash(step):
    return LambdaHook(after_loss=lambda learn: 1/0 if learn.training and learn.state.optimizer_step == step else 0)

def crashed_and_resumed(tmp_path, make, steps=(4, 8, 13)):
    "A training that fails three times, each time after its last checkpoint, and is resumed by a new learner and logger"
    for i, step in enumerate(steps):
        with pytest.raises(ZeroDivisionError):
            start(i, make(), crash(step), Checkpoint(tmp_path/'c', every=3)).fit(**FIT, resume=True)
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
        names = {'step': ('train_loss', 'lr'), 'valid': ('valid_loss', 'valid_accuracy'),
                 'epoch': ('train_loss', 'train_accuracy', 'time_s')}[o['kind']]
        for k in names: got.setdefault('epoch/'*(o['kind'] == 'epoch') + k, []).append((o['batch'], o[k]))
    assert got == expected(h, 'epoch/') and [o['batch'] for o in rows] == sorted(o['batch'] for o in rows)

def test_csv(tmp_path):
    from pandas import read_csv
    for what in 'epochs', 'steps', 'valids':
        h = crashed_and_resumed(tmp_path/what, lambda: CSVLogger(tmp_path/f'{what}.csv', what))
        table = read_csv(tmp_path/f'{what}.csv')
        for name, values in getattr(h, what).items(): assert table[name].tolist() == values, name

@dataclass
class Arch:
    depth: int = 3
    act: type = nn.Tanh
    sizes: list = field(default_factory=lambda: [8, 3])

CONFIG = {'model': Arch(), 'optim': SimpleNamespace(lr=.1, nesterov=True), 'note': None}
FLAT = {'model.depth': 3, 'model.act': 'Tanh', 'model.sizes': '[8, 3]', 'optim.lr': .1, 'optim.nesterov': True,
        'note': 'None'}

@pytest.mark.parametrize('cls', [WandbLogger, TrackioLogger])
def test_trackers_that_are_not_here(monkeypatch, cls):
    "Fakes with the calls that we make, which keep what they are sent"
    run, got = fakes(monkeypatch, []), {}
    learn = start(0, cls('p'), config=CONFIG)
    learn.fit(**FIT)
    for k, step, v in run.sent: got.setdefault(k, []).append((step, v))
    assert got == expected(learn.history, 'epoch_')
    start(0, cls('p', config={'mine': 1}), config=CONFIG).fit(1)
    assert run.configs == [FLAT, {'mine': 1}]

def test_settings_reach_mlflow(monkeypatch):
    run = fakes(monkeypatch, [])
    more = {'more': {i: i for i in range(150)}, 'a=b': 'x'*9000}
    start(0, MLflowLogger('p'), config={**CONFIG, **more}).fit(1)
    assert {k: v for k, v in run.params.items() if k in FLAT} == {k: str(v) for k, v in FLAT.items()}
    assert run.calls == [100, 57] and run.params['more.149'] == '149' and len(run.params['a_b']) == 6000

@pytest.mark.soak
def test_wandb_keeps_each_epoch_offline(tmp_path, monkeypatch):
    "as the recipe says; the file holds values as JSON"
    pytest.importorskip('wandb', reason='needs wandb')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    learn = start(0, WandbLogger('p', mode='offline', dir=tmp_path))
    learn.fit(**FIT)
    [file] = tmp_path.rglob('*.wandb')
    epochs = learn.history.epochs
    until(lambda: repr(epochs['train_loss'][-1]).encode() in file.read_bytes(), 60)      # another process writes it
    kept = file.read_bytes()
    for name, values in ('epoch_train_loss', epochs['train_loss']), ('valid_loss', epochs['valid_loss']):
        assert name.encode() in kept and len(values) > 1 and all(repr(v).encode() in kept for v in values)

@pytest.fixture
def tensorboard(): pytest.importorskip('tensorboard')

def events_of(folder):
    "What TensorBoard's own reader reads; it leaves out what was purged"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    return EventAccumulator(str(folder), size_guidance={'scalars': 0}).Reload()       # all of them

def test_tensorboard(tmp_path, tensorboard):
    "It keeps float32"
    h = crashed_and_resumed(tmp_path, lambda: TensorBoardLogger(tmp_path/'tb'))
    events = events_of(tmp_path/'tb')
    for name, points in expected(h, 'epoch/').items():
        got = [(o.step, o.value) for o in events.Scalars(name)]
        assert got == [(i, torch.tensor(v).float().item()) for i, v in points], name

# TensorBoard: its own reader leaves out what was purged

def test_tensorboard_has_settings_to_compare_runs_by(tmp_path, tensorboard):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    start(0, TensorBoardLogger(tmp_path), config=CONFIG).fit(1)
    content = events_of(tmp_path).PluginTagToContent('hparams')
    found = {tag.rsplit('/')[-1]: HParamsPluginData.FromString(data) for tag, data in content.items()}
    values = found['session_start_info'].session_start_info.hparams
    assert {*values} == {*FLAT} and values['model.depth'].number_value == 3
    assert values['model.act'].string_value == 'Tanh'
    names = [o.name.tag for o in found['experiment'].experiment.metric_infos]
    assert names == ['valid_loss', 'valid_accuracy'] and {*names} < {*events_of(tmp_path).Tags()['scalars']}

class ByName(nn.Module):
    "Draws from the RNG in evaluation mode, too"
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(4, 8), nn.Sequential(nn.Dropout(.5), nn.Linear(8, 3))
    def forward(self, *, y, x, scale=2.):
        return {'loss': (self.rest(self.first(x))*scale).square().mean() + 0*y.sum()*torch.rand(())}

@pytest.mark.parametrize('kind', ['by place', 'by name'])
def test_tensorboard_draws_the_model_and_changes_nothing(tmp_path, kind, recwarn, tensorboard):
    kwargs = {}
    if kind == 'by name':
        data = [{'x': x, 'y': y} for x, y in batches()]
        kwargs = dict(train_dl=data, valid_dl=data, metrics=[], loss_fn=None)
    def run(*hooks):
        torch.manual_seed(0)
        learn = start(0, *hooks, model=ByName() if kind == 'by name' else None, **kwargs)
        learn.fit(2)
        return learn, digest(learn), torch.rand(3).tolist()
    learn, *drawn = run(TensorBoardLogger(tmp_path, graph=True))
    assert drawn == [*run()[1:]] and not any(m._forward_pre_hooks for m in learn.model.modules())
    graph = events_of(tmp_path).Graph()
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    nodes = [o.name for o in GraphDef.FromString(graph.SerializeToString()).node]
    parts = ['Linear[first]', 'Linear[1]'] if kind == 'by name' else ['Linear[0]', 'Tanh[1]', 'Linear[3]']
    assert all(any(part in o for o in nodes) for part in parts), nodes
    assert not [o for o in recwarn if 'TensorBoardLogger' in str(o.message)]

def test_a_model_that_cannot_be_traced_is_logged_without_a_graph(tmp_path, tensorboard):
    class Odd(nn.Linear):
        def forward(self, x): return super().forward(x) if not torch.jit.is_tracing() else 1/0
    learn = start(0, TensorBoardLogger(tmp_path, graph=True), model=Odd(4, 3))
    with pytest.warns(UserWarning, match='draws no graph: tracing the model raised ZeroDivisionError'): learn.fit(1)
    events = events_of(tmp_path)
    assert not events.Tags()['graph'] and len(events.Scalars('train_loss')) == 5

# What hooks record

class Run:
    "What wandb and trackio return, and MLflow's settings: it keeps what it is sent"
    def __init__(self, sent):
        self.sent, self.configs = sent, []
        self.params, self.calls = {}, []
    def init(self, project, config):
        self.configs.append(config)
        return self
    def log_params(self, values):
        assert not self.params.keys() & values.keys() and len(values) <= 100     # as the service demands
        self.calls.append(len(values))
        self.params.update(values)
    def log(self, values, step): self.sent.extend((k, step, v) for k, v in values.items())
    def finish(self): pass

def fakes(monkeypatch, sent):
    "Services that keep what they are sent, by the names of their packages"
    run, mlflow = Run(sent), ModuleType('mlflow')
    mlflow.start_run, mlflow.end_run, mlflow.set_experiment = (lambda: None), (lambda: None), (lambda name: None)
    mlflow.log_metrics, mlflow.log_params = run.log, run.log_params
    for name, o in ('wandb', run), ('trackio', run), ('mlflow', mlflow): monkeypatch.setitem(sys.modules, name, o)
    return run

def read_jsonl(path, name, sent):
    return [(o['batch'], o[name]) for o in map(json.loads, path.open()) if o['kind'] == 'step']

def read_csv_steps(path, name, sent):
    with open(path, newline='') as f: rows = list(csv.DictReader(f))
    return [(int(o['batch']), float(o[name])) for o in rows]

def read_events(path, name, sent):
    return [(o.step, o.value) for o in events_of(path).Scalars(name)]

def read_sent(path, name, sent):
    return sorted({(step, v) for k, step, v in sent if k == name})      # one of them cannot tell what it has

KINDS = {
    'JSONL': (JSONLLogger, read_jsonl), 'CSV': (lambda path: CSVLogger(path, 'steps'), read_csv_steps),
    'TensorBoard': (TensorBoardLogger, read_events),
    'MLflow': (lambda path: MLflowLogger('p'), read_sent), 'wandb': (lambda path: WandbLogger('p'), read_sent)}

def noted(name):
    return LambdaHook(after_loss=lambda learn: learn.record(name, learn.state.optimizer_step + .5) if learn.training
                      else None)

@pytest.mark.parametrize('kind', KINDS)
def test_values_that_a_stop_finds_unpacked_are_logged_after_a_resume(tmp_path, monkeypatch, kind):
    "In this learner, and in a new one from a checkpoint; then a reserved name is refused, and harms no later fit"
    if kind == 'TensorBoard': pytest.importorskip('tensorboard')
    make, read = KINDS[kind]
    for again in 'resume', 'checkpoint':
        sent, path = [], tmp_path/again
        fakes(monkeypatch, sent)
        def learner(): return start(0, make(path), noted('mine'), stop_at(7), Checkpoint(tmp_path/f'{again}.c'))
        learn = learner()
        learn.fit(2)
        if again == 'resume': learn.resume()
        else: (learn := learner()).fit(2, resume=True)
        assert read(path, 'mine', sent) == [(i + 1, i + .5) for i in range(10)]
        if again == 'resume':
            for name in 'kind', 'batch', 'epoch', 'step', 'time_s', 'lr', 'train_x', 'valid_loss':
                with pytest.raises(ValueError, match=f'`{name}` cannot be recorded'):
                    learn.fit(1, hooks=[noted(name)])
            with pytest.raises(TypeError, match='expected a string'): learn.fit(1, hooks=[noted(7)])
            learn.fit(1)

@pytest.mark.parametrize('name', ['two\nlines', 'line\u2028end "a, b"', 'a\rb'])
@pytest.mark.parametrize('kind', ['JSONL', 'CSV'])
def test_names_with_line_ends_are_read_back_after_a_resume(tmp_path, kind, name):
    make, read = KINDS[kind]
    path = tmp_path/'log'
    def fit(*hooks): start(0, make(path), noted(name), Checkpoint(tmp_path/'c', every=3), *hooks).fit(2, resume=True)
    for step in 4, 8:
        with pytest.raises(ZeroDivisionError): fit(crash(step))
    fit()
    assert read(path, name, []) == [(i + 1, i + .5) for i in range(10)]

@pytest.mark.parametrize('seed', range(3))
def test_each_batch_is_logged_once_whatever_reads_the_history_before(tmp_path, seed):
    "A reader brings values to the host early; batches, epochs and whole fits may end early, too"
    r = random.Random(seed)
    def act(learn):
        if not learn.training: return
        what = r.choices([None, 'read', 'validate', 'skip', 'end', 'stop'], [99, 2, 1, 1, .2, .5])[0]
        if what == 'read': learn.history.recent()
        if what == 'validate': learn.validate()
        if what == 'skip': raise CancelStep
        if what == 'end': raise CancelEpoch
        if what == 'stop': learn.stop()
    learn = make_learner(train_dl=batches()*60, valid_dl=batches(),
                         hooks=[JSONLLogger(tmp_path/'log'), LambdaHook(after_loss=act)])
    h = learn.fit(3, valid_every=50)
    while learn.stopped: learn.resume()
    rows = [json.loads(o) for o in (tmp_path/'log').read_text().splitlines()]
    steps = [o for o in rows if o['kind'] == 'step']
    assert [o['batch'] for o in steps] == [*range(1, h.n_steps + 1)]
    assert [o['train_loss'] for o in steps] == h.steps['train_loss']
    assert [sum(o['kind'] == k for o in rows) for k in ('valid', 'epoch')] == [len(h.valid_rows), len(h)]

def test_a_header_that_was_cut_off_is_written_again(tmp_path):
    learn = start(0, CSVLogger(tmp_path/'log', 'steps'), noted('two\nlines'))
    learn.fit(1)
    whole = (tmp_path/'log').read_text()
    (tmp_path/'log').write_text('batch,"two\n', newline='')
    learn.fit(1)
    assert (tmp_path/'log').read_text().startswith(whole) and (tmp_path/'log.1').read_text() == 'batch,"two\n'

@pytest.mark.parametrize('make', [JSONLLogger, CSVLogger])
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
    assert 'Logger: the log.txt that was there is log.2.txt now' in capsys.readouterr().out

@pytest.mark.parametrize('make', [JSONLLogger, CSVLogger])
def test_lines_by_hand_do_not_stop_a_fit(tmp_path, make):
    for i, strange in enumerate(['{"note": "by hand"}\n', '[]\n', '{"kind": "st', '\n', 'a,b,c\n', '\x00\xff\n']):
        path = tmp_path/f'log{i}.txt'
        learn = start(0, make(path))
        learn.fit(1)
        with open(path, 'a') as f: f.write(strange)
        learn.fit(1)
        other = start(0, make(tmp_path/f'other{i}'))
        other.fit(2)
        assert len(path.read_text().splitlines()) == len((tmp_path/f'other{i}').read_text().splitlines()), strange

def test_a_full_disk_leaves_the_table_as_it_was(tmp_path, monkeypatch):
    "New columns are written to a file beside it"
    path = tmp_path/'log.csv'
    late = LambdaHook(after_loss=lambda learn: learn.record('late', 1.) if learn.state.optimizer_step > 6 else None)
    learn = start(0, CSVLogger(path, 'steps'), late)
    def full(path, flush): raise OSError(28, 'No space left on device')
    monkeypatch.setattr('trainer_nb.show.loggers.replacing', full)
    with pytest.warns(UserWarning, match='No space left'): learn.fit(2)
    assert len(path.read_text().splitlines()) == 8 and [*tmp_path.iterdir()] == [path]
    monkeypatch.undo()
    learn.fit(1)
    assert len(path.read_text().splitlines()) == 16 and path.read_text().startswith('batch,epoch,train_loss,lr,late\n')


def test_a_log_whose_folder_is_deleted_says_so(tmp_path):
    folder, plain = tmp_path/'log', start(1)
    def delete(learn):
        if learn.state.epoch == 1 and folder.exists(): shutil.rmtree(folder)
    learn = start(1, CSVLogger(folder/'a.csv'), LambdaHook(after_step=delete))
    plain.fit(3)
    with pytest.warns(UserWarning, match=r'FileNotFoundError: .*a\.csv.*; training continues without it'):
        learn.fit(3)
    assert learn.history.steps == plain.history.steps

@pytest.mark.parametrize('make', [JSONLLogger, CSVLogger])
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
