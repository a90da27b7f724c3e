"Too little memory ends a fit with an error, and is free again; the last checkpoint goes on"
import ctypes, gc, sys, traceback, weakref

import pytest, torch
from torch import nn

from common import batches, digest, make_learner, plain_model, weights
from trainer_nb.all import EMA, Checkpoint, GradAccum, LambdaHook, NaNGuard, OneCycle, accuracy
from trainer_nb.base import is_oom

def no_memory(): return torch.empty(2**52)     # torch's own error, of its own allocator

ERRORS = {'cpu': no_memory, 'cuda': lambda: raise_(torch.OutOfMemoryError('CUDA out of memory')),
          'python': lambda: raise_(MemoryError())}

def raise_(e): raise e

def notes(info): return '\n'.join(info.value.__notes__)

def failing(where, f=no_memory):
    "A hook that finds no memory in batch 3 of epoch 1, once"
    seen = []
    def hook(learn, *nxt):
        if nxt: res = nxt[0]()
        if learn.training and (learn.state.epoch, learn.state.batch_idx) == (1, 3) and not seen:
            seen.append(1)
            f()
        if nxt: return res
    return LambdaHook(**{where: hook}, ord=99)


# The end of a fit

@pytest.mark.parametrize('error', ERRORS.values(), ids=ERRORS)
def test_the_type_stays_and_notes_say_what_helps(error):
    learn = make_learner(valid_dl=batches(), hooks=[failing('after_loss', error)])
    with pytest.raises((RuntimeError, MemoryError)) as e: learn.fit(3)
    assert is_oom(e.value) and type(e.value) in (RuntimeError, torch.OutOfMemoryError, MemoryError)
    assert (learn.cancelled, learn.state.batch_idx, learn.state.samples_seen) == ('error', 3, 24 + 15)
    assert all(p.grad is None for p in learn.model.parameters())
    where = 'raised in epoch 1, after 3 of 5'
    for part in ('batch (float32 (5, 4), int64 (5,))', 'GradAccum(n)', 'find_batch_size()', where):
        assert part in notes(e)

@pytest.mark.parametrize('event', ['before_step', 'after_pred', 'do_backward', 'after_backward'])
def test_the_last_checkpoint_goes_on(tmp_path, event):
    "Bit-equal to the uninterrupted run, wherever memory ran out; a further fit trains, too"
    def make(*hooks):
        own = GradAccum(2), EMA(.9), NaNGuard(), OneCycle(.1)
        return make_learner(plain_model(), batches(), batches(seed=3), metrics=[accuracy], hooks=[*own, *hooks])
    whole, learn = make(), make(Checkpoint(tmp_path), failing(event))
    whole.fit(3)
    with pytest.raises(RuntimeError) as e: learn.fit(3)
    assert 'its window of gradients is cleared' in notes(e) and not learn.get_hook('GradAccum').open
    assert all(map(torch.isfinite, [p.sum() for p in weights(learn.model)]))
    assert all(p.grad is None for p in learn.model.parameters())
    learn.fit(3, resume=True)
    assert digest(learn) == digest(whole)
    learn.fit(1)

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
    assert is_oom(e.value) and held[-1]() is None and 'What helps' in notes(e)
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()


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
    assert 'fit' in [o.name for o in traceback.extract_tb(errors[0].full_traceback)]
