"Too little memory ends a fit between two batches and is free again; `GradAccum('auto')` repeats the batch in parts"
import ctypes, gc, sys, traceback, warnings, weakref
from functools import partial

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import Stream, batches, close, digest, make_learner, problem, same, shuffled, told, weights
from trainer_nb.all import EMA, GradAccum, LambdaHook, NaNGuard, OneCycle, accuracy
from trainer_nb.base import is_oom

def no_memory(): return torch.empty(2**52)     # torch's own error, of its own allocator

ERRORS = {'cpu': no_memory, 'cuda': lambda: raise_(torch.OutOfMemoryError('CUDA out of memory')),
          'python': lambda: raise_(MemoryError())}

def raise_(e): raise e

def notes(info): return '\n'.join(info.value.__notes__)

def failing(where, at, f=no_memory):
    "A hook that finds no memory in one batch, `at` (training or validation, its index), once"
    seen = []
    def hook(learn, *nxt):
        if nxt: res = nxt[0]()
        now = learn.training, learn.state.batch_idx if learn.training else learn.valid_idx
        if now == at and learn.state.epoch == 1 and not seen:
            seen.append(1)
            f()
        if nxt: return res
    return LambdaHook(**{where: hook}, ord=99)


# The end of a fit

@pytest.mark.parametrize('error', ERRORS.values(), ids=ERRORS)
def test_the_type_stays_and_the_fit_ends_as_a_stop(error):
    learn = make_learner(valid_dl=batches(), hooks=[failing('after_loss', (True, 2), error)])
    with pytest.raises((RuntimeError, MemoryError)) as e: learn.fit(3)
    assert is_oom(e.value) and type(e.value) in (RuntimeError, torch.OutOfMemoryError, MemoryError)
    assert (learn.cancelled, learn.state.batch_idx, learn.state.samples_seen) == ('memory', 2, 24 + 10)
    assert all(p.grad is None for p in learn.model.parameters())
    text = notes(e)
    for part in ('batch (float32 (5, 4), int64 (5,))', 'parameters 268 B', "GradAccum('auto')", 'learn.resume()',
                 'raised in epoch 1, after 2 of 5 training batches'): assert part in text

def streamed(): return DataLoader(Stream(batches()), batch_size=None)

def plain(): return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

def fitted(make_dl, hooks=(), resume=False, model=plain, **kwargs):
    torch.manual_seed(0)
    learn = make_learner(model(), make_dl(), batches(seed=3), metrics=[accuracy], hooks=hooks, **kwargs)
    torch.manual_seed(1)
    if not resume: learn.fit(3)
    else:
        with pytest.raises(RuntimeError): learn.fit(3)
        learn.resume()
    return learn

@pytest.mark.parametrize('make_dl, at', [
    (batches, (True, 2)), (shuffled, (True, 0)), (shuffled, (False, 0)), (streamed, (True, 4)), (streamed, (False, 3)),
    pytest.param(partial(shuffled, num_workers=1, persistent_workers=True), (True, 2), marks=pytest.mark.soak)])
def test_a_resumed_fit_has_lost_nothing(make_dl, at):
    "The same batches in the same order, each trained once: bit-equal to the uninterrupted run"
    whole = fitted(make_dl)
    learn = fitted(make_dl, [failing('after_loss', at)], resume=True)
    assert digest(learn) == digest(whole)

@pytest.mark.parametrize('event', ['before_step', 'after_pred', 'do_backward', 'after_backward'])
def test_wherever_memory_runs_out(event):
    hooks = lambda: [GradAccum(2), EMA(.9), NaNGuard(), OneCycle(.1)]
    whole = fitted(batches, hooks())
    learn = fitted(batches, [*hooks(), failing(event, (True, 3))], resume=True)
    assert same(weights(learn.model), weights(whole.model)) and same(weights(learn.ema.model), weights(whole.ema.model))
    assert learn.history.steps == whole.history.steps

