"Hooks between loss and step: any order of registration gives the results of a loop by hand, and the table says why"
import contextlib, functools, math
from collections import Counter
from copy import deepcopy
from itertools import permutations

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from common import batches, make_learner, problem, record, same, weights
from test_accumulation import OPTIMS, SIZES, Pair, close, cut, d_loss, g_loss, model, optimizers, windows
from test_hooks_trace import check, logging
from test_no_sync import N_TRAIN, N_VALID, assert_allowed, cross_entropy, fit as counted_fit, in_list, raw
from trainer_nb.features.ema import EMA
from trainer_nb.features.nan_guard import NaNGuard
from trainer_nb.features.freeze import Freeze, FreezeBN
from trainer_nb.loop.hooks import CancelFit, Hook, LambdaHook
from trainer_nb.features.gradients import GradAccum, GradClip, GradNorm
from trainer_nb.features.amp import AMP
from trainer_nb.base.torch_private import light_step, opt_step

class Decay(Hook):
    "A schedule of real steps"
    def before_fit(self, learn): self.sched = torch.optim.lr_scheduler.ExponentialLR(learn.opt, .8)
    def after_step(self, learn):
        if learn.stepped: self.sched.step()

def by_hand(n_epochs=2, n=3, sizes=SIZES['wild'], clip=.1, dtype=None, decay=.9):
    "Accumulate, clip, schedule and average, in mixed precision, in one plain loop; return (model, average, norms)"
    m = model()
    opt = OPTIMS['sgd'](m.parameters())
    sched, average, norms = torch.optim.lr_scheduler.ExponentialLR(opt, .8), deepcopy(m), []
    for _ in range(n_epochs):
        data = cut(sizes)
        for i in range(0, len(data), n):
            window = data[i:i + n]
            for x, y in window:
                with torch.autocast('cpu', dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = F.cross_entropy(m(x), y)
                (loss*(len(x)/len(window[0][0]))).backward()
            for p in m.parameters(): p.grad /= sum(len(o) for o, _ in window)/len(window[0][0])
            norms.append(nn.utils.clip_grad_norm_(m.parameters(), clip).item())
            opt.step()
            opt.zero_grad()
            sched.step()
            with torch.no_grad():
                for a, p in zip(average.parameters(), m.parameters()): a.copy_(decay*a + (1 - decay)*p)
    return m, average, norms

ALL = {'GradAccum': lambda: GradAccum(3), 'GradClip': lambda: GradClip(.1), 'EMA': lambda: EMA(.9, warmup=False),
       'GradNorm': GradNorm, 'NaNGuard': NaNGuard}

@pytest.mark.parametrize('dtype', [None, torch.bfloat16], ids=['float32', 'bfloat16'])
def test_all_orders_of_registration(dtype):
    "And twice `fit(1)` is the same as `fit(2)`; in float32 the loop by hand is that of the big batches"
    m, average, norms = by_hand(dtype=dtype)
    if dtype is None:
        big = by_hand(n=1, sizes=windows(SIZES['wild'], 3))
        assert close(m, big[0]) and close(average, big[1]) and norms == pytest.approx(big[2], abs=1e-6)
    made = {**{k: f for k, f in ALL.items() if k != 'NaNGuard'},
            **({'AMP': lambda: AMP(dtype)} if dtype else {'NaNGuard': NaNGuard})}
    first = None
    for order in [*permutations(made)][::7]:
        learn = make_learner(model(), cut(SIZES['wild']), optim=OPTIMS['sgd'],
                             hooks=[Decay(), *[made[o]() for o in order]])
        learn.get_hook('Decay').before_fit(learn)
        learn.get_hook('Decay').before_fit = lambda learn: None     # one schedule over both fits
        for _ in range(2): learn.fit(1)
        found = [*weights(learn.model),
                 *weights(learn.ema.model)], [o for o in learn.history.steps['grad_norm'] if o == o]
        if first is None:
            first = found
            assert close(learn.model, m) and close(learn.ema.model, average)
            assert found[1] == pytest.approx(norms, abs=1e-6)
            assert learn.state.optimizer_step == 4 == learn.ema.n
            assert learn.opt.param_groups[0]['lr'] == pytest.approx(.1*.8**4)
        assert same(found[0], first[0]) and found[1] == first[1], order

def two_losses(batch, learn):
    yield 'd', d_loss(learn.model, batch[0])
    yield 'g', g_loss(learn.model, batch[0])

@pytest.mark.parametrize('n_optimizers', [1, 2])
@pytest.mark.parametrize('names', [*[*permutations(['GradAccum', 'GradClip', 'EMA', 'AMP'])][::4], tuple(ALL),
                                   tuple(ALL)[::-1]], ids='-'.join)
def test_trace_equals_table(names, n_optimizers):
    log, made = [], {'GradAccum': (GradAccum, 2), 'GradClip': (GradClip, 1.), 'EMA': (EMA, .9), 'AMP': (AMP,),
                     'GradNorm': (GradNorm,), 'NaNGuard': (NaNGuard,)}
    hooks = [logging(made[o][0], log)(*made[o][1:]) for o in names]
    if n_optimizers == 1: learn = make_learner(model(), batches(), batches(), hooks=hooks)
    else:
        m = Pair()
        learn = make_learner(m, batches(), batches(), train_step=two_losses, eval_step=lambda batch, learn: {},
                             optim=optimizers(m), hooks=hooks)
    learn.fit(2)
    check(learn, log)
    order = [r.hook for r in learn.describe_hooks().rows if r.point == 'do_opt_step']
    assert order == [o for o in ('GradAccum', 'AMP', 'NaNGuard', 'GradNorm', 'GradClip') if o in names]


# Steps that a scaler skips

class Fake:
    "A scaler that skips some steps, and looks at nothing"
    def __init__(self, skips): self.skips, self.n, self.log = skips, 0, []
    def scale(self, loss): return loss*8
    def unscale_(self, opt):
        self.log.append('unscale')
        for g in opt.param_groups:
            for p in g['params']:
                if p.grad is not None: p.grad /= 8
    def step(self, opt):
        self.n += 1
        return None if self.n in self.skips else opt.step()
    def update(self): self.log.append('update')
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.n = state['n']

@pytest.mark.parametrize('n', [1, 2])
def test_a_skipped_step_is_none(n):
    "Schedule, average, counter, clipping and norms do not move; the window is gone"
    fake, data = Fake({1, 3}), cut([4]*6)
    clip, seen = GradClip(.1), []
    learn = make_learner(model(), data, optim=OPTIMS['sgd'],
                         hooks=[Decay(), EMA(.9, warmup=False), clip, GradNorm(),
                                AMP('fp16', scaler=lambda device: fake), GradAccum(n),
                         LambdaHook(after_step=lambda learn: seen.append(learn.stepped), ord=9)])
    learn.fit(1)
    expected = [i % n == n - 1 and i//n + 1 not in fake.skips for i in range(6)]
    assert seen == expected and learn.state.optimizer_step == sum(expected) == learn.ema.n
    assert learn.opt.param_groups[0]['lr'] == pytest.approx(.1*.8**sum(expected))
    assert fake.log == ['unscale', 'update']*(6//n)
    assert [o == o for o in learn.history.steps['grad_norm']] == expected
    m, average, _ = hand_with_skips(n, fake.skips)
    # in half precision
    assert all(torch.allclose(a, b, atol=2e-3) for a, b in zip(weights(learn.model) + weights(learn.ema.model),
                                                               weights(m) + weights(average)))

def hand_with_skips(n, skips):
    m = model()
    opt = OPTIMS['sgd'](m.parameters())
    average, sched = deepcopy(m), torch.optim.lr_scheduler.ExponentialLR(opt, .8)
    for i, (x, y) in enumerate(cut([4*n]*(6//n))):
        F.cross_entropy(m(x), y).backward()
        if i + 1 not in skips:
            nn.utils.clip_grad_norm_(m.parameters(), .1)
            opt.step()
            sched.step()
            with torch.no_grad():
                for a, p in zip(average.parameters(), m.parameters()): a.copy_(.9*a + .1*p)
        opt.zero_grad()
    return m, average, None

def test_the_real_scaler_overflows_and_recovers():
    def scaler(device): return torch.amp.GradScaler(device, init_scale=2.**40)
    stepped = []
    learn = make_learner(model(), cut([4]*6), optim=OPTIMS['sgd'],
                         hooks=[AMP(torch.float16, scaler=scaler), EMA(),
                                LambdaHook(after_step=lambda learn: stepped.append(learn.stepped))])
    learn.fit(10)
    assert not stepped[0] and stepped[-1] and stepped == sorted(stepped)
    assert learn.state.optimizer_step == sum(stepped) == learn.ema.n
    assert all(o.isfinite().all() for o in weights(learn.model))

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_each_optimizer_has_its_scale():
    "One that overflows for ever does not touch the other one's; a loss that both share has one scale"
    m = Pair()
    learn = make_learner(m, batches(), train_step=lambda batch, learn: scaled(learn, batch), optim=optimizers(m),
                         hooks=[AMP('fp16', scaler=lambda d: torch.amp.GradScaler(d, init_scale=256.)), GradAccum(2)])
    def scaled(learn, batch):
        yield 'd', d_loss(learn.model, batch[0])*math.inf
        yield 'g', g_loss(learn.model, batch[0])
    learn.fit(1)
    scalers = learn.get_hook('AMP').scalers
    assert scalers['g'].get_scale() == 256 and scalers['d'].get_scale() == 32 and learn.state.optimizer_step == 3
    m = Pair()
    learn = make_learner(m, batches(), train_step=lambda batch, learn: {'loss': d_loss(learn.model, batch[0])},
                         optim=optimizers(m),
                         hooks=[AMP('fp16', scaler=lambda d: torch.amp.GradScaler(d, init_scale=256.,
                                                                                  growth_interval=1))])
    learn.fit(1)
    assert {name: o.get_scale() for name, o in learn.get_hook('AMP').scalers.items()} == {'d': 256*2**5, 'g': 256}
    assert learn.state.optimizer_step == 5
    assert all(o.isfinite().all() for o in weights(m))

def test_scalers_in_a_checkpoint():
    hook = AMP('fp16', scaler=lambda d: torch.amp.GradScaler(d, init_scale=256., growth_interval=4))
    learn = make_learner(model(), batches(), optim=OPTIMS['sgd'], hooks=[hook])
    assert hook.state_dict() == {'scalers': {}, 'shared': {}}
    learn.fit(2)
    state = deepcopy(hook.state_dict())
    other = AMP('fp16')
    other.load_state_dict(state)                # before its scalers are there
    assert other.state_dict() == state
    other.scaler = hook.scaler
    rest = [make_learner(deepcopy(learn.model), batches(), optim=OPTIMS['sgd'], hooks=[h]) for h in (hook, other)]
    for o in rest: o.fit(1)
    assert hook.state_dict() == other.state_dict() != state and same(weights(rest[0].model), weights(rest[1].model))
    hook.load_state_dict({'scalers': {}, 'shared': {}})
    assert not hook.scalers                     # as before the first fit

def test_half_precision_where_there_is_none(monkeypatch):
    with pytest.raises(ValueError, match='not for the CPU'): make_learner(hooks=[AMP(torch.float16)]).fit(1)
    monkeypatch.setattr(torch.amp, 'is_autocast_available', lambda device: False)
    with pytest.raises(ValueError, match='no mixed precision on cpu'): make_learner(hooks=[AMP()]).fit(1)

def test_mixed_precision_in_validation_and_prediction():
    learn = make_learner(model(), batches(), batches(), hooks=[AMP()])
    assert learn.predict(batches()).dtype == torch.bfloat16
    learn.fit(1)
    assert all(p.dtype == torch.float32 for p in learn.model.parameters())
    assert learn.validate()['valid_loss'] == learn.history.epochs['valid_loss'][-1]


# The average

def closed_form(steps, decays):
    "Every state of the weights times its share"
    shares = [math.prod(decays[i:])*(1 - decays[i - 1] if i else 1) for i in range(len(steps))]
    return [sum(s*o[i].double() for s, o in zip(shares, steps)) for i in range(len(steps[0]))]

class Normed(nn.Module):
    "Shared and frozen weights, a BatchNorm, a buffer that is no number"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.bn, self.b, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight
        self.a.bias.requires_grad_(False)
        self.register_buffer('count', torch.zeros((), dtype=torch.int64))
    def forward(self, x):
        if self.training: self.count += 3
        return self.head(self.b(self.bn(self.a(x))))

@pytest.mark.parametrize('n', [1, 2])
@pytest.mark.parametrize('warmup', [False, True])
def test_average_in_closed_form(n, warmup):
    steps = []
    def note(learn): steps.append([o.detach().clone() for o in [*learn.model.parameters(), *learn.model.buffers()]])
    learn = make_learner(Normed(), batches(), batches(), optim=OPTIMS['sgd'], hooks=[EMA(.8, warmup), GradAccum(n),
                         LambdaHook(after_step=lambda learn: note(learn) if learn.stepped
                                    and learn.training else None)])
    note(learn)
    for _ in range(2): learn.fit(2)
    ema, n_steps = learn.ema, 4*len(windows([1]*5, n))
    assert ema.n == learn.state.optimizer_step == n_steps == len(steps) - 1
    found = [*ema.model.parameters(), *ema.model.buffers()]
    for a, b, last in zip(found,
                          closed_form(steps, [min(.8, (1 + i)/(10 + i)) if warmup else .8 for i in range(n_steps)]),
                          steps[-1]):
        assert torch.allclose(a.double(), b, atol=1e-6) if a.is_floating_point() else torch.equal(a, last)
    assert ema.model.b.weight is ema.model.a.weight and torch.equal(ema.model.a.bias, learn.model.a.bias)
    assert not any(p.requires_grad for p in ema.model.parameters()) and not ema.model.training

class Boom(Exception): pass

@pytest.mark.parametrize('where', ['before_step', 'do_step', 'after_pred', 'after_loss', 'after_step'])
@pytest.mark.parametrize('how', [Boom, KeyboardInterrupt, CancelFit, 'stop'])
def test_the_live_model_is_back(where, how):
    def f(learn, *nxt):
        if not learn.training:
            if how == 'stop': learn.stop()
            else: raise how
        return nxt and nxt[0]()
    for ord in -99, 99:
        learn = make_learner(model(), batches(), batches(), hooks=[EMA(.5), LambdaHook(**{where: f}, ord=ord)])
        live = learn.model
        try: learn.fit(1)
        except (Boom, KeyboardInterrupt): pass
        assert learn.model is live is not learn.ema.model and learn.ema.n == 5
        assert all(m.training for m in live.modules())

def test_the_live_model_is_back_after_a_validation_besides_fit():
    learn = make_learner(model(), batches(), batches(), hooks=[EMA(.5)])
    live = learn.model
    learn.fit(1)
    for f in lambda: learn.validate([(torch.ones(2, 5), torch.zeros(2))]), lambda: learn.predict(torch.ones(2, 5)):
        with pytest.raises(RuntimeError, match='shapes'): f()
        assert learn.model is live

def test_validation_sees_the_average_and_hooks_the_live_model():
    seen = []
    def step(batch, learn):
        seen.append((learn.training, learn.model))
        return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1]), 'pred': learn.model(batch[0])}
    learn = make_learner(model(), batches(), batches(), train_step=step,
                         hooks=[EMA(.5), LambdaHook(after_loss=lambda learn: seen.append((True, learn.model)))])
    learn.fit(1)
    learn.validate()
    torch.testing.assert_close(learn.predict(batches()), learn.ema.model(problem()[0]).detach())
    assert all(m is (learn.model if training else learn.ema.model) for training, m in seen)

def test_average_in_a_checkpoint():
    def run(m, ema, n): 
        learn = make_learner(m, batches(), optim=lambda p: torch.optim.SGD(p, .1), hooks=[ema])
        learn.fit(n)
        return learn
    first = run(model(), EMA(.8), 1)
    state, weights_then = deepcopy(first.ema.state_dict()), deepcopy(first.model)
    other = EMA(.8)
    other.load_state_dict(state)
    run(weights_then, other, 1)
    first.fit(1)
    assert same(weights(first.ema.model), weights(other.model)) and first.ema.n == other.n == 10
    other.load_state_dict(state)
    assert same(list(state['model'].values()), weights(other.model)) and other.n == 5
    other.load_state_dict({'n': 0, 'model': None})
    assert other.model is None
    with pytest.raises(ValueError, match='its tensors have changed'): run(Normed(), deepcopy(first.ema), 1)
    with pytest.raises(ValueError, match='another model'): run(model(), first.remove_hook('EMA'), 1)
    with pytest.raises(RuntimeError, match='state_dict'):
        other.load_state_dict(state)
        run(Normed(), other, 1)

def test_an_average_that_was_never_updated_is_the_model():
    "Weights that are loaded before the first step are what is validated"
    learn = make_learner(model(), batches(), batches(), hooks=[EMA()])
    with pytest.raises(Boom): learn.fit(1, hooks=[LambdaHook(before_step=lambda learn: (_ for _ in ()).throw(Boom()))])
    learn.model.load_state_dict({k: o + 1 for k, o in learn.model.state_dict().items()})
    def equal(learn):
        for a, b in zip(weights(learn.ema.model), weights(learn.model)): torch.testing.assert_close(a, b)
    learn.fit(1, hooks=[LambdaHook(before_fit=equal, ord=9)])


# Norms

def test_norms_per_optimizer():
    m = Pair()
    def step(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])
        if learn.state.batch_idx % 2: yield 'g', g_loss(learn.model, batch[0])
    learn = make_learner(m, batches(), train_step=step, optim=optimizers(m),
                         hooks=[GradNorm(weights=True), GradClip({'d': .01})])
    learn.fit(1)
    hand, steps = Pair(), learn.history.steps
    opts, norms = optimizers(hand), {'d': [], 'g': []}
    for i, (x, _) in enumerate(batches()):
        for name, loss in ('d', d_loss), ('g', g_loss):
            if name == 'g' and not i % 2:
                norms[name].append(math.nan)
                continue
            params = [p for g in opts[name].param_groups for p in g['params']]
            for p, g in zip(params, torch.autograd.grad(loss(hand, x), params)): p.grad = g
            norms[name].append(nn.utils.clip_grad_norm_(params, .01 if name == 'd' else math.inf).item())
            opts[name].step()
    assert same(weights(m), weights(hand))
    for name in 'dg':
        assert steps[f'grad_norm_{name}'] == pytest.approx(norms[name], rel=1e-6, nan_ok=True) and f'lr_{name}' in steps
        norm = torch.cat([p.flatten() for p in getattr(hand, name).parameters()]).norm().item()
        assert [o for o in steps[f'weight_norm_{name}'] if o == o][-1] == pytest.approx(norm, rel=1e-6)
    assert learn.get_hook('GradClip').norms['d'].item() == pytest.approx(norms['d'][-1])

def test_what_hooks_record_stands_beside_its_batch():
    "Over more batches than are packed together, with cancelled ones, and looks in the middle"
    from trainer_nb.loop.hooks import CancelStep
    def record_it(learn):
        i = learn.state.batch_idx
        if i % 3 == 0: learn.record('i', float(i))
        if i % 3 == 1: learn.record('t', torch.tensor(i))
        if i % 100 == 7: raise CancelStep
        if i % 90 == 3: assert len(learn.history.steps['train_loss']) <= i
    learn = make_learner(nn.Linear(4, 3), in_list(N_TRAIN), hooks=[LambdaHook(after_loss=record_it)])
    learn.fit(1)
    kept = [i for i in range(N_TRAIN) if i % 100 != 7]
    steps = learn.history.steps
    assert str(steps['i']) == str([float(i) if i % 3 == 0 else math.nan for i in kept])
    assert str(steps['t']) == str([float(i) if i % 3 == 1 else math.nan for i in kept])
    learn.record('i', 1.)           # outside of a fit there is no batch
    with pytest.raises(ValueError, match='name of a column'):
        learn.fit(1, hooks=[LambdaHook(after_loss=lambda learn: learn.record('lr', 1.))])


# NaN

OPTS = {'sgd': lambda p: torch.optim.SGD(p, .1), 'momentum': OPTIMS['sgd'],
        'adamw': lambda p: torch.optim.AdamW(p, .01), 'fused': lambda p: torch.optim.Adam(p, .01, fused=True),
        'foreach': lambda p: torch.optim.Adam(p, .01, foreach=True, amsgrad=True),
        'rmsprop': lambda p: torch.optim.RMSprop(p, .01), 'nadam': lambda p: torch.optim.NAdam(p, .01)}

class Norm2(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.bn, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    def forward(self, x): return self.head(self.bn(self.body(x)))

def spoiler(what, i):
    "A hook that spoils one thing in the training batch after `i` others"
    n = [0]
    def f(learn):
        if not learn.training: return
        n[0] += 1
        if n[0] - 1 != i: return
        if what == 'batch':
            learn.batch = [learn.batch[0].clone(), learn.batch[1]]
            learn.batch[0][1, 2] = math.nan
        if what == 'loss': learn.loss = learn.loss*math.inf
        if what == 'gradient': learn.model.head.bias.grad[1] = -math.inf
    return LambdaHook(**{{'batch': 'before_step', 'loss': 'after_loss', 'gradient': 'after_backward'}[what]: f},
                      ord=-99)

SAYS = {'batch': r'the loss is not finite in {}.*batch\[0\], .* in batch {}, holds nan',
        'loss': 'the loss is not finite in {}', 'gradient': 'the gradient of head.bias is not finite in {}'}

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
@pytest.mark.parametrize('optim', OPTS.values(), ids=OPTS)
@pytest.mark.parametrize('what', SAYS)
@pytest.mark.parametrize('i', [0, 7])
@pytest.mark.parametrize('every', [1, 100])
def test_the_guard_keeps_the_last_good_step(optim, what, i, every):
    learn = make_learner(Norm2(), batches(), optim=optim,
                         hooks=[NaNGuard(every), spoiler(what, i), GradClip(1.), EMA()])
    says = SAYS[what].format(f'epoch {i//5}, batch {i % 5}, after {i} optimizer steps', i % 5)
    with pytest.raises(FloatingPointError, match=says): learn.fit(4)
    good = make_learner(Norm2(), batches(), optim=optim, hooks=[GradClip(1.)])
    if i: good.fit(max_steps=i)
    assert same(weights(learn.model), weights(good.model)) and learn.state.optimizer_step == i
    for p, q in zip(learn.model.parameters(), good.model.parameters(), strict=True):
        a, b = learn.opt.state.get(p, {}), good.opt.state.get(q, {})
        assert a.keys() == b.keys() or not any(o.any() for o in a.values())     # a fused optimizer has made its zeros
        assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in b if b[k] is not None)
    assert all(o.isfinite().all() for o in weights(learn.ema.model))
    learn.fit(1)            # training can continue
    assert all(o.isfinite().all() for o in weights(learn.model))

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_the_guard_before_validation_and_at_a_stop():
    for kwargs in dict(valid_dl=batches()), dict():
        seen = []
        hooks = [NaNGuard(), spoiler('loss', 3),
                 LambdaHook(before_valid=lambda learn: seen.append(1),
                            after_step=lambda learn: learn.stop() if learn.state.batch_idx == 4
                            and 'valid_dl' not in kwargs else None)]
        with pytest.raises(FloatingPointError, match='batch 3'):
            make_learner(Norm2(), batches(), hooks=hooks, **kwargs).fit(2)
        assert not seen

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_the_guard_in_a_window_names_the_batch():
    learn = make_learner(Norm2(), batches(), optim=OPTIMS['sgd'], hooks=[NaNGuard(), GradAccum(2), spoiler('batch', 2)])
    with pytest.raises(FloatingPointError, match='epoch 0, batch 2, after 1 optimizer steps'): learn.fit(1)
    good = make_learner(Norm2(), batches(), optim=OPTIMS['sgd'], hooks=[GradAccum(2)])
    good.fit(max_steps=1)
    assert same(weights(learn.model), weights(good.model))

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_the_guard_of_two_optimizers():
    m = Pair()
    def step(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])
        yield 'g', g_loss(learn.model, batch[0])*(math.nan if learn.state.batch_idx == 2 else 1)
    learn = make_learner(m, batches(), train_step=step, optim=optimizers(m), hooks=[NaNGuard()])
    with pytest.raises(FloatingPointError,
                       match="the loss of 'g' is not finite in epoch 0, batch 2, after 2 optimizer steps"):
        learn.fit(1)
    good = Pair()
    ref = make_learner(good, batches()[:3], train_step=lambda batch, learn: two_or_one(batch, learn),
                       optim=optimizers(good))
    def two_or_one(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])
        if learn.state.batch_idx < 2: yield 'g', g_loss(learn.model, batch[0])
    ref.fit(1)
    assert same(weights(m), weights(good))

