"""Trainings of any kind, stopped at random batches of training or validation, resume as if nothing had happened

The reference is the same training without a stop. Model, loaders, optimizer, hooks, metrics and plan are drawn; so are
the stops, of which a training has one to three. Each entry of the tables is drawn at least once. The learner that
resumes is another one, with other weights and random numbers, or now and then the one that was stopped.
"""
import os, random
from collections import Counter

import pytest, torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, LBFGS, RMSprop, lr_scheduler as S
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from common import (Counted, Noisy, Stream, Unsized, batches, digest, equal, make_learner, plain_model, problem,
                    shuffled, told)
from test_loss_parameters import Proxies
from test_metrics import Detection, MulticlassF1Score, as_array, both, recalls
from test_modes import Student
from trainer_nb.all import (AMP, EMA, SWA, Activations, Checkpoint, EarlyStopping, Freeze, FreezeBN, GradAccum,
                            GradClip, GradNorm, LambdaHook, LRScheduler, Metric, NaNGuard, OneCycle, ParamGroups,
                            Schedule, SeededLoader, TensorLoader, WarmupCosine, accuracy, linear)


class Estimate:
    "A loader that has another length than it says"
    def __init__(self, n): self.n, self.data = n, batches()
    def __len__(self): return self.n
    def __iter__(self): return iter(self.data)

class Drawn:
    "Batches drawn from the RNG that dropout uses, too, and a length that nobody vouches for"
    def __len__(self): return 5
    def __iter__(self):
        for _ in range(5):
            x = torch.randn(4, 4)
            yield x, x[:, :3].argmax(1)

def gen(): return torch.Generator().manual_seed(5)
def data(): return TensorDataset(*problem())
def noisy(): return Noisy(*problem())

def tied(model):
    model[2].weight = model[0].weight
    return model

MODELS = {
    'dropout': lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(.5), nn.Linear(8, 3)),
    'norm': lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    'tied': lambda: tied(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Dropout(.2), nn.Linear(4, 3))),
    'frozen teacher': Student}
EXACT = {
    'shuffled': shuffled, 'generator': lambda: shuffled(generator=gen()), 'list': batches,
    'drop_last': lambda: shuffled(drop_last=True), 'tensors': lambda: TensorLoader(*problem(), bs=5, shuffle=True),
    'own order': lambda: TensorLoader(*problem(), bs=7, shuffle=True, generator=gen()),
    'no batches': lambda: DataLoader(TensorDataset(*(o.unsqueeze(1) for o in problem())), None, shuffle=True),
    'weighted': lambda: DataLoader(data(), 5, sampler=WeightedRandomSampler(torch.arange(1., 25), 24)),
    'replacement': lambda: DataLoader(data(), 5, sampler=RandomSampler(range(24), replacement=True)),
    'noisy': lambda: DataLoader(noisy(), 5, shuffle=True),
    'seeded': lambda: SeededLoader(noisy(), 5, shuffle=True, num_workers=0)}
LOADERS = {**EXACT, 'too long': lambda: Estimate(9), 'too short': lambda: Estimate(2), 'drawn': Drawn,
           'stream': lambda: DataLoader(Stream(batches()), batch_size=None),
           'unsized': lambda: Unsized(batches())}
OPTIMIZERS = {
    'momentum': lambda p: SGD(p, lr=.05, momentum=.9), 'AdamW': lambda p: AdamW(p, lr=.01),
    'Adagrad': lambda p: Adagrad(p, lr=.05), 'RMSprop': lambda p: RMSprop(p, lr=.01, centered=True),
    'groups': lambda p: AdamW([{'params': (p := list(p))[:1], 'lr': .02}, {'params': p[1:]}], lr=.01),
    'patterns': ParamGroups({'*.bias': .02, '*': .01}, decay_norms=False),
    'LBFGS': lambda p: LBFGS(p, lr=.1, max_iter=3)}
