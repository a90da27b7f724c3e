"""Programs made at random, for two versions of the package: `python tests/old_and_new.py FILE FIRST N`

Runs programs FIRST to FIRST + N - 1 with the package that is imported, and saves what they leave in FILE.
"""
import random, sys, warnings
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainer_nb
from trainer_nb.all import (
    AMP, EMA, SWA, Checkpoint, EarlyStopping, Freeze, GradAccum, GradClip, GradNorm, Hook, Learner,
    LRScheduler, Metric, NaNGuard, OneCycle, Schedule, SeededLoader, SpikeGuard, TensorLoader, WarmupCosine,
    CancelEpoch, CancelFit, CancelStep, accuracy, cosine
)

N_CLASSES, N_WORDS = 3, 7


# ---- parts

class Counting(nn.Module):
    "Holds a buffer and a plain number that move with each training batch"
    def __init__(self, body):
        super().__init__()
        self.body, self.n_calls = body, 0
        self.register_buffer('seen', torch.zeros((), dtype=torch.long))
    def forward(self, x):
        if self.training: self.n_calls, self.seen = self.n_calls + 1, self.seen + len(x)
        return self.body(x)

class Words(nn.Module):
    "Class ids for each word, (bs, n_classes, length)"
    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(N_WORDS, 6), nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(6, N_CLASSES)
    def forward(self, x): return self.head(self.body(self.embed(x))[0]).transpose(1, 2)

class Scaled(nn.Module):
    "A loss with a parameter"
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
    def forward(self, pred, targ): return F.cross_entropy(pred*self.log_scale.exp(), targ)

class Share:
    "A metric object"
    def __init__(self): self.reset()
    def reset(self): self.hits, self.n = torch.zeros(()), torch.zeros(())
    def update(self, pred, targ):
        self.hits, self.n = self.hits + (pred.argmax(1) == targ).float().mean()*len(targ), self.n + len(targ)
    def compute(self): return self.hits/self.n
    def state_dict(self): return {'hits': self.hits, 'n': self.n}
    def load_state_dict(self, state): self.hits, self.n = state['hits'], state['n']

class Noisy(TensorDataset):
    "Samples draw from the global RNG, as augmentation does"
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + .1*torch.randn(x.shape), y

class Stream:
    "Batches without a length"
    def __init__(self, data): self.data = data
    def __iter__(self): return iter(self.data)

OPTIMS = {
    'sgd': lambda p: torch.optim.SGD(p, lr=.1), 'adamw': lambda p: torch.optim.AdamW(p, lr=.01),
    'momentum': lambda p: torch.optim.SGD(p, lr=.05, momentum=.9, nesterov=True, weight_decay=.01),
    'rmsprop': lambda p: torch.optim.RMSprop(p, lr=.01), 'adagrad': lambda p: torch.optim.Adagrad(p, lr=.1),
    'groups': lambda p: torch.optim.AdamW([{'params': [o]} for o in p][:3], lr=.01, fused=True)}
SCHEDULES = {
    'one cycle': lambda: OneCycle(.1), 'warm-up': lambda: WarmupCosine(.05, warmup=.3),
    'curve': lambda: Schedule(lr=cosine(.1, .01)),
    'exponential': lambda: LRScheduler(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, .9)),
    'step': lambda: LRScheduler(lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=.5), step='epoch'),
    'plateau': lambda: LRScheduler(lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0), step='metric')}
CLIPS = {'norm': lambda: GradClip(.3), 'value': lambda: GradClip(value=.05),
         'each': lambda: GradClip(norm_per_tensor=.2)}
LOADERS = ('list', 'shuffled', 'dropping', 'own generator', 'noisy', 'seeded', 'tuple', 'tensors', 'stream', 'dicts')
INCIDENTS = ('', '', '', 'stop', 'stop in validation', 'new process', 'find', 'dry run', 'validate', 'save', 'error',
             'cancel step', 'cancel epoch', 'cancel fit', 'again')

