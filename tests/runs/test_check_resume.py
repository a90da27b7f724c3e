"`check_resume` names what forgets: planted faults are all found, and healthy programs are proved exact"
import atexit, os, random, shutil, tempfile
from itertools import islice
from pathlib import Path

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from common import weights
from trainer_nb.all import (
    AMP, EMA, Compile, EarlyStopping, GradAccum, GradClip, Hook, Learner, LRScheduler, NaNGuard, OneCycle, Samples,
    SeededLoader, SpikeGuard
)
from trainer_nb.runs.trace import held_state

N = 24

class Data(Dataset):
    "Rows, changed by `noise()`"
    def __init__(self, noise=None, **attrs):
        self.x, self.noise = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), noise
        vars(self).update(attrs)
    def __len__(self): return N
    def __getitem__(self, i): return self.x[i] + (0 if self.noise is None else self.noise()), i % 3

class Rng:
    "A transform with its own generator"
    def __init__(self, rng): self.rng = rng
    def __call__(self): return self.rng.random()

class Shuffled(Sampler):
    def __init__(self, rng, bs=None): self.rng, self.bs = rng, bs
    def __iter__(self):
        ids = self.rng.permutation(N).tolist()
        return iter(ids if self.bs is None else [ids[i:i + self.bs] for i in range(0, N, self.bs)])
    def __len__(self): return N if self.bs is None else N//self.bs

class Stream(IterableDataset):
    def __init__(self): self.n = 0
    def __iter__(self):
        for i in range(N):
            self.n += 1
            yield torch.randn(4, generator=torch.Generator().manual_seed(self.n)), i % 3

class Positioned(DataLoader):
    "Saves its position, and opens a pass with its first batch, as litdata's does"
    n = start = 0
    def __iter__(self):
        for self.n, batch in enumerate(islice(super().__iter__(), self.start, None), self.start + 1): yield batch
        self.start = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.start = state['n']

class Mixed(Positioned):
    "Its state leaves the shuffle buffer out, as that of a stream of `datasets`"
    def __iter__(self):
        rand, held = random.Random(0), []
        for batch in super().__iter__():
            held.append(batch)
            if len(held) > 2: yield held.pop(rand.randrange(3))
        yield from held

class Again(Sampler):
    "Shuffles the order of the pass before, which nobody saves"
    def __init__(self): self.order = np.arange(N)
    def __iter__(self):
        self.order = self.order[np.random.RandomState(0).permutation(N)]
        return iter(self.order.tolist())
    def __len__(self): return N

class Ordered(Shuffled):
    def set_epoch(self, epoch): self.rng = np.random.default_rng(epoch)

class OrderedStream(Stream):
    def set_epoch(self, epoch): self.n = 100*epoch

class NumPy(Data):
    def __getitem__(self, i): return self.x[i] + float(np.random.rand()), i % 3

class Own(Data):
    def __init__(self): super().__init__(Rng(random.Random(0)))

class SavedRng(Rng):
    def state_dict(self): return {'rng': self.rng.getstate()}
    def load_state_dict(self, state):
        version, numbers, gauss = state['rng']
        self.rng.setstate((version, tuple(numbers), gauss))

class Carry(Hook):
    "Scales the loss by what it holds"
    def __init__(self, start): self.held = start
    def after_loss(self, learn):
        if not learn.training: return
        self.held += 1
        learn.loss = learn.loss*(1 + self.held/100)

class Saved(Carry):
    def state_dict(self): return {'held': self.held}
    def load_state_dict(self, state): self.held = state['held']

class Curriculum(Hook):
    def after_step(self, learn):
        if learn.training: learn.train_dl.dataset.level += .1

class Leveled(Data):
    def __getitem__(self, i): return self.x[i]*self.level, i % 3

class Metric:
    "Remembers the best of all epochs"
    def __init__(self): self.reset(); self.best = 0.
    def reset(self): self.right = self.n = 0
    def update(self, pred, targ): self.right += (pred.argmax(-1) == targ).sum().item(); self.n += len(targ)
    def compute(self):
        self.best = self.best + self.right/self.n
        return self.best

COUNT = 0

def of_global(batch, learn):
    global COUNT
    COUNT += learn.training
    return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + COUNT/100)}

def make(train_dl=None, model=None, **kwargs):
    torch.manual_seed(0)
    if model is None: model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.2), nn.Linear(8, 3))
    if 'train_step' not in kwargs: kwargs.setdefault('loss_fn', F.cross_entropy)
    valid_dl = DataLoader(Data(), 12)
    if train_dl is None: train_dl = DataLoader(Data(), 6, shuffle=True)
    return Learner(model, train_dl, valid_dl, display=False, seed=0, **kwargs)