def test_a_cancelled_batch_is_not_the_guards_business():
    from trainer_nb.loop.hooks import CancelStep
    def cancel(learn):
        if learn.state.batch_idx == 2: raise CancelStep
    learn = make_learner(nn.Linear(4, 3), batches(),
                         hooks=[NaNGuard(), spoiler('loss', 2), LambdaHook(after_loss=cancel, ord=99)])
    learn.fit(1)
    assert learn.state.optimizer_step == 4

def test_infinite_masks_are_no_failure():
    def step(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]) + batch[2], batch[1])}
    data = [(x, y, torch.full((len(x), 3), -math.inf).scatter(1, y[:, None], 0.)) for x, y in batches()]
    make_learner(nn.Linear(4, 3), data, train_step=step, hooks=[NaNGuard(1)]).fit(1)

def test_the_guard_changes_nothing():
    for optim in OPTS.values():
        a, b = (make_learner(Norm2(), batches(), batches(), optim=optim, hooks=hooks) for hooks in ([NaNGuard(2)], []))
        for learn in a, b: learn.fit(3)
        assert same(weights(a.model), weights(b.model)) and record(a) == record(b)


# Nothing is read

@pytest.mark.parametrize('names, optim', [(['NaNGuard'], torch.optim.SGD), (['NaNGuard'], torch.optim.AdamW),
                                          ([*ALL], torch.optim.AdamW)])