def draw(seed):  # dict
    "What is special about a program"
    r = Random(seed)
    c = {'seed': seed, 'model': r.choice(['linear', 'mlp', 'mlp', 'batch norm', 'counting', 'conv', 'words']),
         'dropout': r.random() < .4, 'loss': r.choice(['function', 'module', 'sum', 'parameter', 'weights']),
         'step': r.choice(['', '', '', 'own', 'method', 'weighted', 'yields']), 'optim': r.choice([*OPTIMS]),
         'schedule': r.choice(['', '', *SCHEDULES]), 'loader': r.choice(LOADERS), 'bs': r.randint(2, 9),
         'n': r.randint(12, 40), 'valid': r.choice(['', 'list', 'list', 'tuple', 'stream', 'sets']),
         'accum': r.choice([1, 1, 1, 2, 3]), 'clip': r.choice(['', '', 'norm', 'value', 'each']),
         'average': r.choice(['', '', 'ema', 'swa']), 'amp': r.random() < .1, 'freeze': r.random() < .15,
         'watch': r.random() < .25, 'spikes': r.choice(['', '', '', '', 'note', 'skip']), 'patient': r.random() < .15,
         'metrics': r.sample(['accuracy', 'function', 'object', 'dict', 'named'], r.randint(0, 3)),
         'fit': r.choice([{'n_epochs': 1}, {'n_epochs': 2}, {'n_epochs': 3}, {'max_steps': 7},
                          {'n_epochs': 2, 'valid_every': 3}, {'n_epochs': 3, 'valid_every_epochs': 2},
                          {'n_epochs': 2, 'valid_first': True}, {'n_epochs': 2, 'keep_best': True}]),
         'incident': r.choice(INCIDENTS), 'at': r.randint(1, 6), 'twice': r.random() < .2, 'predict': r.random() < .3}
    if c['step'] in ('yields', 'weighted') or c['model'] == 'words': c['loss'] = 'function'
    if c['step'] == 'yields': c['optim'], c['freeze'] = 'sgd', False
    if c['optim'] == 'groups': c['loss'] = 'function'
    if c['model'] == 'batch norm' and c['n'] % c['bs'] == 1: c['n'] += 1     # it wants two samples
    if not c['valid']:
        c['patient'], c['fit'] = False, {k: v for k, v in c['fit'].items() if k in ('n_epochs', 'max_steps')}
        if c['incident'] == 'validate': c['incident'] = ''
    if c['step'] == 'yields': c['patient'], c['fit'] = False, {**c['fit'], 'keep_best': False}
    if c['spikes'] == 'skip': c['watch'] = False
    # changed by name: a batch that is cancelled after its backward stays in an open window
    if c['incident'] == 'cancel step': c['accum'] = 1
    # changed by name: an average follows the names of buffers that a forward assigns; validation uses the live loss
    if c['average'] and c['model'] == 'counting': c['model'] = 'mlp'
    if c['average'] and c['loss'] == 'parameter': c['loss'] = 'module'
    # changed by name: the best of all validations is kept, also of those besides the ones at ends of epochs
    if {'valid_first', 'valid_every'} & {*c['fit']}:
        c['patient'], c['fit'] = False, {k: v for k, v in c['fit'].items() if k != 'keep_best'}
    # changed by name: an error in the first batch of all no longer restores the RNG states
    if c['incident'] == 'error': c['at'] = max(c['at'], 2)
    c['n_procs'] = 2 if seed % 3 == 1 else 1
    if c['n_procs'] == 2:
        # changed by name: which random numbers rank 1 draws; a loss that is no mean over samples is warned of, not
        # refused; and what is no mean over samples depends on the shards
        c |= {'dropout': False, 'spikes': '', 'amp': False}
        c['metrics'] = [o for o in c['metrics'] if o in ('accuracy', 'named')]
        if c['model'] == 'words': c['model'] = 'mlp'
        if c['step'] == 'weighted': c['step'] = 'own'
        c['incident'] = 'stop' if c['incident'] in ('stop', 'stop in validation', 'new process') else ''
        if c['loss'] != 'module': c['loss'] = 'function'
        if c['loader'] == 'noisy': c['loader'] = 'shuffled'
        if c['valid'] in ('sets', 'stream'): c['valid'] = 'list'
    needs_length = c['schedule'] in ('one cycle', 'warm-up', 'curve') and c['loader'] == 'stream'
    is_without = c['step'] == 'yields' or c['schedule'] == 'plateau' and not c['valid']
    if needs_length or is_without: c['schedule'] = ''
    return c

def make_model(c):
    drop = [nn.Dropout(.3)]*c['dropout']
    if c['model'] == 'words': return Words()
    if c['model'] == 'linear': return nn.Sequential(*drop, nn.Linear(4, N_CLASSES))
    if c['model'] == 'conv':
        layers = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 3), nn.ReLU(), *drop, nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(8, N_CLASSES))
    norm = [nn.BatchNorm1d(8)]*(c['model'] == 'batch norm')
    body = nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), *drop, nn.Linear(8, N_CLASSES))
    return Counting(body) if c['model'] == 'counting' else body

def make_loss(c):
    weights = torch.tensor([1., 2., .5])
    return {'function': F.cross_entropy, 'module': nn.CrossEntropyLoss(label_smoothing=.1), 'parameter': Scaled(),
            'sum': nn.CrossEntropyLoss(reduction='sum'), 'weights': nn.CrossEntropyLoss(weight=weights)}[c['loss']]

