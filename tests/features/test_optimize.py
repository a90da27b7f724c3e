"Hooks between loss and step: any order of registration gives the results of a loop by hand, and the table says why"
import functools, math
from collections import Counter
from copy import deepcopy
from itertools import permutations

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from common import batches, make_learner, same, stop_when, weights
from test_average import normed
from test_accumulation import OPTIMS, SIZES, Pair, close, cut, d_loss, g_loss, model, optimizers, windows
from test_no_sync import N_TRAIN, N_VALID, allowed_reads, assert_allowed, fit as counted_fit, in_list
from trainer_nb.all import AMP, CancelStep, EMA, Freeze, GradAccum, GradClip, GradNorm, Hook, LambdaHook, NaNGuard

class Decay(Hook):
    "A schedule of real steps"
    def before_fit(self, learn): self.sched = torch.optim.lr_scheduler.ExponentialLR(learn.opt, .8)
    def after_step(self, learn):
        if learn.stepped: self.sched.step()

def by_hand(n_epochs=2, n=3, sizes=SIZES['wild'], dtype=None, skips=()):
    """Accumulate, clip, schedule and average, in mixed precision, in one plain loop: (model, average, norms)

    `skips`: numbers of the steps that a scaler skips, from 1.
    """
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
            norms.append(nn.utils.clip_grad_norm_(m.parameters(), .1).item())
            if len(norms) not in skips:
                opt.step()
                sched.step()
                with torch.no_grad():
                    for a, p in zip(average.parameters(), m.parameters()): a.copy_(.9*a + .1*p)
            opt.zero_grad()
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
        steps = learn.history.steps['grad_norm']
        found = weights(learn.model) + weights(learn.ema.model), [o for o in steps if o == o]
        if first is None:
            first = found
            assert close(learn.model, m) and close(learn.ema.model, average)
            assert found[1] == pytest.approx(norms, abs=1e-6)
            assert learn.state.optimizer_step == 4 == learn.ema.n
            assert learn.opt.param_groups[0]['lr'] == pytest.approx(.1*.8**4)
        assert same(found[0], first[0]) and found[1] == first[1], order


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
    m, average, _ = by_hand(1, 1, [4*n]*(6//n), skips=fake.skips)
    # in half precision
    assert all(torch.allclose(a, b, atol=2e-3) for a, b in zip(weights(learn.model) + weights(learn.ema.model),
                                                               weights(m) + weights(average)))

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_each_optimizer_has_its_scale():
    "One that overflows for ever does not touch the other one's; a loss that both share has one scale"
    def fit(step, *hooks, **kwargs):
        def scaler(device): return torch.amp.GradScaler(device, init_scale=256., **kwargs)
        m = Pair()
        learn = make_learner(m, batches(), train_step=step, optim=optimizers(m),
                             hooks=[AMP('fp16', scaler=scaler), *hooks])
        learn.fit(1)
        assert all(o.isfinite().all() for o in weights(m))
        scales = {name: o.get_scale() for name, o in learn.get_hook('AMP').scalers.items()}
        return scales, learn.state.optimizer_step
    def each(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])*math.inf
        yield 'g', g_loss(learn.model, batch[0])
    def shared(batch, learn): return {'loss': d_loss(learn.model, batch[0])}
    assert fit(each, GradAccum(2)) == ({'d': 32, 'g': 256}, 3)
    assert fit(shared, growth_interval=1) == ({'d': 256*2**5, 'g': 256}, 5)

def test_what_hooks_record_stands_beside_its_batch():
    "Over more batches than are packed together, with cancelled ones, and looks in the middle"
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
    with pytest.raises(ValueError, match='`lr` cannot be recorded'):
        learn.fit(1, hooks=[LambdaHook(after_loss=lambda learn: learn.record('lr', 1.))])


# NaN

OPTS = {'sgd': lambda p: torch.optim.SGD(p, .1), 'momentum': OPTIMS['sgd'],
        'fused': lambda p: torch.optim.Adam(p, .01, fused=True),
        'foreach': lambda p: torch.optim.Adam(p, .01, foreach=True, amsgrad=True)}

@pytest.fixture(params=['cpu', 'device'])
def where(request, monkeypatch):
    "The CPU, whose flag is read before each step, or as on a device, which gates the steps"
    if request.param == 'device': monkeypatch.setattr('trainer_nb.loop.steps.on_host', lambda t: False)
    return request.param

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
        if what == 'empty': learn.batch = [o[:0] for o in learn.batch]
        if what == 'loss': learn.loss = learn.loss*math.inf
        if what == 'gradient': learn.model[2].bias.grad[1] = -math.inf
    points = {'loss': 'after_loss', 'gradient': 'after_backward'}
    return LambdaHook(**{points.get(what, 'before_step'): f}, ord=-99)

SAYS = {'batch': 'the loss is not finite in {}', 'loss': 'the loss is not finite in {}',
        'gradient': 'the gradient of 2.bias is not finite in {}'}

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
@pytest.mark.parametrize('optim', OPTS.values(), ids=OPTS)
@pytest.mark.parametrize('what, i, every', [('batch', 0, 100), ('batch', 7, 1), ('loss', 7, 1), ('gradient', 7, 100)])
def test_the_guard_keeps_the_last_good_step(optim, what, i, every, where):
    learn = make_learner(normed(), batches(), optim=optim,
                         hooks=[NaNGuard(every), spoiler(what, i), GradClip(1.), EMA()])
    says = SAYS[what].format(f'epoch {i//5}, batch {i % 5}, after {i} optimizer steps')
    with pytest.raises(FloatingPointError, match=says) as e: learn.fit(4)
    has_batch = what == 'batch' and (where == 'cpu' or every == 1)      # it is still there
    assert (f'batch[0], as the step got it in batch {i % 5}, holds nan' in str(e.value)) == has_batch
    good = make_learner(normed(), batches(), optim=optim, hooks=[GradClip(1.)])
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
def test_the_guard_before_validation_and_at_a_stop(where):
    for kwargs in dict(valid_dl=batches()), dict():
        seen = []
        hooks = [NaNGuard(), spoiler('loss', 3), LambdaHook(before_valid=lambda learn: seen.append(1)),
                 stop_when(lambda learn: learn.state.batch_idx == 4 and 'valid_dl' not in kwargs)]
        with pytest.raises(FloatingPointError, match='batch 3'):
            make_learner(normed(), batches(), hooks=hooks, **kwargs).fit(2)
        assert not seen

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
@pytest.mark.parametrize('hooks', [(), (GradAccum(3),)], ids=['plain', 'accumulated'])
def test_an_empty_batch_is_called_empty(hooks, where):
    "And a batch that a hook leaves out is no failure, also if it is the last one of a window"
    learn = make_learner(model(), batches(), hooks=[NaNGuard(), spoiler('empty', 3), *hooks])
    with pytest.raises(FloatingPointError, match='in epoch 0, batch 3.*That batch is empty'): learn.fit(1)
    def skip(learn):
        if learn.loss.isnan(): raise CancelStep
    for point in ['after_loss'] if hooks else ['after_loss', 'after_backward']:     # in a window the gradient stays
        own = NaNGuard(), spoiler('empty', 4), *hooks, LambdaHook(**{point: skip})
        make_learner(model(), batches(), hooks=own).fit(1)

def test_the_guard_copies_nothing_on_the_cpu():
    "No weights, no state: only buffers, which batches change before there is a loss"
    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            name = f.overloadpacket.__name__
            if name in ('clone', 'copy_', '_foreach_copy_', 'where'): self.seen[name] += max(map(torch.numel, filter(
                torch.is_tensor, args)), default=0)
            return f(*args, **(kwargs or {}))
    def copied(*hooks, net=model):
        learn, mode = make_learner(net(), batches(), optim=OPTIMS['adam'], hooks=hooks), Copies()
        mode.seen = Counter()
        with mode: learn.fit(2)
        return mode.seen
    n = len(batches())*2
    assert copied(NaNGuard()) - copied() == Counter(where=copied(NaNGuard())['where'])
    assert copied(NaNGuard())['where'] <= n*6       # losses and norms
    assert copied(NaNGuard(), net=normed)['where'] <= n*(8 + 8*2 + 1)


# Nothing is read

@pytest.mark.parametrize('names, optim', [(['NaNGuard'], torch.optim.SGD), ([*ALL], torch.optim.AdamW)])
def test_no_value_is_read(names, optim, monkeypatch):
    "Only the guard does, once in a hundred batches"
    monkeypatch.setattr('trainer_nb.features.gradients.perf_counter', lambda: 0.)
    allowed = allowed_reads(optim, in_list)
    if 'GradAccum' in names: allowed = Counter({k: n//3 for k, n in allowed.items()})       # the optimizer's own reads
    seen = counted_fit(make_learner(nn.Linear(4, 3), in_list(N_TRAIN), in_list(N_VALID), optim=optim, lr=.01,
                                    hooks=[ALL[o]() for o in names]))
    if 'NaNGuard' in names: seen.subtract(dict.fromkeys(['__int__', '_local_scalar_dense'], 2*N_TRAIN//100))
    assert_allowed(seen, allowed)


# Frozen

def test_an_error_thaws():
    learn = make_learner(normed(), batches())
    for hooks in [Freeze('0', 'nothing')], [Freeze('*')], [Freeze('0'), LambdaHook(after_loss=lambda learn: 1/0)]:
        with pytest.raises((ValueError, ZeroDivisionError)): learn.fit(1, hooks=hooks)
        assert all(p.requires_grad for p in learn.model.parameters())


# The step without the label for the profiler

class Decorated(torch.optim.SGD):
    @functools.wraps(torch.optim.SGD.step)
    def step(self, *args):
        self.heard.append(self)
        return super().step(*args)

def test_whoever_listens_to_a_step_hears_it():
    "Hooks of one optimizer and of all, a step that was replaced, and one that a subclass has wrapped"
    learn, heard = make_learner(model(), batches()[:1], optim=OPTIMS['sgd']), []
    def hear(*args): heard.append(args)
    for register in (learn.opt.register_step_pre_hook, learn.opt.register_step_post_hook,
                     register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        handle = register(hear)
        learn.fit(1)
        handle.remove()
    step = learn.opt.step
    learn.opt.step = lambda *args: hear(step(*args))
    learn.fit(1)
    learn.opt = Decorated(learn.model.parameters(), lr=.1)
    learn.opt.heard = heard
    learn.fit(1)
    assert len(heard) == 6

def test_a_first_step_that_is_not_finite_makes_no_state(where):
    "A fused step that is skipped leaves memory that nobody has written"
    def optim(p): return torch.optim.SGD(p, .01, momentum=.9, fused=True)
    bad = [(torch.full((4, 4), math.nan), torch.zeros(4, dtype=torch.long))]
    learn = make_learner(model(), bad + cut([4]*6), optim=optim, hooks=[NaNGuard()])
    with pytest.raises(FloatingPointError): learn.fit(1)
    assert not {*learn.opt.state} & {*learn.model.parameters()}
    learn.train_dl = cut([4]*6)
    learn.fit(1)
    plain = make_learner(model(), cut([4]*6), optim=optim)
    plain.fit(1)
    assert same(weights(learn.model), weights(plain.model))

def test_one_loss_for_optimizers_that_share_a_parameter_is_refused():
    "The second one would find no gradient"
    m = Pair()
    opts = {'a': torch.optim.SGD(m.parameters(), .1), 'b': torch.optim.SGD([*m.parameters()][:1], .1)}
    before = weights(m)
    def one(batch, learn): return {'loss': d_loss(m, batch[0])}
    with pytest.raises(ValueError, match="optimizers 'a' and 'b' share a parameter"):
        make_learner(m, batches(), train_step=one, optim=opts).fit(1)
    assert same(weights(m), before)
    def each(batch, learn):
        yield 'a', d_loss(m, batch[0])
        yield 'b', d_loss(m, batch[0])
    make_learner(m, batches(), train_step=each, optim=opts).fit(1)
    assert not same(weights(m), before)