def test_in_the_step_of_an_optimizer_the_message_warns():
    learn = make_learner(hooks=[LambdaHook(do_opt_step=lambda learn, nxt: no_memory()), GradAccum('auto')])
    with pytest.raises(RuntimeError) as e: learn.fit(1)
    assert 'an optimizer was at work' in notes(e) and learn.get_hook(GradAccum).most is None

@pytest.mark.parametrize('verb', ['validate', 'lr_find'])
def test_other_verbs_say_it_and_leave_nothing(verb):
    held = []
    class Net(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            held.append(weakref.ref(h))
            no_memory()
    learn = make_learner(Net(4, 3), batches(), batches())
    with pytest.raises(RuntimeError) as e: getattr(learn, verb)()
    assert is_oom(e.value) and held[-1]() is None
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()
    assert 'largest tensors: ' in notes(e) and '.Net.forward float32 (5, 3)' in notes(e)


# What is free again

class Wide(nn.Module):
    "Activations of 16 MiB, of which weak references tell"
    def __init__(self, how):
        super().__init__()
        self.lin, self.how, self.refs = nn.Linear(4, 2**14), how, []
    def forward(self, x):
        h = self.lin(x.repeat(1000, 1)[:256])
        wide = h.relu()
        more = [wide.sigmoid(), {'a': wide.tanh()}]
        self.refs += [weakref.ref(o) for o in (h, wide, more[0], more[1]['a'])]
        if self.how == 'forward' and self.training: no_memory()
        if self.how == 'backward' and self.training: wide.register_hook(lambda g: no_memory())
        return (wide + more[0] + more[1]['a'])[:len(x), :3]

def resident():  # bytes, without those that the allocator of the C library keeps for later
    try: ctypes.CDLL('libc.so.6').malloc_trim(0)
    except (OSError, AttributeError): pytest.skip('needs glibc')
    with open('/proc/self/statm') as f: return int(f.read().split()[1])*4096

@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc')
@pytest.mark.parametrize('how', ['forward', 'backward'])
def test_the_memory_is_free_while_the_error_is_kept(how):
    "As a notebook keeps its last error. References, tensors and the process itself tell"
    learn = make_learner(Wide('no'), batches(), optim=lambda p: torch.optim.SGD(p, lr=0.))
    learn.fit(1)
    learn.model.refs.clear()
    gc.collect()
    before, learn.model.how = resident(), how
    errors = []
    for _ in range(3):
        with pytest.raises(RuntimeError) as e: learn.fit(1)
        errors.append(e.value)
    assert learn.model.refs and not any(r() is not None for r in learn.model.refs)
    assert resident() - before < 48*2**20, 'of 3 × 64 MiB'
    text = '\n'.join(errors[0].__notes__)
    assert how == 'backward' or '`h` in Wide.forward float32 (256, 16384) 16 MiB' in text
    assert 'fit' in [o.name for o in traceback.extract_tb(errors[0].full_traceback)]


# In parts

class Limited:
    "A hook that finds no memory for batches of more than `most` samples"
    def __new__(cls, most, event='do_step'):
        n = []
        def hook(learn, *nxt):
            res = nxt[0]() if nxt else None
            n.append(len(learn.batch[0]))
            if learn.training and n[-1] > most: no_memory()
            return res
        hook.n = n
        return LambdaHook(**{event: hook}, ord=99)

def big(sizes=(16, 8), seed=1): return list(zip(*(o.split(list(sizes)) for o in problem(24, seed))))

OPTIMS = {'sgd': lambda p: torch.optim.SGD(p, lr=.1, momentum=.9), 'adam': lambda p: torch.optim.Adam(p, lr=.01)}
LOSSES = {'mean': {}, 'sum': {'loss_fn': nn.CrossEntropyLoss(reduction='sum')},
          'tokens': {'train_step': lambda batch, learn: token_step(batch, learn)}}

def token_step(batch, learn):
    x, y = batch
    keep, pred = x[:, 0] > -1, learn.model(x)
    losses = F.cross_entropy(pred, y, reduction='none')*keep
    return {'loss': losses.sum()/keep.sum().clamp(min=1), 'n': keep.sum(), 'pred': pred[keep], 'targ': y[keep]}

def auto(hooks, kwargs, n=3):
    torch.manual_seed(0)
    learn = make_learner(plain(), big(), big(seed=2), metrics=[accuracy], hooks=hooks, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.fit(n)
    return learn

@pytest.mark.parametrize('kind, event', [
    ('mean', 'do_step'), ('mean', 'after_backward'), ('sum', 'after_pred'), ('tokens', 'after_loss'),
    ('tokens', 'do_backward')])
def test_parts_equal_the_batch(kind, event):
    "Weights to 1e-6, and the record: as many batches and steps, the losses and metrics of whole batches"
    kwargs = {**LOSSES[kind], 'optim': OPTIMS['adam' if kind == 'mean' else 'sgd']}
    whole, learn = auto([], kwargs), auto([GradAccum('auto'), Limited(5, event)], kwargs)
    assert close(learn.model, whole.model) and learn.get_hook(GradAccum).most == 4
    assert learn.state == whole.state and learn.state.batch_idx == 2
    for k, values in whole.history.steps.items(): assert learn.history.steps[k] == pytest.approx(values, abs=2e-6), k
    for k, values in whole.history.epochs.items():
        if k != 'time_s': assert learn.history.epochs[k] == pytest.approx(values, abs=2e-6), k

def test_only_the_batches_that_need_it_are_divided():
    limit = Limited(9)
    learn = auto([GradAccum('auto'), limit], {}, n=2)
    assert limit.do_step.n == [16, 8, 8, 8, 16, 8] + [8, 8, 8, 16, 8] and learn.get_hook(GradAccum).most == 8

def test_an_attempt_leaves_no_trace():
    "Random numbers and running means are those of a run that divided its batches from the start"
    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.5), nn.Tanh(), nn.Linear(8, 3))
    def fit(*hooks):
        torch.manual_seed(0)
        learn = make_learner(model(), big(), big(seed=2), hooks=hooks)
        with told() as said: learn.fit(2)
        return learn, said
    known = GradAccum('auto')
    known.division.most = 4
    (whole, quiet), (learn, said) = fit(known), fit(GradAccum('auto'), Limited(5, 'do_backward'))
    assert same(weights(learn.model), weights(whole.model)) and learn.history.steps == whole.history.steps
    assert not quiet and len(said) == 2 and 'parts of at most 4 samples; BatchNorm sees each part by itself' in said[1]