def make_data(c, n, seed):
    "(inputs, targets)"
    g = torch.Generator().manual_seed(seed)
    if c['model'] == 'words':
        x = torch.randint(0, N_WORDS, (n, 5), generator=g)
        y = x % N_CLASSES
        y[torch.rand(n, 5, generator=g) < .2] = -100
        y[:, 0] = x[:, 0] % N_CLASSES
        return x, y
    x = torch.randn(n, 4, generator=g)
    return x, (x @ torch.randn(4, N_CLASSES, generator=g)).argmax(1)

def make_loaders(c):
    x, y = make_data(c, c['n'], c['seed'])
    v = make_data(c, 11, c['seed'] + 1)
    data, kind, bs = TensorDataset(x, y), c['loader'], c['bs']
    if kind == 'noisy' and x.is_floating_point(): data = Noisy(x, y)
    batches = list(zip(x.split(bs), y.split(bs)))
    if kind == 'list': train = batches
    elif kind == 'stream': train = Stream(batches)
    elif kind == 'dicts': train = [{'x': a, 'y': b} for a, b in batches]
    elif kind == 'tuple': train = (x, y)
    elif kind == 'tensors': train = TensorLoader(x, y, bs=bs, shuffle=True, drop_last=True)
    elif kind == 'seeded': train = SeededLoader(data, batch_size=bs, shuffle=True, num_workers=0)
    elif kind == 'own generator':
        train = DataLoader(data, bs, shuffle=True, generator=torch.Generator().manual_seed(3))
    else: train = DataLoader(data, bs, shuffle=True, drop_last=kind == 'dropping')
    parts = list(zip(*(o.split(4) for o in v)))
    if kind == 'dicts': parts = [{'x': a, 'y': b} for a, b in parts]
    kinds = {'': None, 'list': parts, 'tuple': parts if kind == 'dicts' else v, 'stream': Stream(parts),
             'sets': {'a': parts[:2], 'b': parts[1:]}}
    return train, kinds[c['valid']]

def unpacked(batch): return (batch['x'], batch['y']) if isinstance(batch, dict) else batch

def own_step(batch, learn):
    x, y = unpacked(batch)
    pred = learn.model(x)
    loss = learn.loss_fn(pred, y)
    return {'loss': loss, 'pred': pred, 'targ': y, 'logits': pred, 'size': loss.detach()*2}

def weighted_step(batch, learn):
    x, y = unpacked(batch)
    pred, counts = learn.model(x), y.ne(-100) & y.ne(0)
    n = counts.sum()
    loss = (F.cross_entropy(pred, y, reduction='none')*counts).sum()/n.clamp(min=1)
    return {'loss': loss, 'n': n, 'pred': pred, 'targ': y, 'logits': pred}

def yielding_step(batch, learn):
    x, y = unpacked(batch)
    pred = learn.model(x)
    yield 'a', F.cross_entropy(pred, y)
    pred = learn.model(x)
    yield 'b', F.cross_entropy(pred, y) + .01*pred.square().mean()
    return {'pred': pred, 'targ': y, 'logits': pred}

class Method(Learner):
    def train_step(self, batch): return own_step(batch, self)

def largest(pred, targ): return pred.amax()

def both(pred, targ): return {'low': pred.amin(), 'high': pred.amax()}


# ---- the program

class Order(Hook):
    "Notes what each batch held"
    def __init__(self): self.seen = []
    def before_step(self, learn):
        x, _ = unpacked(learn.batch)
        self.seen.append(float(x.double().sum())*(1 if learn.training else -1))

class Incident(Hook):
    "Does something in the middle of a fit, once"
    def __init__(self, c): self.c, self.n, self.values = c, 0, []
    def after_backward(self, learn):
        self.n += 1
        if self.n != self.c['at']: return
        what = self.c['incident']
        if what == 'cancel step': raise CancelStep
        if what == 'cancel epoch': raise CancelEpoch
        if what == 'cancel fit': raise CancelFit
        if what == 'error': raise ZeroDivisionError
    def after_step(self, learn):
        if learn.training and self.n == self.c['at']:
            self.n += 100
            if self.c['incident'] in ('stop', 'new process'): learn.stop()
            if self.c['incident'] == 'validate': self.values.append(learn.validate())
        elif not learn.training and self.c['incident'] == 'stop in validation':
            self.c = {**self.c, 'incident': ''}
            learn.stop()

