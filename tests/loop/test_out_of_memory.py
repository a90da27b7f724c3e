"Too little memory ends a fit with an error, and is free again; the last checkpoint goes on"
import gc, traceback, weakref

import pytest, torch
from torch import nn

from common import batches, digest, make_learner, plain_model
from trainer_nb.all import EMA, Checkpoint, GradAccum, LambdaHook, NaNGuard, OneCycle, accuracy
from trainer_nb.base import is_oom

def raise_(e): raise e

def no_memory(): return torch.empty(2**52)     # torch's own error, of its own allocator

ERRORS = {'cpu': no_memory, 'cuda': lambda: raise_(torch.OutOfMemoryError('CUDA out of memory')),
          'python': lambda: raise_(MemoryError())}

def notes(info): return '\n'.join(info.value.__notes__)

def failing(where, f=no_memory):
    "A hook that finds no memory in batch 3 of epoch 1, once"
    seen = []
    def hook(learn, *nxt):
        res = nxt and nxt[0]()
        if learn.training and (learn.state.epoch, learn.state.batch_idx) == (1, 3) and not seen:
            seen.append(1)
            f()
        return res
    return LambdaHook(**{where: hook}, ord=99)

@pytest.mark.parametrize('error', ERRORS)
@pytest.mark.parametrize('event', ['before_step', 'do_backward', 'after_backward'])
def test_the_last_checkpoint_goes_on(tmp_path, event, error):
    "The type stays, notes say what helps, and it ends bit-equal to the uninterrupted run, wherever memory ran out"
    def make(*hooks):
        own = GradAccum(2), EMA(.9), NaNGuard(), OneCycle(.1)
        return make_learner(plain_model(), batches(), batches(seed=3), metrics=[accuracy], hooks=[*own, *hooks])
    whole, learn = make(), make(Checkpoint(tmp_path), failing(event, ERRORS[error]))
    whole.fit(3)
    with pytest.raises((RuntimeError, MemoryError)) as e: learn.fit(3)
    assert is_oom(e.value) and type(e.value) in (RuntimeError, torch.OutOfMemoryError, MemoryError)
    for part in ('batch (float32 (5, 4), int64 (5,))', 'GradAccum(n)', 'find_batch_size()', 'window of gradients',
                 'epoch 1, after 3 of 5'): assert part in notes(e)
    assert (learn.cancelled, learn.state.batch_idx, learn.state.samples_seen) == ('error', 3, 24 + 15)
    assert not learn.get_hook('GradAccum').open and all(p.grad is None for p in learn.model.parameters())
    learn.fit(3, resume=True)
    assert digest(learn) == digest(whole)
    learn.fit(1)

class Watched(nn.Linear):
    "Keeps weak references to its activations"
    how, refs = 'no', []
    def forward(self, x):
        wide = super().forward(x).relu()
        more = {'a': wide.tanh()}
        self.refs.extend(weakref.ref(o) for o in (wide, more['a']))
        if self.how == 'forward': no_memory()
        if self.how == 'backward': wide.register_hook(lambda g: no_memory())
        return wide + more['a']

@pytest.mark.parametrize('how, verb', [
    ('forward', lambda learn: learn.fit(1)), ('backward', lambda learn: learn.fit(1)),
    ('forward', lambda learn: learn.validate()), ('forward', lambda learn: learn.lr_find())])
def test_the_memory_is_free_while_the_error_is_kept(how, verb):
    "As a notebook keeps its last error"
    learn, errors = make_learner(Watched(4, 3), batches(), batches(), optim=lambda p: torch.optim.SGD(p, lr=0.)), []
    learn.fit(1)
    learn.model.refs.clear()
    gc.collect()
    learn.model.how = how
    for _ in range(3):
        with pytest.raises(RuntimeError, match='memory') as e: verb(learn)
        errors.append(e.value)
        assert 'What helps' in notes(e)
    assert learn.model.refs and not any(r() is not None for r in learn.model.refs)
    assert any(o.name in ('fit', 'validate', 'lr_find') for o in traceback.extract_tb(errors[0].full_traceback))
