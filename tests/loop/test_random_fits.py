"Fits put together at random equal a plain loop, written here: losses, weights, averages and RNG states, bit for bit"
import warnings
from contextlib import nullcontext
from copy import deepcopy
from random import Random

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Unsized, same
from trainer_nb.all import (
    AMP, EMA, Freeze, GradAccum, GradClip, GradNorm, LambdaHook, LRScheduler, NaNGuard, TensorLoader, accuracy
)
from trainer_nb.learner import Learner

class Scaled(nn.Module):
    "A loss with a parameter"
    def __init__(self):
        super().__init__()
        self.log_scale, self.drop = nn.Parameter(torch.zeros(())), nn.Dropout(.2)
    def forward(self, pred, targ): return F.cross_entropy(self.drop(pred)*self.log_scale.exp(), targ)

class Teacher(nn.Module):
    "A frozen part beside one that trains"
    def __init__(self, body):
        super().__init__()
        self.body, self.teacher = body, nn.Sequential(nn.Linear(4, 3), nn.Dropout(.5)).requires_grad_(False).eval()
    def forward(self, x): return self.body(x) + self.teacher(x)

OPTIMS = {
    'momentum': lambda p: torch.optim.SGD(p, lr=.05, momentum=.9, nesterov=True, weight_decay=.01),
    'amsgrad': lambda p: torch.optim.AdamW(p, lr=.01, amsgrad=True, fused=True),
    'rmsprop': lambda p: torch.optim.RMSprop(p, lr=.01),
    'adagrad': lambda p: torch.optim.Adagrad(p, lr=.1, foreach=True),
    'rprop': lambda p: torch.optim.Rprop(p, lr=.01),
    'adafactor': lambda p: torch.optim.Adafactor(p, lr=.01)}
CLASSES = {'class-sgd': torch.optim.SGD, 'class-adamw': torch.optim.AdamW, 'default': None}
SCHEDS = {
    'step': (lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=.5), 'epoch'),
    'cosine': (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7), 'step'),
    'cyclic': (lambda o: torch.optim.lr_scheduler.CyclicLR(o, .001, .1, step_size_up=3, cycle_momentum=False), 'step')}
LOADERS = 'list', 'shuffled', 'dropping', 'own generator', 'tensors', 'unsized'

def draw(seed):  # dict
    "A problem"
    r = Random(seed)
    c = {'seed': seed, 'norm': r.choice(['', '', 'batch', 'layer']), 'dropout': r.choice([0, 0, .1, .5]),
         'n_layers': r.randint(1, 3), 'dtype': r.choice([torch.float32, torch.float32, torch.float64]),
         'teacher': r.random() < .2, 'loss': r.choice(['', '', 'module', 'parameter']),
         'optim': r.choice([*OPTIMS, *CLASSES]), 'groups': r.random() < .2, 'sched': r.choice(['', '', *SCHEDS]),
         'accum': r.choice([1, 1, 1, 2, 3, 5]), 'clip': r.choice(['', '', 'norm', 'value']), 'ema': r.random() < .25,
         'amp': r.random() < .1, 'loader': r.choice(LOADERS), 'bs': r.randint(2, 9), 'n': r.randint(10, 40),
         'valid': r.random() < .6, 'bound': r.choice([(1,), (2,), (3,), (1, 2), 'steps']),
         'own_step': r.random() < .25, 'watch': r.random() < .3, 'stop': r.random() < .25}
    if c['optim'] in CLASSES: c['groups'] = False
    if c['norm'] == 'batch' and c['n'] % c['bs'] == 1: c['n'] += 1      # BatchNorm wants two samples
    if c['amp']: c['dtype'] = torch.float32
    return c

