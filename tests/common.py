"What several test files need: a small problem, and learners that draw nothing"
import hashlib, json, re, time, warnings
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import psutil, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import trainer_nb.all       # noqa: F401   registers the display, as in a user's notebook
from trainer_nb.learner import Learner
from trainer_nb.loop.hooks import Hook, LambdaHook


def lazy(module, name):
    "A function or class that is imported when it is called: each process imports all test files"
    return lambda *args, **kwargs: getattr(import_module(module), name)(*args, **kwargs)

def problem(n=24, seed=1):
    "Three classes of points: (n, 4) float32, (n,) int64"
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    return x, (x @ torch.randn(4, 3, generator=g)).argmax(1)

def batches(n=24, seed=1, bs=5): return list(zip(*(o.split(bs) for o in problem(n, seed))))

def shuffled(n=24, seed=1, bs=5, **kwargs):
    return DataLoader(TensorDataset(*problem(n, seed)), batch_size=bs, shuffle=True, **kwargs)

def make_model(): return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(.5), nn.Linear(8, 3))

def plain_model():
    "Without dropout, and always the same"
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

def make_learner(model=None, train_dl=None, valid_dl=None, cls=Learner, **kwargs):
    "A learner of the small problem, unless something else is said"
    if not {'loss_fn', 'train_step'} & kwargs.keys(): kwargs['loss_fn'] = F.cross_entropy
    return cls(make_model() if model is None else model, shuffled() if train_dl is None else train_dl, valid_dl,
               **{'display': False, **kwargs})

class Stream(IterableDataset):
    "A data set without a length, of `data`"
    def __init__(self, data): self.data = data
    def __iter__(self): return iter(self.data)

class Unsized:
    "A loader without a length"
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return iter(self.dl)

class Broken(Dataset):
    "Samples that cannot be read"
    def __len__(self): return 3
    def __getitem__(self, i): raise OSError('no such picture')

class Noisy(TensorDataset):
    "Samples draw from the global RNG, as augmentation does"
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + .1*torch.randn(x.shape), y

class Scaled(nn.Module):
    "A loss with parameters"
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
    def forward(self, pred, targ): return F.cross_entropy(pred*self.scale, targ)

class Share:
    "A metric object without `state_dict`: the share of right predictions"
    def __init__(self): self.reset()
    def reset(self): self.hits = self.n = 0
    def update(self, pred, targ): self.hits, self.n = self.hits + (pred.argmax(1) == targ).sum(), self.n + len(targ)
    def compute(self): return self.hits/self.n

@cache
def formatter():
    "Of tracebacks, as in a notebook"
    from IPython.core.ultratb import FormattedTB
    return FormattedTB(mode='Context', theme_name='nocolor', include_vars=False)

def weights(model): return [o.clone() for o in model.state_dict().values()]

def same(a, b): return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))

def equal(a, b):
    "Nestings of tensors and values, bit for bit; nan equals nan"
    if isinstance(a, torch.Tensor):
        return (isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype
                and torch.equal(a.nan_to_num(), b.nan_to_num()))
    if isinstance(a, dict): return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, 'all'): return bool((a == b).all())      # an array
    return a == b or a != a and b != b

def close(a, b):
    "Models whose weights are equal up to rounding"
    return all(torch.allclose(x, y, rtol=0, atol=1e-6) for x, y in zip(weights(a), weights(b), strict=True))

def record(learn):
    "Everything that a history says, without durations"
    h = learn.history
    return {'steps': h.steps, 'valids': h.valids, 'epochs': {k: v for k, v in h.epochs.items() if k != 'time_s'}}

def digest(learn):
    "One text for weights and record; floats are written exactly"
    sha = hashlib.sha256(json.dumps(record(learn)).encode())
    for w in weights(learn.model): sha.update(w.numpy().tobytes())
    return sha.hexdigest()

def plain_loop(model, opt, data, n_epochs=1, loss_of=None, clip=None):
    "The loop that everybody has written; `data` may be a function of the epoch, `clip` a largest norm; returns losses"
    losses = []
    for epoch in range(n_epochs):
        for batch in data(epoch) if callable(data) else data:
            loss = loss_of(model, batch) if loss_of else F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            if clip: nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g['params']], clip)
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    return losses

def stop_when(when):
    "A hook that stops a fit after the batch, of training or validation, of which `when(learn)` is true"
    return LambdaHook(name='Stop', after_step=lambda learn: learn.stop() if when(learn) else None)

def stop_at(step):
    "The same after an optimizer step"
    return stop_when(lambda learn: learn.training and learn.state.optimizer_step == step)

class Counted(LambdaHook):
    "Counts batches of training and validation in `n`, and stops the fit after the `at`-th one"
    def __init__(self, at=None):
        self.n, self.at = 0, at
        super().__init__(after_step=self.count, name='Counted')
    def count(self, learn):
        self.n += 1
        if self.n == self.at: learn.stop()

def check_resume(make, folder, *stops, **fit):
    """A fit that one of these hooks stops ends as the whole one, in the learner that was stopped and, from its
    checkpoint, in another one. Returns (whole, stopped, other)"""
    from trainer_nb.save.checkpoint import Checkpoint
    whole = make()
    whole.fit(**fit)
    for i, stop in enumerate(stops):
        here, there = make(), make()
        here.fit(**fit, hooks=[stop, Checkpoint(folder/str(i))])
        assert here.cancelled == 'stop'
        torch.rand(5)
        there.fit(**fit, hooks=[Checkpoint(folder/str(i))], resume=True)
        torch.rand(5)
        here.resume()
        assert digest(here) == digest(whole) == digest(there), i
    return whole, here, there

class Slow(Hook):
    "Each step takes a while"
    def __init__(self, s=.02): self.s = s
    def after_step(self, learn): time.sleep(self.s)

def until(condition, timeout=300):
    end = time.time() + timeout
    while not condition():
        assert time.time() < end, 'it takes too long'
        time.sleep(.02)

def alive(pid): return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

@contextmanager
def told():
    "The list that texts of warnings are put into"
    said = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        try: yield said
        finally: said += [str(o.message) for o in seen]

@contextmanager
def reasons(*expected):
    "What `Compile` warns of: one pattern for each part"
    with told() as said: yield
    said = [o for o in said if 'Compile' in o]
    assert len(said) == len(expected) and all(re.search(p, o) for p, o in zip(expected, said)), said

def sgd(params): return torch.optim.SGD(params, lr=.1, momentum=.9)

@cache
def read_cells(path):
    "(source, outputs, type) of a notebook's cells"
    found = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [(''.join(c['source']), c.get('outputs', []), c['cell_type']) for c in found]

def cells(path, kind='code'):
    "Sources of a notebook's cells"
    return [source for source, _, type in read_cells(path) if type == kind]

def lines(source): return [o for o in source.splitlines() if o.strip() and not o.lstrip().startswith('#')]