LOSSES = {'function': nn.functional.cross_entropy, 'parameters': Proxies}
HOOKS = {
    'accumulation': lambda: GradAccum(2), 'clip': lambda: GradClip(.5), 'norm': lambda: GradNorm(weights=True),
    'average': lambda: EMA(.9), 'late average': lambda: SWA(4), 'guard': NaNGuard, 'bfloat16': AMP,
    'float16': lambda: AMP('fp16', lambda device: torch.amp.GradScaler(device, init_scale=2.**16, growth_interval=2)),
    'patience': lambda: EarlyStopping(2, monitor='train_loss'), 'activations': lambda: Activations(every=2),
    'frozen': lambda: Freeze('0'), 'statistics': FreezeBN, 'unfreeze': lambda: Freeze('0', until=1, in_eval=True),
    'record': lambda: LambdaHook(after_loss=lambda learn: learn.training
                                 and learn.record('mine', learn.loss*learn.state.batch_idx), name='Record')}
RATES = {
    '-': lambda: [], 'one cycle': lambda: [OneCycle(.1)], 'warm-up': lambda: [WarmupCosine(.1)],
    'torch': lambda: [LRScheduler(lambda opt: S.StepLR(opt, 2, .7))],
    'epoch': lambda: [LRScheduler(lambda opt: S.ExponentialLR(opt, .8), 'epoch')],
    'of a length': lambda: [LRScheduler(lambda opt, n: S.OneCycleLR(opt, .1, n + 1, cycle_momentum=False))],
    'two in a row': lambda: [LRScheduler(lambda opt: S.SequentialLR(
        opt, [S.ConstantLR(opt, .1, 2), S.ExponentialLR(opt, .9)], [2]))],
    'plateau': lambda: [Schedule(linear(1, .5)),
                        LRScheduler(lambda opt: S.ReduceLROnPlateau(opt, patience=0, threshold=.5), 'metric',
                                    'train_loss')]}
METRICS = {
    'accuracy': lambda: accuracy, 'vectors': lambda: recalls, 'dict': lambda: both,
    'classes': lambda: Metric(as_array, classes='abc'), 'object': Detection,
    'torchmetrics': lambda: Metric(MulticlassF1Score(3, average=None), name='f1')}
TABLES = {'model': MODELS, 'train': LOADERS, 'opt': OPTIMIZERS, 'loss': LOSSES, 'hook': HOOKS, 'rates': RATES,
          'metric': METRICS}

# what does not go together: two of a kind, and what cannot evaluate a loss again
APART = [{'bfloat16', 'float16'}, {'average', 'late average'}, {'frozen', 'unfreeze'}, {'LBFGS', 'accumulation'},
         {'LBFGS', 'guard'}, {'LBFGS', 'float16'}, {'frozen teacher', 'frozen'}, {'frozen teacher', 'unfreeze'}]

def draw(rand, i):
    "A training as a dict of names and numbers, with the `i`-th entry of each table"
    c = {k: ([*table][i % len(table)] if i < N else rand.choice([*table])) for k, table in TABLES.items()}
    c.update(valid=rand.choice([None, *LOADERS]), every=rand.choice(['epoch', 1, 3]), seed=rand.choice([None, 3]))
    c['hooks'] = [c['hook']]
    for o in rand.sample([*HOOKS], rand.randint(0, 4)):
        if o not in c['hooks'] and not any(o in pair and pair & {*c['hooks']} for pair in APART): c['hooks'].append(o)
    if 'statistics' in c['hooks']: c['model'] = 'norm'
    if c['train'] == 'no batches':      # BatchNorm wants two samples
        c.update(model='tied', hooks=[o for o in c['hooks'] if o != 'statistics'])
    if c['train'] == 'too short' and c['rates'] == 'of a length': c['rates'] = '-'      # torch's refuses to go on
    for a in APART:
        if len(a & {c['opt'], c['model'], c['train'], c['metric']}) and a & {*c['hooks']}:
            c['hooks'] = [o for o in c['hooks'] if o not in a]
    c['fit'] = dict(n_epochs=rand.randint(2, 3))
    has_no_length = c['train'] in ('stream', 'unsized')      # a schedule must know the number of steps
    if has_no_length or rand.random() < .3: c['fit'] = dict(max_steps=rand.randint(4, 9))
    if c['valid'] and rand.random() < .4: c['fit']['valid_every'] = rand.randint(1, 4)
    return c