def parts(c):
    "(model, loss function, training loader, validation loader)"
    torch.manual_seed(c['seed'])
    layers, n_in = [], 4
    for _ in range(c['n_layers'] - 1):
        norm = {'': [], 'batch': [nn.BatchNorm1d(8)], 'layer': [nn.LayerNorm(8)]}[c['norm']]
        layers += [nn.Linear(n_in, 8), *norm, nn.Tanh(), nn.Dropout(c['dropout'])]
        n_in = 8
    model = nn.Sequential(*layers, nn.Linear(n_in, 3))
    if c['teacher']: model = Teacher(model)
    loss_fn = {'': F.cross_entropy, 'module': nn.CrossEntropyLoss(label_smoothing=.1), 'parameter': Scaled()}[c['loss']]
    if isinstance(loss_fn, nn.Module): loss_fn = loss_fn.to(c['dtype'])
    g, bs = torch.Generator().manual_seed(c['seed']), c['bs']
    x, vx = (torch.randn(n, 4, generator=g, dtype=c['dtype']) for n in (c['n'], 11))
    y, vy = (torch.randint(0, 3, (n,), generator=g) for n in (c['n'], 11))
    batches, data, own = list(zip(x.split(bs), y.split(bs))), TensorDataset(x, y), torch.Generator().manual_seed(3)
    train = {'list': lambda: batches, 'shuffled': lambda: DataLoader(data, bs, shuffle=True),
             'dropping': lambda: DataLoader(data, bs, shuffle=True, drop_last=True),
             'own generator': lambda: DataLoader(data, bs, shuffle=True, generator=own),
             'tensors': lambda: TensorLoader(x, y, bs=bs, shuffle=True), 'unsized': lambda: Unsized(batches)}
    valid = list(zip(vx.split(4), vy.split(4))) if c['valid'] else None
    return model.to(c['dtype']), loss_fn, train[c['loader']](), valid

def groups(c, model, loss_fn):
    params = [*model.parameters(), *(loss_fn.parameters() if isinstance(loss_fn, nn.Module) else ())]
    return [{'params': params[:1]}, {'params': params[1:], 'weight_decay': .1}] if c['groups'] else params

def n_steps(c): return 2*c['n']//c['bs']//c['accum'] + 1

def penalty(model): return .01*sum(p.square().sum() for p in model.parameters())

def averaged(average, model, decay):
    with torch.no_grad():
        for a, b in zip(*([*o.parameters(), *o.buffers()] for o in (average, model))):
            if a.is_floating_point(): a.lerp_(b, 1 - decay)
            else: a.copy_(b)

def plain(c):  # dict
    "The loop"
    model, loss_fn, train, valid = parts(c)
    owners = [o for o in (model, loss_fn) if isinstance(o, nn.Module)]
    make = OPTIMS.get(c['optim']) or (lambda p: (CLASSES[c['optim']] or torch.optim.AdamW)(p, lr=.02))
    opt = make(groups(c, model, loss_fn))
    params = [p for g in opt.param_groups for p in g['params']]
    make_sched, every = SCHEDS.get(c['sched'], (None, None))
    base = [g['lr'] for g in opt.param_groups]
    starts = {0} if c['bound'] == 'steps' else {sum(c['bound'][:i]) for i in range(len(c['bound']))}
    average, losses, valids, lrs, n_done = deepcopy(model).eval() if c['ema'] else None, [], [], [], 0
    n_epochs, end = (10**6, n_steps(c)) if c['bound'] == 'steps' else (sum(c['bound']), None)

    def forward(model, xb, yb):
        with torch.autocast('cpu', torch.bfloat16) if c['amp'] else nullcontext():
            loss = loss_fn(model(xb), yb)
            return loss + penalty(model) if c['own_step'] else loss

    for epoch in range(n_epochs):
        if epoch in starts and make_sched:      # a schedule spans one fit
            for g, lr in zip(opt.param_groups, base):
                g['lr'] = lr
                g.pop('initial_lr', None)
            sched = make_sched(opt)
        batches, sizes = list(train), []
        for i, (xb, yb) in enumerate(batches):
            loss = forward(model, xb, yb)
            losses.append(loss.item())
            lrs.append(opt.param_groups[0]['lr'])
            sizes.append(len(xb))
            (loss*(len(xb)/sizes[0]) if len(xb) != sizes[0] else loss).backward()
            if len(sizes) < c['accum'] and i < len(batches) - 1: continue
            if sum(sizes) != sizes[0]:      # a mean over all samples of the window
                for p in params:
                    if p.grad is not None: p.grad /= sum(n/sizes[0] for n in sizes)
            sizes = []
            if c['clip'] == 'norm': nn.utils.clip_grad_norm_(params, .3)
            elif c['clip'] == 'value': nn.utils.clip_grad_value_(params, .05)
            opt.step()
            opt.zero_grad()
            if average is not None: averaged(average, model, min(.9, (1 + n_done)/(10 + n_done)))
            n_done += 1
            if make_sched and every == 'step': sched.step()
            if n_done == end: break
        if valid:
            modes = [(m, m.training) for o in owners for m in o.modules()]
            for o in owners: o.eval()
            with torch.no_grad():
                values = [(forward(average or model, xb, yb).double().item(), len(xb)) for xb, yb in valid]
            valids.append(sum(v*n for v, n in values)/sum(n for _, n in values))
            for m, training in modes: m.training = training
        if make_sched and every == 'epoch': sched.step()
        if n_done == end: break
    return {'losses': losses, 'lrs': lrs, 'valids': valids, 'weights': tensors(model, loss_fn, average),
            'random': torch.get_rng_state(), 'n': n_done}