def test_where_parts_do_not_help():
    "A single sample, a step that yields, a batch that has no samples: the error is told, and the fit can be resumed"
    learn = make_learner(plain(), big(), hooks=[GradAccum('auto'), Limited(0)])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with pytest.raises(RuntimeError, match="can't allocate") as e: learn.fit(1)
        assert learn.cancelled == 'memory' and learn.get_hook(GradAccum).most == 1 and 'memory: ' in notes(e)
        def step(batch, learn):
            yield 'a', F.cross_entropy(learn.model(batch[0]), batch[1])
        m = plain()
        learn = make_learner(m, big(), train_step=step, optim={'a': torch.optim.SGD(m.parameters(), lr=.1)},
                             hooks=[GradAccum('auto'), Limited(5)])
        with pytest.raises(RuntimeError, match="can't allocate"): learn.fit(1)
        def transposed(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0].T), batch[1])}
        data = [(x.T, y) for x, y in big()]
        learn = make_learner(plain(), data, train_step=transposed, hooks=[GradAccum('auto'), Limited(3)])
        with pytest.raises(ValueError, match=r'shape \(16,\) cannot be divided into samples: the batch has 4'):
            learn.fit(1)
    with pytest.raises(ValueError, match='auto'): GradAccum('Auto')

def test_an_explanation_that_fails_does_not_hide_the_error(monkeypatch):
    monkeypatch.setattr('trainer_nb.loop.learner.shortage', lambda *_: raise_(KeyError('x')))
    learn = make_learner(hooks=[failing('after_loss', (True, 2))])
    with pytest.raises(RuntimeError) as e: learn.fit(3)
    assert is_oom(e.value) and "could not be described: KeyError('x')" in notes(e)