N = max(map(len, TABLES.values()))

def make(c, folder, counted, seed=0):
    torch.manual_seed(11)
    random.seed(11)
    train, valid = LOADERS[c['train']](), c['valid'] and LOADERS[c['valid']]()
    model, loss = MODELS[c['model']](), LOSSES[c['loss']]
    learn = make_learner(model, train, valid, optim=OPTIMIZERS[c['opt']], seed=c['seed'],
                         metrics=METRICS[c['metric']](), loss_fn=loss() if isinstance(loss, type) else loss,
                         hooks=[*(HOOKS[o]() for o in c['hooks']), *RATES[c['rates']](),
                                Checkpoint(folder, every=c['every']), counted])
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
    todo = counted.n
    for k in range(rand.randint(1, 3) + 1):
        at = 1 if i % 2 == k == 0 else rand.randint(1, todo) if todo > 1 else 0     # 1: inside a window of two batches
        stop = Counted(at if k < 3 else None)
        if k > 1 and rand.random() < .5:
            learn.remove_hook('Counted')
            learn.add_hook(stop)
            learn.resume()
        else:
            learn = make(c, folder/'run', stop, seed=k)
            learn.fit(**c['fit'], resume=k > 0)
        n, todo = n + bool(k), todo - stop.n
        if learn.cancelled != 'stop': break
    if learn.cancelled == 'stop':
        learn = make(c, folder/'run', Counted(), seed=9)
        learn.fit(**c['fit'], resume=True)
        n += 1
    assert digest(learn) == digest(whole) and equal(left(learn), left(whole)), (c, n)
    return c, n

@pytest.mark.parametrize('n_resumes', [N, pytest.param(450, marks=pytest.mark.soak)])
def test_resumed_anywhere_is_bit_equal(n_resumes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, 'fsync', lambda fd: None)       # no power is cut here
    rand, seen, done, i = random.Random(n_resumes), Counter(), 0, 0
    while done < n_resumes or i < N:
        with told() as said: c, n = trial(rand, i, tmp_path/str(i))
        assert not [o for o in said if 'lr_scheduler.step' in o], (c, said)
        is_exact = {c['train'], c['valid']} <= {*EXACT, None}
        assert not is_exact or not [o for o in said if o.startswith('resume:')], (c, said)
        done, i = done + n, i + 1
        seen.update([c['train'], *c['hooks'], c['rates'], c['opt']])
    with capsys.disabled():
        if n_resumes > 100: print(f'\n{done} resumes of {i} trainings, all bit-equal: {dict(seen)}')

@pytest.mark.filterwarnings('ignore:resume. train_dl is a Drawn')
def test_a_batch_that_was_read_ahead_is_nobody_elses_shard(tmp_path):
    "In two processes each reads its own shard ahead"
    def learner(folder, *more):
        hooks = [GradAccum(2), Checkpoint(tmp_path/folder), *more]
        return make_learner(plain_model(), Drawn(), metrics=[accuracy], hooks=hooks)
    plain, stopped, again = learner('plain'), learner('run', Counted(1)), learner('run')
    torch.manual_seed(0)
    plain.launch(2, 2)
    torch.manual_seed(0)
    stopped.launch(2, 2)
    assert stopped.cancelled == 'stop' and stopped.state.epoch == 0 < stopped.state.batch_idx < 5
    again.launch(2, 2, resume=True)
    assert again.history.steps['train_loss'] == pytest.approx(plain.history.steps['train_loss'], rel=1e-5)
    for name in 'train_loss', 'train_accuracy':
        assert again.history.epochs[name] == pytest.approx(plain.history.epochs[name], rel=1e-5)
