"Nothing grows from fit to fit, and nothing of a failed batch or a deleted learner stays"
import gc, sys, weakref
from multiprocessing import get_context

import psutil, pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.loop.metrics import accuracy

def tensors():
    gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]

class Big:
    "A loader of new tensors, a megabyte each: one that is kept in each fit shows in the resident memory"
    def __iter__(self):
        for i in range(3): yield torch.full((64, 4096), i/10), torch.zeros(64, dtype=torch.long)

def grow(n_cells):
    "Fits of one learner, and of new ones, as a cell that is run again and again; for a process of its own"
    hook = LambdaHook(after_step=lambda learn: None, do_opt_step=lambda learn, nxt: nxt())
    def learner():
        return make_learner(nn.Linear(4096, 3), Big(), Big(), metrics=[accuracy], display='text', hooks=[hook])
    learn, seen = learner(), []
    for i in range(n_cells):
        for o in learn, learner():
            o.fit(1)
            o.history.steps     # read, as any look at the history does
        del o
        if i in (9, n_cells - 1): seen.append((len(tensors()), psutil.Process().memory_info().rss/2**20))
    (n_10, mib_10), (n, mib) = seen
    assert n == n_10 and mib - mib_10 < n_cells - 10, seen     # a tensor that is kept of each fit would be 2 MiB

@pytest.mark.parametrize('n', [20, pytest.param(400, marks=pytest.mark.soak)])
def test_many_fits(n):
    child = get_context('fork').Process(target=grow, args=(n,))
    child.start()
    child.join()
    assert child.exitcode == 0, 'see the captured stderr'

def test_history_that_nobody_reads_holds_a_number_for_each_batch():
    learn = make_learner(train_dl=batches(), valid_dl=batches(), metrics=[accuracy])
    learn.fit(1)
    before = set(map(id, tensors()))
    learn.fit(50)
    new = [o for o in tensors() if id(o) not in before]
    # a view and its base
    assert sum(o.untyped_storage().nbytes() for o in new) <= 2*4*250 and not any(o.requires_grad for o in new)

class Oops(Exception): pass

class Fresh:
    "A loader whose tensors nobody else holds; `refs` are those of the newest batch"
    def __init__(self): self.refs = []
    def __iter__(self):
        for x, y in batches():
            batch = x.clone(), y.clone()
            self.refs[:] = map(weakref.ref, batch)
            yield batch
            del batch

def alive(refs):
    gc.collect()
    return [i for i, r in enumerate(refs) if r() is not None]

class FailingModel(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        raise Oops

def failing_generator(batch, learn):
    yield '0', F.cross_entropy(learn.model(batch[0]), batch[1])
    raise Oops

def fail(*args): raise Oops
def fail_in_validation(learn): return learn.training or fail()
def stop(learn): return learn.state.batch_idx != 3 or learn.stop()

ENDS = {    # how a fit ends: what the learner gets
    'well': dict,
    'without backward': lambda: dict(hooks=[LambdaHook(do_backward=lambda learn, nxt: None)]),
    'stop': lambda: dict(hooks=[LambdaHook(after_step=stop)]),
    'hook': lambda: dict(hooks=[LambdaHook(do_opt_step=fail)]),
    'hook in validation': lambda: dict(hooks=[LambdaHook(after_pred=fail_in_validation)]),
    'model': lambda: dict(model=FailingModel(4, 3)),
    'generator': lambda: dict(train_step=failing_generator, optim={'0': torch.optim.SGD}),
    'metric': lambda: dict(metrics=[fail]),
}

@pytest.mark.parametrize('key', ENDS)
def test_nothing_of_the_last_batch_is_held(key, capsys):
    train, valid, others = Fresh(), Fresh(), []
    learn = make_learner(train_dl=train, valid_dl=valid, **{'metrics': [accuracy], 'display': 'text', **ENDS[key]()})
    look = LambdaHook(after_loss=lambda learn: others.append(weakref.ref(learn.loss)), ord=-1)
    try: learn.fit(1, hooks=[look])
    except Oops: assert key not in ('well', 'without backward', 'stop')
    if key == 'stop': learn.stopped = None      # it holds the open pass of a run that can be resumed, and nothing else
    assert train.refs and not alive(train.refs) and not alive(valid.refs), 'a batch'
    assert not alive(others), 'a loss'
    assert sys.exc_info()[1] is None and not any(type(o) is Oops for o in gc.get_objects())
    if key in ('well', 'stop'):
        learn.validate()
        learn.predict(batches())
        learn.describe_hooks()
    refs = [weakref.ref(o) for o in (learn, learn.model, *learn.opts.values(), *learn.model.parameters())]
    del learn
    assert not alive(refs), 'a deleted learner'