def make(c, hooks=()):  # (learner, its optimizers)
    torch.manual_seed(c['seed'])
    np.random.seed(c['seed'])
    random.seed(c['seed'])
    model, loss_fn, (train, valid) = make_model(c), make_loss(c), make_loaders(c)
    opts, own = [], c['step'] or ('own' if c['loader'] == 'dicts' else '')
    def optim(params):
        opts.append(OPTIMS[c['optim']](params))
        return opts[-1]
    metrics = {'accuracy': accuracy, 'function': largest, 'object': Share(), 'dict': both,
               'named': Metric(accuracy, 'right', pred='logits' if own else 'pred')}
    hooks = [*hooks]
    if c['accum'] > 1: hooks.append(GradAccum(c['accum']))
    if c['clip']: hooks.append(CLIPS[c['clip']]())
    if c['average']: hooks.append(EMA(.9) if c['average'] == 'ema' else SWA(start=2))
    if c['amp']: hooks.append(AMP())
    if c['freeze']: hooks.append(Freeze(next(name for name, _ in model.named_parameters())))
    if c['watch']: hooks += [NaNGuard(), GradNorm()]
    if c['spikes']: hooks.append(SpikeGuard(c['spikes'], threshold=2., window=10, warmup=10, every=3))
    if c['patient']: hooks.append(EarlyStopping(patience=1))
    if c['schedule']: hooks.append(SCHEDULES[c['schedule']]())
    step = {'own': own_step, 'weighted': weighted_step, 'yields': yielding_step}.get(own)
    if own == 'yields':
        first, *rest = model.parameters()
        loss_fn, optim = None, {'a': torch.optim.SGD([first], lr=.1, momentum=.9), 'b': torch.optim.Adam(rest, lr=.01)}
        opts += optim.values()
    cls = Method if own == 'method' else Learner
    learn = cls(model, train, valid, loss_fn=loss_fn, train_step=step, optim=optim, bs=c['bs'], hooks=hooks,
                metrics=[metrics[o] for o in c['metrics']], display=False)
    return learn, opts

def train(c, folder):  # (learner, optimizers, hooks)
    "Up to three fits, and what happens before, in and between them"
    order, incident = Order(), Incident(c)
    learn, opts = make(c, [order, incident])
    if c['incident'] == 'find': learn.lr_find(n_steps=12, opt='a' if c['step'] == 'yields' else None)
    if c['incident'] == 'dry run':
        with learn.dry_run() as dry:
            for _ in range(3): dry.train_batch()
    hooks = [Checkpoint(folder)] if c['incident'] == 'new process' else []
    fit = partial(learn.launch, 2, timeout_s=60) if c['n_procs'] == 2 else learn.fit
    try: fit(**c['fit'], hooks=hooks)
    except ZeroDivisionError: pass
    if c['incident'] == 'new process' and learn.cancelled == 'stop':
        other = {**c, 'incident': ''}
        learn, opts = make(other, [order, Incident(other)])
        learn.fit(**c['fit'], hooks=[Checkpoint(folder)], resume=True)
    elif learn.cancelled == 'stop': learn.resume() if c['n_procs'] == 1 else fit()
    if c['incident'] == 'again': learn.fit(1)
    if c['incident'] == 'save':
        learn.save(Path(folder)/'state.pt')
        learn, opts = make(c, [order, Incident(c)])
        learn.load(Path(folder)/'state.pt')
    if c['twice']: learn.fit(1)
    return learn, opts, order, incident

def result(c):  # dict
    "What the program leaves"
    with TemporaryDirectory() as folder: learn, opts, order, incident = train(c, folder)
    if c['predict'] and not c['step'] and c['loader'] != 'dicts':
        incident.values.append(learn.predict(make_data(c, 5, 1)[0]))
    s, h = learn.state, learn.history
    average = learn.ema
    modules = [o for o in (learn.model, learn.loss_fn, average and average.model) if isinstance(o, nn.Module)]
    _, numpy_state, place, *_ = np.random.get_state()
    return {'weights': [t for m in modules for t in m.state_dict().values()], 'order': order.seen,
            'optimizers': [[v for p in o.state for v in o.state[p].values()] for o in opts],
            'random': [torch.get_rng_state(), numpy_state.tolist(), place, [*random.getstate()[1]]],
            # changed by name: a cancelled batch, or one that `SpikeGuard` leaves out, counts no samples
            'counters': [s.epoch, s.batch_idx, s.optimizer_step, str(learn.cancelled or ''),
                         'skip' == c['spikes'] or c['incident'] == 'cancel step' or s.samples_seen],
            'rates': {k: v for k, v in h.steps.items() if k.startswith('lr')},
            'steps': {k: v for k, v in h.steps.items() if not k.startswith('lr')},
            'epochs': {k: v for k, v in h.epochs.items() if k != 'time_s'},
            'values': incident.values}

def main(file, first, n):
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    found = {'': str(Path(trainer_nb.__file__).parents[1])}
    for seed in range(int(first), int(first) + int(n)):
        try: found[seed] = result(draw(seed))
        except Exception as e: found[seed] = {'error': f'{type(e).__name__}: {e}'}
    torch.save(found, file)

if __name__ == '__main__': main(*sys.argv[1:])
