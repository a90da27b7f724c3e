"""Trainings of any kind, stopped at random batches of training or validation, resume as if nothing had happened

The reference is the same training without a stop. Model, loaders, optimizer, hooks, metrics and plan are drawn; so are
the stops, of which a training has one to three. Each entry of the tables is drawn at least once. The learner that
resumes is another one, with other weights and random numbers, or now and then the one that was stopped.
"""
import os, random

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW, LBFGS, lr_scheduler as S
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from common import (Counted, Noisy, Scaled, Share, Stream, Unsized, batches, digest, equal, make_learner, make_model,
                    problem, shuffled, told)
from trainer_nb.all import (AMP, EMA, SWA, Activations, Checkpoint, EarlyStopping, Freeze, FreezeBN, GradAccum,
                            GradClip, GradNorm, LambdaHook, LRScheduler, Metric, NaNGuard, OneCycle, ParamGroups,
                            Schedule, SeededLoader, TensorLoader, WarmupCosine, accuracy, linear)

class Drawn:
    "Batches drawn from the RNG that dropout uses, too, and a length that nobody vouches for"
    def __len__(self): return 5
    def __iter__(self):
        for _ in range(5):
            x = torch.randn(4, 4)
            yield x, x[:, :3].argmax(1)

def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Dropout(.2), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model

def by_class(pred, targ): return {c: (pred.argmax(1) == i).float().mean() for i, c in enumerate('abc')}

def f1():
    from torchmetrics.classification import MulticlassF1Score
    return Metric(MulticlassF1Score(3, average=None), name='f1')

def record(learn):
    if learn.training: learn.record('mine', learn.loss*learn.state.batch_idx)

MODELS = {
    'dropout': make_model, 'tied': tied,
    'norm': lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))}
EXACT = {
    'shuffled': shuffled, 'generator': lambda: shuffled(generator=torch.Generator().manual_seed(5)), 'list': batches,
    'drop_last': lambda: shuffled(drop_last=True), 'tensors': lambda: TensorLoader(*problem(), bs=5, shuffle=True),
    'no batches': lambda: DataLoader(TensorDataset(*(o.unsqueeze(1) for o in problem())), None, shuffle=True),
    'weighted': lambda: DataLoader(Noisy(*problem()), 5, sampler=WeightedRandomSampler(torch.arange(1., 25), 24)),
    'seeded': lambda: SeededLoader(Noisy(*problem()), 5, shuffle=True, num_workers=0)}
LOADERS = {**EXACT, 'worker': lambda: DataLoader(Noisy(*problem()), 5, shuffle=True, num_workers=1), 'drawn': Drawn,
           'unsized': lambda: Unsized(batches()),
           'stream': lambda: DataLoader(Stream(batches()), batch_size=None)}
OPTIMIZERS = {
    'momentum': lambda p: SGD(p, lr=.05, momentum=.9), 'AdamW': lambda p: AdamW(p, lr=.01),
    'groups': lambda p: AdamW([{'params': (p := list(p))[:1], 'lr': .02}, {'params': p[1:]}], lr=.01),
    'patterns': ParamGroups({'*.bias': .02, '*': .01}, decay_norms=False),
    'LBFGS': lambda p: LBFGS(p, lr=.1, max_iter=3)}
LOSSES = {'function': lambda: F.cross_entropy, 'parameters': Scaled}
HOOKS = {
    'accumulation': lambda: GradAccum(2), 'clip': lambda: GradClip(.5), 'norm': lambda: GradNorm(weights=True),
    'average': lambda: EMA(.9), 'late average': lambda: SWA(4), 'guard': NaNGuard, 'bfloat16': AMP,
    'float16': lambda: AMP('fp16', lambda device: torch.amp.GradScaler(device, init_scale=2.**16, growth_interval=2)),
    'patience': lambda: EarlyStopping(2, monitor='train_loss'), 'activations': lambda: Activations(every=2),
    'frozen': lambda: Freeze('0'), 'statistics': FreezeBN, 'unfreeze': lambda: Freeze('0', until=1, in_eval=True),
    'record': lambda: LambdaHook(after_loss=record, name='Record')}
RATES = {
    '-': lambda: [], 'one cycle': lambda: [OneCycle(.1)], 'warm-up': lambda: [WarmupCosine(.1)],
    'epoch': lambda: [LRScheduler(lambda opt: S.ExponentialLR(opt, .8), 'epoch')],
    'of a length': lambda: [LRScheduler(lambda opt, n: S.OneCycleLR(opt, .1, n + 1, cycle_momentum=False))],
    'two in a row': lambda: [LRScheduler(lambda opt: S.SequentialLR(
        opt, [S.ConstantLR(opt, .1, 2), S.ExponentialLR(opt, .9)], [2]))],
    'plateau': lambda: [Schedule(linear(1, .5)), LRScheduler(
        lambda opt: S.ReduceLROnPlateau(opt, patience=0, threshold=.5), 'metric', 'train_loss')]}