def test_no_value_is_read(names, optim, monkeypatch):
    "Only the guard does, once in a hundred batches"
    monkeypatch.setattr('trainer_nb.features.nan_guard.perf_counter', lambda: 0.)
    m = nn.Linear(4, 3)
    allowed = raw(m, optim(m.parameters(), lr=.01, fused=True), in_list, cross_entropy)
    if 'GradAccum' in names: allowed = Counter({k: n//3 for k, n in allowed.items()})       # the optimizer's own reads
    seen = counted_fit(make_learner(nn.Linear(4, 3), in_list(N_TRAIN), in_list(N_VALID), optim=optim, lr=.01,
                                    hooks=[ALL[o]() for o in names]))
    if 'NaNGuard' in names: seen.subtract(dict.fromkeys(['__int__', '_local_scalar_dense'], 2*N_TRAIN//100))
    assert_allowed(seen, allowed)


# Two networks, bit for bit

@pytest.mark.parametrize('n_critic', [1, 3])
@pytest.mark.parametrize('clip', [None, {'d': .05, 'g': .02}], ids=['', 'clip'])
def test_fifty_steps_of_a_gan(n_critic, clip):
    class GAN(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.g = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
            self.d = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(.2), nn.Dropout(.3), nn.Linear(8, 1))
    def adam(m):
        return {'d': torch.optim.Adam(m.d.parameters(), 1e-2, betas=(.5, .999)),
                'g': torch.optim.Adam(m.g.parameters(), 1e-2, betas=(.5, .999))}
    bce = F.binary_cross_entropy_with_logits
    def losses(m, x, i):
        fake = m.g(torch.randn(len(x), 2))
        yield 'd', bce(m.d(x), torch.ones(len(x), 1)) + bce(m.d(fake.detach()), torch.zeros(len(x), 1))
        if i % n_critic == n_critic - 1: yield 'g', bce(m.d(m.g(torch.randn(len(x), 2))), torch.ones(len(x), 1))
    data = [(x,) for x in problem(250)[0].split(5)]
    assert len(data) == 50
    hand = GAN()
    opts, rows = adam(hand), {'d': [], 'g': []}
    torch.manual_seed(1)
    for i, (x,) in enumerate(data):
        for name, loss in losses(hand, x, i):
            for opt in opts.values(): opt.zero_grad()
            loss.backward()
            if clip: nn.utils.clip_grad_norm_(getattr(hand, name).parameters(), clip[name])
            opts[name].step()
            rows[name].append(loss.item())
    m = GAN()
    learn = make_learner(m, data,
                         train_step=lambda batch, learn: losses(learn.model, batch[0], learn.state.batch_idx),
                         optim=adam(m), hooks=[GradClip(clip)] if clip else [])
    torch.manual_seed(1)
    learn.fit(1)
    assert same(weights(m), weights(hand))
    assert {name: [o for o in learn.history.steps[f'train_loss_{name}'] if o == o] for name in 'dg'} == rows


# Frozen

def test_freeze_is_for_the_time_of_a_fit():
    learn = make_learner(Norm2(), batches(), optim=lambda p: torch.optim.SGD(p, .1, weight_decay=.1), hooks=[])
    learn.model.head.bias.requires_grad_(False)
    before = {k: o.clone() for k, o in learn.model.state_dict().items()}
    learn.fit(1, hooks=[Freeze('body', 'bn.w*'), FreezeBN()])
    changed = {k for k, o in learn.model.state_dict().items() if not torch.equal(o, before[k])}
    assert changed == {'bn.bias', 'head.weight'}
    assert [k for k, p in learn.model.named_parameters() if not p.requires_grad] == ['head.bias']
    learn.fit(1)
    assert not torch.equal(learn.model.body.weight, before['body.weight']) and learn.model.bn.num_batches_tracked == 5

@pytest.mark.parametrize('n', [2, 5, 7])
def test_frozen_after_a_stop(n):
    def run(*hooks):
        learn = make_learner(Norm2(), batches(), batches(), optim=OPTIMS['sgd'],
                             hooks=[Freeze('body'), FreezeBN(), *hooks])
        learn.fit(2)
        return learn
    whole, count = run(), [0]
    def stop(learn):
        count[0] += learn.training
        if count[0] == n and learn.training: learn.stop()
    learn = run(LambdaHook(after_step=stop))
    assert all(p.requires_grad for p in learn.model.parameters())
    learn.resume()
    assert same(weights(learn.model), weights(whole.model)) and learn.model.bn.num_batches_tracked == 0

def test_an_error_thaws():
    learn = make_learner(Norm2(), batches())
    for hooks in [Freeze('body', 'nothing')], [Freeze('*')], [Freeze('body'), LambdaHook(after_loss=lambda learn: 1/0)]:
        with pytest.raises((ValueError, ZeroDivisionError)): learn.fit(1, hooks=hooks)
        assert all(p.requires_grad for p in learn.model.parameters())


# Bad input

@pytest.mark.parametrize('make, error, words', [
    (lambda: GradAccum(0), ValueError, 'expected 1 or more'), (lambda: GradAccum(2.5), TypeError, 'whole number'),
    (lambda: GradClip(-1.), ValueError, 'above 0'), (lambda: GradClip(value=0), ValueError, 'above 0'),
    (lambda: GradClip(math.nan), ValueError, 'above 0'),
    (lambda: GradClip(1., value=1.), ValueError, 'either a norm or a value'),
    (lambda: GradClip({'d': -1}), ValueError, 'above 0'),
    (lambda: EMA(0.), ValueError, 'between 0 and 1'), (lambda: EMA(1.), ValueError, 'between 0 and 1'),
    (lambda: EMA(math.nan), ValueError, 'between 0 and 1'),
    (lambda: AMP(torch.float64), ValueError, 'bfloat16'), (lambda: AMP('half'), ValueError, 'bfloat16'),
    (lambda: NaNGuard(0), ValueError, '1 or more'),
    (lambda: Freeze(), TypeError, 'names'), (lambda: Freeze(nn.Linear(1, 1)), TypeError, 'names')])
def test_bad_arguments(make, error, words):
    with pytest.raises(error, match=words): make()

@pytest.mark.parametrize('hook, words', [(lambda: GradClip({'gen': 1.}), "there are ''"),
                                         (lambda: Freeze('boddy'), 'Did you mean `body`'), (lambda: FreezeBN(), None)])
def test_bad_names(hook, words):
    learn = make_learner(Norm2(), batches())
    if words is None: learn = make_learner(model(), batches())
    before = weights(learn.model)
    with pytest.raises(ValueError, match=words or 'no BatchNorm'): learn.fit(1, hooks=[hook()])
    assert same(weights(learn.model), before)

def test_each_only_once():
    for cls in GradAccum, GradClip, AMP, EMA, NaNGuard, GradNorm, FreezeBN, Freeze:
        args = {GradAccum: (2,), GradClip: (1.,), Freeze: ('*',)}.get(cls, ())
        with pytest.raises(ValueError, match='already'): make_learner(hooks=[cls(*args), cls(*args)])


# The step without the label for the profiler

def decorated(f):
    @functools.wraps(f)
    def g(self, *args, **kwargs):
        self.seen = 'seen'
        return f(self, *args, **kwargs)
    return g

class Decorated(torch.optim.SGD): step = decorated(torch.optim.SGD.step)

class Twice(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        super().step()

def stepped(kind=torch.optim.SGD, around=lambda opt: contextlib.nullcontext(), step=opt_step):
    "(weights after two steps, what was seen)"
    w = torch.arange(3.).requires_grad_()
    opt = kind([w], lr=.1)
    opt.seen = ''
    with around(opt):
        for _ in range(2):
            w.grad = torch.ones(3)
            step(opt)
    return w.tolist(), opt.seen

@contextlib.contextmanager
def hooked(register, seen):
    handle = register(lambda opt, *args: setattr(opt, 'seen', opt.seen + seen))
    try: yield
    finally: handle.remove()

@contextlib.contextmanager
def patched(opt):
    step = opt.step
    def both():
        opt.seen += 'patched '
        step()
    opt.step = both
    yield

AROUND = {'pre': lambda opt: hooked(opt.register_step_pre_hook, 'pre '),
          'post': lambda opt: hooked(opt.register_step_post_hook, 'post '), 'patched': patched,
          'global pre': lambda opt: hooked(register_optimizer_step_pre_hook, 'global pre '),
          'global post': lambda opt: hooked(register_optimizer_step_post_hook, 'global post ')}

@pytest.mark.parametrize('name', AROUND)
def test_whoever_listens_to_a_step_hears_it(name): assert stepped(around=AROUND[name])[1] == 2*f'{name} '

@pytest.mark.parametrize('kind', [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, Twice, Decorated])
def test_the_step_is_the_optimizers(kind):
    assert stepped(kind) == stepped(kind, step=lambda opt: opt.step())

class Asks(torch.optim.SGD):
    def _init_group(self, *args):
        self.seen.append(torch.is_grad_enabled())
        if len(self.seen) > 1: raise ValueError('the second step fails')
        return super()._init_group(*args)

class Plain(torch.optim.SGD):
    def step(self, closure=None): self.seen.append(torch.is_grad_enabled())

@pytest.mark.parametrize('kind, differentiable, mode', [(Asks, False, False), (Asks, True, True), (Plain, False, True)])
def test_gradients_are_on_in_a_step_as_torch_has_it(kind, differentiable, mode):
    w = torch.ones(1, requires_grad=True)
    opt = kind([w], lr=.1, differentiable=differentiable)
    opt.seen, w.grad = [], None
    opt_step(opt)
    assert opt.seen == [mode] and torch.is_grad_enabled() and light_step(kind.step)
    if kind is Plain: return
    with pytest.raises(ValueError, match='second'): opt_step(opt)
    assert torch.is_grad_enabled()

def test_the_label_is_there_for_the_profiler_only(monkeypatch):
    labels, real = [], torch.autograd.profiler.record_function
    class Spy(real):
        def __init__(self, name, *args):
            labels.append(name)
            super().__init__(name, *args)
    monkeypatch.setattr(torch.autograd.profiler, 'record_function', Spy)
    stepped()
    assert not labels
    with torch.profiler.profile() as p: stepped()
    assert labels == ['Optimizer.step#SGD.step']*2 and sum(o.count for o in p.key_averages() if o.key == labels[0]) == 2

def test_a_shared_scale_moves_although_the_last_optimizer_has_no_gradient():
    m = Pair()
    learn = make_learner(m, batches(), train_step=lambda batch, learn: {'loss': d_loss(learn.model, batch[0])},
                         optim=dict(sorted(optimizers(m).items())),
                         hooks=[AMP('fp16', scaler=lambda d: torch.amp.GradScaler(d, init_scale=256.,
                                                                                  growth_interval=1)),
                                LambdaHook(after_backward=only('d'))])
    learn.fit(1)
    assert learn.get_hook('AMP').scalers['d'].get_scale() == 256*2**5 and learn.state.optimizer_step == 5

def only(name):
    def f(learn):
        for other, opt in learn.opts.items():
            if other != name: opt.zero_grad()
    return f

def of_old_parameters(params):
    "SGD that was used for other parameters before"
    opt = torch.optim.SGD(params, .01, momentum=.9)
    for _ in range(2): opt.state[nn.Parameter(torch.zeros(1))] = {'momentum_buffer': torch.zeros(1)}
    return opt

@pytest.mark.parametrize('optim', [
    lambda p: torch.optim.SGD(p, .01, momentum=.9, fused=True), lambda p: torch.optim.SGD(p, .01, momentum=.9),
    lambda p: torch.optim.AdamW(p, .01, fused=True), of_old_parameters],
    ids=['fused SGD', 'SGD', 'AdamW', 'used before'])
def test_a_first_step_that_is_not_finite_makes_no_state(optim):
    "A fused step that is skipped leaves memory that nobody has written"
    bad = [(torch.full((4, 4), math.nan), torch.zeros(4, dtype=torch.long))]
    learn = make_learner(model(), bad + cut([4]*6), optim=optim, hooks=[NaNGuard()])
    with pytest.raises(FloatingPointError): learn.fit(1)
    assert not {*learn.opt.state} & {*learn.model.parameters()}
    learn.train_dl = cut([4]*6)
    learn.fit(1)
    plain = make_learner(model(), cut([4]*6), optim=optim)
    plain.fit(1)
    assert same(weights(learn.model), weights(plain.model))

@pytest.mark.parametrize('hooks', [(), (GradAccum(2),)], ids=['plain', 'accumulated'])
def test_one_loss_for_optimizers_that_share_a_parameter_is_refused(hooks):
    "The second one would find no gradient"
    m = Pair()
    opts = {'a': torch.optim.SGD(m.parameters(), .1), 'b': torch.optim.SGD([*m.parameters()][:1], .1)}
    before = weights(m)
    def one(batch, learn): return {'loss': d_loss(m, batch[0])}
    with pytest.raises(ValueError, match="optimizers 'a' and 'b' share a parameter"):
        make_learner(m, batches(), train_step=one, optim=opts, hooks=hooks).fit(1)
    assert same(weights(m), before)
    def each(batch, learn):
        yield 'a', d_loss(m, batch[0])
        yield 'b', d_loss(m, batch[0])
    make_learner(m, batches(), train_step=each, optim=opts, hooks=hooks).fit(1)
    assert not same(weights(m), before)
