"Nothing grows from fit to fit, and nothing of a failed batch or a deleted learner stays"
import gc, json, os, subprocess, sys, weakref
from pathlib import Path

import psutil, pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model
from trainer_nb.loop.metrics import accuracy
from trainer_nb.loop.hooks import LambdaHook


# Growth

def tensors():
    gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]

class Big:
    "A loader of new tensors, a megabyte each: one that is kept in each fit shows in the resident memory"
    def __iter__(self):
        for i in range(3): yield torch.full((64, 4096), i/10), torch.zeros(64, dtype=torch.long)

def cell(learn=None):
    "What a person runs again and again"
    if learn is None:
        hooks = [LambdaHook(after_step=lambda learn: None, do_opt_step=lambda learn, nxt: nxt())]
        learn = make_learner(nn.Linear(4096, 3), Big(), Big(), metrics=[accuracy], display='text', hooks=hooks)
    learn.fit(1)
    learn.history.steps     # read, as any look at the history does
    return learn

def grow(again):
    "Number of tensors and MiB of memory after 10 and after 50 fits, and figures; for a process of its own"
    torch.set_num_threads(1)
    learn, seen = cell() if again else None, []
    for i in range(50):
        cell(learn)
        if i in (9, 49): seen.append((len(tensors()), psutil.Process().memory_info().rss/2**20))
    plt = sys.modules.get('matplotlib.pyplot')
    print(json.dumps([*seen, plt.get_fignums() if plt else []]))

def in_fresh_process(code):
    "What `code` prints in the end"
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get('PYTHONPATH')])])
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                         env={**os.environ, 'PYTHONPATH': path}, check=True)
    return json.loads(out.stdout.splitlines()[-1])

@pytest.mark.parametrize('again', [False, pytest.param(True, marks=pytest.mark.soak)],
                         ids=['new learners', 'one learner'])
def test_50_fits(again):
    (n_10, mib_10), (n_50, mib_50), figures = in_fresh_process(f'from test_memory import grow; grow({again})')
    assert n_50 == n_10 and mib_50 - mib_10 < 16 and not figures       # what is kept of each fit would be 40 MiB

def test_history_that_nobody_reads_holds_a_number_for_each_batch():
    learn = make_learner(train_dl=batches(), valid_dl=batches(), metrics=[accuracy])
    learn.fit(1)
    before = set(map(id, tensors()))
    learn.fit(100)
    new = [o for o in tensors() if id(o) not in before]
    # a view and its base
    assert sum(o.untyped_storage().nbytes() for o in new) <= 2*4*500 and not any(o.requires_grad for o in new)

# A failed batch

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
    def __len__(self): return 5

def alive(refs):
    gc.collect()
    return [i for i, r in enumerate(refs) if r() is not None]

def fail(learn, *nxt):
    learn.config.extend(weakref.ref(o) for o in (learn.pred, learn.loss) if o is not None)
    raise Oops

class FailingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
    def forward(self, x):
        h = self.linear(x)
        raise Oops

def failing_generator(batch, learn):
    loss = F.cross_entropy(learn.model(batch[0]), batch[1])
    yield '0', loss
    raise Oops

def failing_metric(pred, targ): raise Oops

EVENTS = ['before_step', 'do_step', 'after_loss', 'do_opt_step']
FAILURES = {
    **{f'hook at {e}': dict(hooks=[LambdaHook(**{e: fail})]) for e in EVENTS},
    **{f'validation, {e}': dict(hooks=[LambdaHook(**{e: lambda learn: None if learn.training else fail(learn)})])
       for e in ('after_pred', 'after_step')},
    'model': dict(model=FailingModel()),
    'generator': dict(train_step=failing_generator, optim={'0': torch.optim.SGD}),
    'metric': dict(metrics=[failing_metric]),
}

def run(learn):
    "Fit until it fails, and forget the exception"
    try: learn.fit(2)
    except Oops: return
    raise AssertionError('did not fail')

@pytest.mark.parametrize('key', FAILURES)
def test_after_an_error_nothing_of_the_batch_is_held(key):
    train, valid, others = Fresh(), Fresh(), []
    kwargs = {'metrics': [accuracy], **FAILURES[key]}
    learn = make_learner(kwargs.pop('model', None), train, valid, config=others, **kwargs)
    run(learn)
    assert train.refs and not alive(train.refs), 'a batch'
    assert not alive(valid.refs), 'a validation batch'
    assert not alive(others), 'a prediction or a loss'
    assert sys.exc_info()[1] is None and not any(type(o) is Oops for o in gc.get_objects())

@pytest.mark.parametrize('end', ['finish', 'no backward', 'stop'])
def test_after_a_fit_nothing_of_the_last_batch_is_held(end):
    def f(learn, *nxt):
        if end == 'stop' and learn.state.batch_idx == 3: learn.stop()
        return None if end == 'no backward' else nxt and nxt[0]()
    train, valid = Fresh(), Fresh()
    learn = make_learner(train_dl=train, valid_dl=valid,
                         hooks=[LambdaHook(**{'do_backward' if end == 'no backward' else 'after_step': f})])
    learn.fit(1)
    # the open pass of a run that can be resumed is held, and nothing else
    if end == 'stop': learn.stopped = None
    assert not alive(train.refs) and not alive(valid.refs)


# A deleted learner

def spoiled(end):
    "A learner that was used, and how it ended"
    learn = make_learner(make_model(), batches(), batches(), metrics=[accuracy], display='text')
    def f(learn):
        if end == 'error': raise Oops
        if end == 'stop': learn.stop()
    with learn.added_hooks(LambdaHook(after_loss=f)):
        try: learn.fit(1)
        except Oops: pass
    learn.validate()
    learn.predict(batches())
    learn.describe_hooks()
    return learn

@pytest.mark.parametrize('end', ['finish', 'error', 'stop'])
def test_a_deleted_learner_frees_its_model(end, capsys):
    learn = spoiled(end)
    refs = [weakref.ref(o) for o in (learn, learn.model, learn.opt, learn.model[0].weight)]
    del learn
    assert not alive(refs)