METRICS = {'function': lambda: accuracy, 'dict': lambda: by_class, 'object': Share, 'torchmetrics': f1}
TABLES = {'model': MODELS, 'train': LOADERS, 'opt': OPTIMIZERS, 'loss': LOSSES, 'hook': HOOKS, 'rates': RATES,
          'metric': METRICS}
N = max(map(len, TABLES.values()))

# what does not go together: two of a kind, and what cannot evaluate a loss again
APART = [{'bfloat16', 'float16'}, {'average', 'late average'}, {'frozen', 'unfreeze'}, {'LBFGS', 'accumulation'},
         {'LBFGS', 'guard'}, {'LBFGS', 'float16'}, {'no batches', 'statistics'}]

def draw(rand, i):
    "A training as a dict of names and numbers, with the `i`-th entry of each table"
    c = {k: ([*table][i % len(table)] if i < N else rand.choice([*table])) for k, table in TABLES.items()}
    c.update(valid=rand.choice([None, *LOADERS]), every=rand.choice(['epoch', 1, 3]), seed=rand.choice([None, 3]))
    c['hooks'] = []
    for o in [c['hook'], *rand.sample([*HOOKS], rand.randint(0, 4))]:
        chosen = {*c['hooks'], c['opt'], c['train']}
        if o not in chosen and not any(o in pair and pair & chosen for pair in APART): c['hooks'].append(o)
    if 'statistics' in c['hooks']: c['model'] = 'norm'
    if c['train'] == 'no batches': c['model'] = 'tied'      # BatchNorm wants two samples
    c['fit'] = dict(n_epochs=rand.randint(2, 3))
    has_no_length = c['train'] in ('stream', 'unsized')      # a schedule must know the number of steps
    if has_no_length or rand.random() < .3: c['fit'] = dict(max_steps=rand.randint(4, 9))
    if c['valid'] and rand.random() < .4: c['fit']['valid_every'] = rand.randint(1, 4)
    return c

def make(c, folder, counted, seed=0):
    torch.manual_seed(11)
    train, valid = LOADERS[c['train']](), c['valid'] and LOADERS[c['valid']]()
    hooks = [*(HOOKS[o]() for o in c['hooks']), *RATES[c['rates']](), Checkpoint(folder, every=c['every']), counted]
    learn = make_learner(MODELS[c['model']](), train, valid, optim=OPTIMIZERS[c['opt']], seed=c['seed'],
                         metrics=METRICS[c['metric']](), loss_fn=LOSSES[c['loss']](), hooks=hooks)
    if seed:
        with torch.no_grad():
            for p in learn.model.parameters(): p.uniform_()
    torch.manual_seed(seed)
    return learn

def left(learn):
    "What must be the same in the end"
    states = {h.name: h.state_dict() for h in learn.hooks if h.name not in ('Checkpoint', 'Counted')}
    for row in map(states.get('EarlyStopping', {}).get, ('best_row', 'since')):
        if row: row['time_s'] = 0       # the clock
    return states, [o.param_groups[0]['lr'] for o in learn.opts.values()], learn.state

def trial(rand, i, folder):
    "One training with its stops: (what it was, number of resumes)"
    c, n, learn = draw(rand, i), 0, None
    whole = make(c, folder/'whole', counted := Counted())
    whole.fit(**c['fit'])
    todo, n_stops = counted.n, rand.randint(1, 3)
    for k in range(n_stops + 1):
        at = 1 if i % 2 == k == 0 else rand.randint(1, todo) if todo > 1 else 0     # 1: inside a window of two batches
        stop = Counted(at if k < n_stops else None)
        if k > 1 and rand.random() < .5:
            learn.remove_hook('Counted')
            learn.add_hook(stop)
            learn.resume()
        else:
            learn = make(c, folder/'run', stop, seed=k)
            learn.fit(**c['fit'], resume=k > 0)
        n, todo = n + bool(k), todo - stop.n
        if learn.cancelled != 'stop': break
    assert digest(learn) == digest(whole) and equal(left(learn), left(whole)), (c, n)
    return c, n

@pytest.mark.parametrize('n_resumes', [N, pytest.param(450, marks=pytest.mark.soak)])
def test_resumed_anywhere_is_bit_equal(n_resumes, tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'fsync', lambda fd: None)       # no power is cut here
    rand, done, i = random.Random(n_resumes), 0, 0
    while done < n_resumes or i < N:
        with told() as said: c, n = trial(rand, i, tmp_path/str(i))
        assert not [o for o in said if 'lr_scheduler.step' in o], (c, said)
        is_exact = {c['train'], c['valid']} <= {*EXACT, None}
        assert not is_exact or not [o for o in said if o.startswith('resume:')], (c, said)
        done, i = done + n, i + 1