def loader(dataset=None, **kwargs): return DataLoader(dataset or Data(), **{'batch_size': 6, **kwargs})

FAULTS = {      # the start of an object's name → a program in which it forgets
    'learn.train_dl.sampler.order': lambda: make(loader(sampler=Again())),
    'learn.train_dl.dataset.noise.rng': lambda: make(loader(Data(Rng(random.Random(0))))),
    'learn.train_dl.dataset.n': lambda: make(loader(Stream())),
    'learn.train_dl.dataset.level': lambda: make(loader(Leveled(level=1.)), hooks=[Curriculum()]),
    'hook Carry.held': lambda: make(hooks=[Carry(0)]),
    'the global COUNT': lambda: make(train_step=of_global),
    'learn.train_dl': lambda: make(Mixed(Data(), 4)),
    'learn.train_dl ': lambda: make(loader(NumPy(), num_workers=2, persistent_workers=True)),
}

def gan():
    def train_step(batch, learn):
        yield 'a', F.cross_entropy(learn.model[0](batch[0]), batch[1])
        yield 'b', F.cross_entropy(learn.model[1](batch[0]), batch[1])
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    return make(model=model, train_step=train_step,
                optim={k: torch.optim.Adam(m.parameters(), .01) for k, m in zip('ab', model)})

def tensors(): return Data().x, torch.arange(N) % 3

HEALTHY = {
    'rows': lambda: make(tensors(), bs=6), 'seeded': lambda: make(SeededLoader(Data(), 6, shuffle=True)),
    'generator': lambda: make(loader(shuffle=True, generator=torch.Generator().manual_seed(3))),
    'sampler with a generator': lambda: make(
        DataLoader(Data(), batch_sampler=Shuffled(np.random.RandomState(0), 6))),
    'workers': lambda: make(loader(shuffle=True, num_workers=2)),
    'global numbers': lambda: make(loader(Data(lambda: random.random()), shuffle=True)),
    'metric with a memory': lambda: make(metrics=[Metric()]),
    'guard': lambda: make(hooks=[NaNGuard()]),
    'two optimizers': gan,
    'saved hook': lambda: make(hooks=[Saved(0)]),
    'large': lambda: make(model=nn.Sequential(nn.Linear(4, 2**16), nn.Linear(2**16, 3)), optim=torch.optim.SGD),
    'own position': lambda: make(Positioned(Data(), 6)),
    'global numpy in workers': lambda: make(loader(NumPy(), num_workers=2)),
    'own numbers in workers': lambda: make(loader(Own(), num_workers=2)),
    'sampler with set_epoch': lambda: make(loader(sampler=Ordered(np.random.default_rng(0)))),
    'stream with set_epoch': lambda: make(loader(OrderedStream())),
    'saved augmentation': lambda: (rng := SavedRng(random.Random(0))) and make(loader(Data(rng)), state=[rng]),
    'spikes': lambda: make(hooks=[SpikeGuard(action='skip')]),
    'samples': lambda: make(hooks=[Samples(lambda learn: learn.model(torch.ones(2, 4)))]),
    'compiled': lambda: make(hooks=[Compile(backend='aot_eager')]),
    'plateau': lambda: make(hooks=[
        LRScheduler(lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt), step='metric')]),
    'all at once': lambda: make(hooks=[AMP(), GradAccum(3), EMA(.9), GradClip(1.), OneCycle(.1)]),
    'validation within epochs': lambda: make((torch.randn(120, 4), torch.arange(120) % 3), bs=6),
    'best weights': lambda: make(hooks=[EarlyStopping(None)]),
}

# Streams of libraries, as their users write them

def of_columns(batch, learn): return {'loss': F.cross_entropy(learn.model(batch['x']), batch['y'])}
def streamed(dl): return make(dl, nn.Linear(4, 3), train_step=of_columns, eval_step=in_rows)
def in_rows(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])}
def stateful(data, **kwargs):
    return pytest.importorskip('torchdata.stateful_dataloader').StatefulDataLoader(data, 6, **kwargs)

def hugging(noise=None, shuffle=True):
    datasets = pytest.importorskip('datasets')
    data = datasets.Dataset.from_dict({'x': Data().x.tolist(), 'y': [i % 3 for i in range(N)]})
    data = data.to_iterable_dataset(num_shards=4).with_format('torch')
    if shuffle: data = data.shuffle(seed=1, buffer_size=10)
    return data if noise is None else data.map(lambda row: {'x': row['x'] + noise(), 'y': row['y']})