def tensors(*modules):
    states = [m.state_dict() for m in modules if isinstance(m, nn.Module)]
    return [t.detach().clone() for state in states for t in state.values()]

def ours(c):  # dict
    "The same, by a learner"
    model, loss_fn, train, valid = parts(c)
    hooks = [*[GradAccum(c['accum'])]*(c['accum'] > 1), *[EMA(.9)]*c['ema'], *[AMP()]*c['amp']]
    if c['teacher']: hooks.append(Freeze('teacher', in_eval=True))
    if c['clip']: hooks.append(GradClip(.3) if c['clip'] == 'norm' else GradClip(value=.05))
    if c['sched']: hooks.append(LRScheduler(SCHEDS[c['sched']][0], step=SCHEDS[c['sched']][1]))
    if c['watch']: hooks += [NaNGuard(), GradNorm(weights=True)]
    if c['optim'] in CLASSES: optim = {'optim': CLASSES[c['optim']], 'lr': .02}
    else: optim = {'optim': OPTIMS[c['optim']](groups(c, model, loss_fn)) if c['groups'] else OPTIMS[c['optim']]}
    def step(batch, learn):
        pred = learn.model(batch[0])
        return {'loss': learn.loss_fn(pred, batch[1]) + penalty(learn.model), 'pred': pred, 'targ': batch[1]}
    learn = Learner(model, train, valid, loss_fn=loss_fn, **optim, hooks=hooks, metrics=[accuracy], display=False,
                    train_step=step if c['own_step'] else None)
    r = Random(c['seed'])
    def stop(learn):
        if r.random() < .15: learn.stop()
    if c['stop']: learn.add_hook(LambdaHook(after_step=stop))
    for kwargs in [{'max_steps': n_steps(c)}] if c['bound'] == 'steps' else [{'n_epochs': n} for n in c['bound']]:
        learn.fit(**kwargs)
        while learn.cancelled == 'stop': learn.resume()
    h = learn.history
    return {'losses': h.steps['train_loss'], 'lrs': h.steps['lr'], 'valids': h.epochs.get('valid_loss', []),
            'random': torch.get_rng_state(), 'n': learn.state.optimizer_step,
            'weights': tensors(learn.model, learn.loss_fn, learn.ema.model if c['ema'] else None)}

def differences(c):  # list of names
    "What is not equal"
    with warnings.catch_warnings(action='ignore'): a, b = plain(c), ours(c)
    bad = [k for k in ('losses', 'lrs', 'n') if a[k] != b[k]]
    if b['valids'] != pytest.approx(a['valids'], rel=1e-9): bad.append('valids')
    if not same(a['weights'], b['weights']): bad.append('weights')
    if not torch.equal(a['random'], b['random']): bad.append('random')
    return bad

@pytest.mark.parametrize('first, n', [(0, 30), pytest.param(30, 1200, marks=pytest.mark.soak)], ids=str)
def test_random_fits_equal_plain_loops(first, n):
    wrong = []
    for c in map(draw, range(first, first + n)):
        try: bad = differences(c)
        except Exception as e: bad = [f'{type(e).__name__}: {e}']
        if bad: wrong.append((bad, c))
    assert not wrong, f'{len(wrong)} of {n} fits: {wrong[:5]}'