def nodes(noise=lambda: 0):
    tn = pytest.importorskip('torchdata.nodes')
    node = tn.Batcher(tn.MapStyleWrapper(Data(), torch.utils.data.RandomSampler(range(N))), 6)
    def join(rows): return torch.utils.data.default_collate([(x + noise(), y) for x, y in rows])
    return tn.Loader(tn.Mapper(node, join))

def lightning(folder=Path(tempfile.gettempdir())/f'chunks-{os.getpid()}', **kwargs):
    litdata = pytest.importorskip('litdata')
    if not folder.exists():
        writer = litdata.streaming.writer.BinaryWriter(str(folder), chunk_size=8)
        for i, x in enumerate(Data().x): writer[i] = {'x': x, 'y': i % 3}
        writer.done()
        writer.merge()
        atexit.register(shutil.rmtree, folder)
    return litdata.StreamingDataset(str(folder), shuffle=True, **kwargs)

def lightning_loader():
    data = lightning()
    return pytest.importorskip('litdata').StreamingDataLoader(data, batch_size=6)

FAULTS |= {
    'learn.train_dl   ': lambda: streamed(stateful(hugging())),     # its shuffle buffer is not in its state
    'noise in the closure of hugging': lambda: streamed(loader(hugging(Rng(random.Random(0))))),
    'noise in the closure of nodes': lambda: make(nodes(Rng(random.Random(0)))),
    'learn.train_dl    ': lambda: streamed(lightning_loader()),     # between two passes it saves no count of them
    'learn.train_dl     ': lambda: streamed(loader(
        lightning(transform=lambda row, rng=random.Random(0): {**row, 'x': row['x'] + rng.random()}))),
}

HEALTHY |= {
    'datasets, shuffled': lambda: streamed(loader(hugging())),
    'datasets, stateful': lambda: streamed(stateful(hugging(shuffle=False))),
    'stateful': lambda: make(stateful(Data(), shuffle=True)),
    'nodes': lambda: make(nodes()),
    'litdata in a DataLoader': lambda: streamed(loader(lightning())),
}

def cases(all_, quick): return [pytest.param(o, marks=() if o in quick else pytest.mark.soak) for o in all_]

@pytest.mark.parametrize('name', cases(FAULTS, ['learn.train_dl', 'the global COUNT']))
def test_a_fault_is_named(name):
    report = FAULTS[name]().check_resume()
    assert not report.is_exact, report
    assert [o for o in report.lost if o['object'].startswith(name.strip())], report

@pytest.mark.parametrize('name', cases(HEALTHY, ['large', 'own position']))
def test_a_healthy_program_is_proved(name):
    learn = HEALTHY[name]()
    before, rng = weights(learn.model), torch.get_rng_state()
    report = learn.check_resume(within=8)
    assert report.is_exact and not report.lost, report
    assert all(map(torch.equal, before, weights(learn.model))) and torch.equal(rng, torch.get_rng_state())
    assert not learn.history and learn.state.samples_seen == 0 and '✓ stopped after' in report.title()

def test_wrong_use():
    with pytest.raises(ValueError, match='within'): make().check_resume(0)
    def broken(batch, learn): raise KeyError('mask')
    with pytest.raises(RuntimeError, match="does not train: KeyError: 'mask'"): make(train_step=broken).check_resume()

class Wide:
    "100 objects at each of `depth` levels, and what else is given"
    def __init__(self, depth, **held):
        vars(self).update(held, inside=[Wide(depth - 1) for _ in range(100)] if depth else 0)

@pytest.mark.parametrize('depth, held, said', [
    (0, {'x': [{1}]*101}, 'o.x (in part)'), (0, {'x': torch.ones(2**17)}, 'o.x (in part)'),
    (2, {}, None), (3, {}, 'the objects farthest away (in part)')])
def test_what_is_looked_into_in_part_is_said(depth, held, said):
    found = dict(held_state({'o': Wide(depth, **held)}))
    assert [k for k in found if 'in part' in k] == ([said] if said else [])
    assert said or len([k for k in found if k.endswith('.inside')]) == 100*100

def test_objects_that_are_made_on_the_way_hide_no_others():
    "Lists of defaults, which do not exist without being looked at, would share an address"
    functions = [lambda x=[i]: x for i in range(50)]
    for i, f in enumerate(functions): f.__qualname__ = f'f{i}'
    assert {f'the defaults of f{i}[0]' for i in range(50)} <= dict(held_state({'o': functions})).keys()
