"""What only a CUDA device can show: `make gpu`; with TRAINER_NB_GPU_DRY=1 the same functions run on the CPU

Exact on CUDA, with deterministic algorithms: a fit against a plain loop, a resumed run against an uninterrupted
one, and what a dry run leaves. Not exact: a run without deterministic algorithms (atomic additions happen in any
order), one that is resumed on another kind of device, and compiled code, which rounds in another order.
"""
import gc, json, os, signal, subprocess, sys
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

# before cuBLAS starts: deterministic algorithms ask for it
os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')

import pytest, torch, torch.nn.functional as F
from torch import nn

import trainer_nb.features.gradients
from common import Share, make_learner, reasons, same, stop_when, told, weights
from test_no_sync import counted
from trainer_nb.all import (
    AMP, EMA, Checkpoint, Compile, GradAccum, GradClip, GradNorm, Hook, LambdaHook, NaNGuard, OneCycle,
    TensorLoader, TrainingInterrupted, accuracy, diff, load_model
)
from trainer_nb.base import hashes, rng_state, set_rng_state, set_seed

DRY = os.environ.get('TRAINER_NB_GPU_DRY') == '1'
DEVICE = torch.device('cpu' if DRY or not torch.cuda.is_available() else 'cuda:0')
N_TRAIN, N_VALID, BS = 300, 40, 16          # batches: more of them in a pass than the library packs together
here = Path(__file__).parent
on_cuda = pytest.mark.skipif(DRY, reason='CUDA only')

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not DRY and not torch.cuda.is_available(),
                                                  reason='there is no CUDA device')]

@pytest.fixture(autouse=True)
def _quiet_device():
    "Deterministic algorithms; nothing of one test is there for the next one"
    before = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before
    torch._dynamo.reset()
    gc.collect()
    if DEVICE.type == 'cuda':
        torch.cuda.set_sync_debug_mode('default')
        torch.cuda.empty_cache()

def wait():
    if DEVICE.type == 'cuda': torch.cuda.synchronize()

def allocated():  # bytes
    "What tensors hold on the device; on the CPU, what those hold that Python knows of"
    gc.collect()
    if DEVICE.type == 'cuda':
        wait()
        return torch.cuda.memory_allocated()
    storages = {}
    for o in gc.get_objects():
        if type(o) in (torch.Tensor, nn.Parameter) and o.layout is torch.strided:
            storages[o.untyped_storage().data_ptr()] = o.untyped_storage().nbytes()
    return sum(storages.values())

def data(n=N_TRAIN, seed=1, bs=BS):
    "(n·bs, 16) float32 and (n·bs,) int64, on the host"
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n*bs, 16, generator=g), torch.randint(0, 5, (n*bs,), generator=g)

def batches(n=N_TRAIN, seed=1, bs=BS):
    return [(x.to(DEVICE), y.to(DEVICE)) for x, y in zip(*(o.split(bs) for o in data(n, seed, bs)))]

class ConvNet(nn.Module):
    "Images of 4 × 4; convolution, BatchNorm and a mean, with deterministic gradients, none of which are rounding alone"
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 5)
    def forward(self, x):
        return self.head(F.dropout(self.bn(self.conv(x.view(-1, 1, 4, 4))).relu().mean((2, 3)), .2, self.training))

def mlp(): return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(.2), nn.Linear(32, 5))

MODELS = {'mlp': mlp, 'conv': ConvNet}

def make(kind='mlp'):
    torch.manual_seed(0)
    return MODELS[kind]().to(DEVICE)

def adamw(params): return torch.optim.AdamW(params, lr=.01, fused=True)

def learner(model=None, train_dl=None, valid_dl=None, **kwargs):
    # by default fused on a GPU only; here everywhere, so that the CPU runs the same steps
    return make_learner(make() if model is None else model, batches(20) if train_dl is None else train_dl, valid_dl,
                        device=DEVICE, **{'optim': adamw, **kwargs})

def fitted(learn, n=1, **kwargs):
    "After a fit with always the same random numbers"
    torch.manual_seed(3)
    learn.fit(n, **kwargs)
    return learn

def loop(model, opt, dl, n_epochs=1, dtype=None, scaler=None, clip=None):
    "The loop by hand, with the same random numbers: (losses; steps that were not skipped)"
    torch.manual_seed(3)
    losses, n = [], 0
    scaler = scaler or torch.amp.GradScaler(DEVICE.type, enabled=False)
    for x, y in chain.from_iterable([dl]*n_epochs):
        with torch.autocast(DEVICE.type, dtype) if dtype else nullcontext(): loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        if clip: torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        n += scaler.get_scale() >= before
        opt.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).float().tolist(), n

def close(a, b, tol=1e-5):
    return all(torch.allclose(x.float(), y.float(), rtol=1e-4, atol=tol)
               for x, y in zip(weights(a), weights(b), strict=True))

def fresh(code, timeout=150, **env):
    "What `code` prints last, as JSON, in a process of its own"
    homes = str(here.parent), str(here), str(here/'loop')
    path = os.pathsep.join([*homes, *filter(None, [os.environ.get('PYTHONPATH')])])
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=timeout,
                         env={**os.environ, 'PYTHONPATH': path, **env})
    assert not out.returncode, out.stderr[-3000:]
    return json.loads(out.stdout.splitlines()[-1])


# The same numbers

@pytest.mark.parametrize('kind', MODELS)
@pytest.mark.parametrize('dtype', [None, torch.bfloat16], ids=['float32', 'bf16'])
def test_a_fit_is_the_loop_by_hand(kind, dtype):
    "Bit for bit, dropout on the device's generator too"
    a, b, dl = make(kind), make(kind), batches(30)
    losses, _ = loop(a, adamw(a.parameters()), dl, 2, dtype, clip=.5)
    learn = fitted(learner(b, dl, hooks=[GradClip(.5), *([AMP(dtype)] if dtype else [])]), 2)
    assert same(weights(a), weights(b)) and learn.history.steps['train_loss'] == pytest.approx(losses, rel=1e-6)
    assert next(b.parameters()).device == DEVICE and learn.state.optimizer_step == 60

def test_fp16_overflows_and_steps_are_skipped():
    "A scale too large for float16 makes infinities: the same steps are skipped as by hand, and counted as skipped"
    def scaler(device): return torch.amp.GradScaler(device, init_scale=2.**32, growth_interval=10)
    a, b, dl = make(), make(), batches(60)
    own = scaler(DEVICE.type)
    losses, n = loop(a, adamw(a.parameters()), dl, 1, torch.float16, own, clip=.5)
    hooks = [amp := AMP(torch.float16, scaler=scaler), GradClip(.5), NaNGuard(every=10)]
    learn = fitted(learner(b, dl, hooks=hooks))
    assert 3 < n < 60 and learn.state.optimizer_step == n        # overflows did happen, and did not go on
    assert same(weights(a), weights(b)) and learn.history.steps['train_loss'] == pytest.approx(losses, rel=1e-6)
    assert amp.scalers[''].get_scale() == own.get_scale() < 2.**32

def test_validation_and_prediction_are_those_of_the_host():
    learn = learner(valid_dl=data(N_VALID, 2), train_dl=data(20), metrics=[accuracy], bs=BS)
    learn.fit(1)
    x, y = data(N_VALID, 2)
    pred = learn.predict((x, y))
    host = mlp()
    host.load_state_dict({k: v.cpu() for k, v in learn.model.state_dict().items()})
    with torch.no_grad(): expected = host.eval()(x)
    assert pred.device.type == 'cpu' and torch.allclose(pred, expected, atol=1e-3)
    share = (expected.argmax(1) == y).float().mean().item()
    assert learn.history.epochs['valid_accuracy'][-1] == pytest.approx(share, abs=2e-3)
    assert learn.validate()['valid_loss'] == pytest.approx(F.cross_entropy(expected, y).item(), abs=1e-3)

# No waiting

class Strict(Hook):
    "From the first batch of a pass to its last one nobody waits for the device; on the CPU, nobody reads a value"
    ord = 10**6
    def __init__(self, n_train, n_valid):
        self.n, self.is_open, self.n_passes = {True: n_train, False: n_valid}, False, 0

    def before_step(self, learn):
        if self.is_open: return
        self.is_open = True
        if DEVICE.type == 'cuda': return torch.cuda.set_sync_debug_mode('error')
        self.counting = counted()
        self.seen = self.counting.__enter__()

    def after_step(self, learn):
        if (learn.state.batch_idx if learn.training else learn.valid_idx) == self.n[learn.training]: self.close()

    def close(self):
        if not self.is_open: return
        self.is_open, self.n_passes = False, self.n_passes + 1
        if DEVICE.type == 'cuda': return torch.cuda.set_sync_debug_mode('default')
        self.counting.__exit__(None, None, None)
        assert not self.seen, self.seen

    def after_fit(self, learn): self.close()

def by_tokens(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1], 'n': (batch[1] > 0).sum() + 1}

def by_name(batch, learn):
    pred = learn.model(batch[0])
    yield 'a', F.cross_entropy(pred, batch[1])
    yield 'b', learn.model(batch[0]).square().mean()
    return {'pred': pred, 'targ': batch[1]}

def halves(model):
    params = list(model.parameters())
    return {'a': adamw(params[:3]), 'b': adamw(params[3:])}

FITS = {
    'metrics': lambda model: {'metrics': [accuracy, lambda pred, targ: pred.float().square().mean(), Share()]},
    'everything': lambda model: {'metrics': [accuracy], 'hooks': [
        GradClip(1.), GradNorm(weights=True), NaNGuard(every=10**6), EMA(.9), OneCycle(.01), AMP()]},
    'clip by value, guard without fused': lambda model: {
        'optim': lambda p: torch.optim.SGD(p, lr=.01, momentum=.9),
        'hooks': [GradClip(value=.1), NaNGuard(every=10**6)]},
    'tokens': lambda model: {'train_step': by_tokens, 'metrics': [accuracy], 'hooks': [GradAccum(3), GradClip(1.)]},
    'two optimizers': lambda model: {'train_step': by_name, 'optim': halves(model), 'metrics': [accuracy]},
}
@pytest.mark.parametrize('key, from_host', [
    *((k, False) for k in FITS), pytest.param('everything', True, marks=on_cuda)])
def test_nobody_waits_between_two_updates(key, from_host, monkeypatch):
    # the guard looks once a second, too
    monkeypatch.setattr(trainer_nb.features.gradients, 'perf_counter', lambda: 0.)
    monkeypatch.setattr('trainer_nb.loop.steps.on_host', lambda t: False)
    torch.use_deterministic_algorithms(False)
    model = make()
    dls = [TensorLoader(*data(n), bs=BS, device=DEVICE) if from_host else batches(n) for n in (N_TRAIN, N_VALID)]
    learn = learner(model, *dls, **FITS[key](model))
    learn.fit(1)
    learn.add_hook(strict := Strict(N_TRAIN, N_VALID))
    learn.fit(2)
    assert strict.n_passes == 4 and len(learn.history) == 3

def n_waits(f):
    "How often the host waited for the device while `f()` ran; on the CPU, how often it read values"
    if DEVICE.type != 'cuda':
        with counted() as seen: f()
        return seen['item'] + seen['tolist'] + seen['cpu']
    with told() as said:
        torch.cuda.set_sync_debug_mode('warn')
        f()
        torch.cuda.set_sync_debug_mode('default')       # after an error the fixture does it
    return sum('called a synchronizing' in o for o in said)

def test_a_scaler_waits_once_in_a_step():
    "That is torch's: whether a step was skipped is known on the host only"
    learn = learner(train_dl=batches(20), hooks=[AMP(torch.float16, scaler=torch.amp.GradScaler), GradClip(1.)])
    learn.fit(1)
    n = n_waits(lambda: learn.fit(1))
    assert 1 <= n <= 20 + 3      # and the values of the epoch


# The way of the batches

def test_fits_are_the_same_from_wherever_the_batches_come():
    def fit(dl): return weights(fitted(learner(make(), dl), 2).model)
    x, y = data(20)
    one = fit(batches(20))
    for o in (TensorLoader(x, y, bs=BS, device=DEVICE), TensorLoader(x, y, bs=BS),
              TensorLoader(x.to(DEVICE), y.to(DEVICE), bs=BS)): assert same(fit(o), one)

# State

@pytest.mark.parametrize('where, n', [('here', 30), ('elsewhere', 31)])      # 31: with accumulated gradients
def test_a_stopped_run_is_resumed_exactly(where, n, tmp_path):
    "Bit for bit with deterministic algorithms: weights, optimizer, average, the device's generator"
    def new():
        return learner(make(), TensorLoader(*data(20), bs=BS, shuffle=True, device=DEVICE), data(5, 2),
                       hooks=[EMA(.9), AMP(), GradAccum(2), Checkpoint(tmp_path/'kept')], bs=BS)
    whole = new()
    whole.remove_hook(whole.get_hook(Checkpoint))
    fitted(whole, 3)
    learn = fitted(new(), 3, hooks=[stop_when(lambda learn: learn.training and learn.history.n_steps == n)])
    assert learn.cancelled == 'stop' and learn.state.optimizer_step == 15
    torch.manual_seed(99)
    torch.randn(1000, device=DEVICE)
    if where == 'here': learn.resume()
    else:
        learn = new()
        learn.fit(3, resume=True)
    assert same(weights(learn.model), weights(whole.model)) and same(weights(learn.ema.model), weights(whole.ema.model))
    assert learn.history.steps == whole.history.steps
    assert learn.history.epochs['valid_loss'] == whole.history.epochs['valid_loss']

def test_a_checkpoint_of_the_device_is_read_on_the_host_and_back(tmp_path):
    learn = learner(make(), batches(20))
    learn.fit(1)
    learn.save(tmp_path/'state')
    host = make_learner(mlp(), [(x.cpu(), y.cpu()) for x, y in batches(20)], lr=.01, device='cpu')
    with told():     # that rounding differs
        host.load(tmp_path/'state')
        assert same([o.cpu() for o in weights(learn.model)], weights(host.model))
        host.fit(1)
        host.save(tmp_path/'back')
        learn.load(tmp_path/'back')
    assert same([o.cpu() for o in weights(learn.model)], weights(host.model))
    assert all(p.device == DEVICE for p in learn.model.parameters())
    assert all(v.device == DEVICE for s in learn.opt.state.values() for k, v in s.items() if k != 'step')
    learn.fit(1)

def test_the_generators_of_the_device():
    def drawn(): return [torch.rand(4, device=DEVICE), torch.randperm(9)]
    set_seed(4)
    state, first = rng_state(), drawn()
    set_seed(4)
    assert same(drawn(), first)
    set_rng_state(state)
    assert same(drawn(), first)
    if DEVICE.type == 'cuda':
        assert len(state['cuda']) == torch.cuda.device_count()
        set_rng_state({**state, 'cuda': state['cuda']*3})       # of a machine with more of them
        assert same(drawn(), first)

def test_a_search_for_the_rate_leaves_nothing():
    def state():
        opt = [v.clone() for s in learn.opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        rng = rng_state()
        return [*weights(learn.model), *opt, rng['torch'], *rng.get('cuda', [])]
    learn = learner(make('conv'), TensorLoader(*data(20), bs=BS, shuffle=True, device=DEVICE),
                    hooks=[AMP(), GradClip(1.), EMA(.9)])
    learn.fit(1)
    learn.lr_find(n_steps=10)       # what libraries keep for good is there after the first one
    before, held = state(), allocated()
    assert len(learn.lr_find(n_steps=30).losses) > 5
    assert same(state(), before)
    assert allocated() <= held + (0 if DEVICE.type == 'cuda' else 2**14)


# Compiled

BACKEND = {'backend': 'aot_eager'} if DRY else {}

def compiled(hooks=(), kind='mlp', n=2, **kwargs):
    return fitted(learner(make(kind), batches(12), batches(3, 2), metrics=[accuracy], hooks=hooks, **kwargs), n)

@pytest.mark.parametrize('mode, optimizer', [(None, False), (None, True), ('reduce-overhead', False)])
def test_compiled_steps_are_the_plain_ones(mode, optimizer):
    "With CUDA graphs, too, whose memory is used again in each step: history, metrics and gradients are copies"
    torch.use_deterministic_algorithms(False)
    def optim(params): return torch.optim.AdamW(params, .01, fused=not optimizer)
    clip = [] if mode else [GradClip(1.)]
    hook = Compile(None if DRY else mode, optimizer=optimizer, **BACKEND)
    with reasons(): learn = compiled([hook, *clip], optim=optim)
    plain = compiled(clip, optim=optim)
    assert close(learn.model, plain.model, 1e-4)
    for name in 'train_loss', 'train_accuracy', 'valid_loss', 'valid_accuracy':
        assert learn.history.epochs[name] == pytest.approx(plain.history.epochs[name], abs=2e-3), name

def test_a_compiled_step_in_bf16_with_everything():
    torch.use_deterministic_algorithms(False)
    def hooks(): return [AMP(), GradClip(1.), NaNGuard(every=10), EMA(.9)]
    with told():     # what stays plain is not the question
        learn = compiled([*hooks(), Compile(**BACKEND)], kind='conv')
    plain = compiled(hooks(), kind='conv')
    assert close(learn.model, plain.model, 5e-2) and learn.state.optimizer_step == plain.state.optimizer_step == 24

class Places(nn.Module):
    "Makes a tensor on the device of its input, whose name a program keeps"
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 4, 3, padding=1), nn.Linear(4, 5)
    def forward(self, x):
        x = x + torch.arange(x.shape[1], device=x.device)/16
        return self.head(self.conv(x[:, None]).relu().mean(2))

def test_an_export_runs_on_any_device_with_any_batch(tmp_path):
    learn = learner(Places().to(DEVICE), batches(5))
    learn.fit(1)
    x = torch.randn(70_000, 16)
    learn.export(tmp_path, example=x[:2])
    expected = learn.predict((x,))
    for device in 'cpu', DEVICE:
        pred = load_model(tmp_path, device=device, trusted=True)(x.to(device))
        assert pred.device.type == torch.device(device).type and torch.allclose(pred.cpu(), expected, atol=1e-3)
    assert all(p.device == DEVICE for p in learn.model.parameters())


# Memory

def test_200_fits_take_no_memory():
    learn = learner(make(), batches(4), batches(2), metrics=[accuracy], hooks=[AMP(), EMA(.9), NaNGuard()])
    for _ in range(5): learn.fit(1)
    before = allocated()
    for _ in range(200): learn.fit(1)
    assert allocated() - before <= 200*64*8         # values of the history

class Oops(Exception): pass

def test_an_error_and_an_interrupt_free_the_batch():
    big = 2**16
    def fail(learn):
        if learn.state.batch_idx == 2 and learn.config == 'error': raise Oops
        if learn.state.batch_idx == 2 and learn.config == 'interrupt': signal.raise_signal(signal.SIGINT)
    class Fresh:
        def __len__(self): return 4
        def __iter__(self): return ((torch.full((64, big), i/4), torch.zeros(64, dtype=torch.long)) for i in range(4))
    learn = learner(nn.Linear(big, 3).to(DEVICE), Fresh(), optim=lambda p: torch.optim.SGD(p, lr=.1),
                    hooks=[LambdaHook(after_loss=fail)])
    learn.fit(1)
    before = allocated()
    for learn.config, error in ('error', Oops), ('interrupt', TrainingInterrupted):
        with pytest.raises(error): learn.fit(1)
        assert allocated() - before < 64*big*4//2, learn.config      # less than half of a batch
    learn.config = None
    learn.resume()
    assert learn.state.batch_idx == 4

@contextmanager
def two_more_gib():     # bytes that the process may have
    "Let the process take no more than that"
    gc.collect()
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + 2**31
    torch.cuda.set_per_process_memory_fraction(limit/torch.cuda.get_device_properties(DEVICE).total_memory)
    try: yield limit
    finally: torch.cuda.set_per_process_memory_fraction(1.)

def wide(dl, **kwargs):
    torch.manual_seed(0)
    return learner(nn.Sequential(nn.Linear(1024, 4096), nn.Tanh(), nn.Linear(4096, 5)).to(DEVICE), dl, **kwargs)

@on_cuda
def test_a_batch_that_found_no_memory_is_free_again():
    "While the error is kept"
    data = [(torch.randn(2**16, 1024), torch.randint(5, (2**16,)))]
    learn = wide(data, optim=lambda p: torch.optim.SGD(p, lr=.1))
    with two_more_gib():
        before = allocated()
        with pytest.raises(torch.OutOfMemoryError) as e: learn.fit(1)
        assert allocated() - before < 2**26
        assert 'batch (float32 (65536, 1024), int64 (65536,))' in '\n'.join(e.value.__notes__)

@on_cuda
def test_the_largest_batch_is_found():
    "Its peak in a real fit is within 90 % of what the process may take, and that of a tenth more is not"
    def new(n=2**16):
        x, y = torch.randn(2**17, 1024), torch.randint(5, (2**17,))
        return wide([(x[:n], y[:n]), (x[n:2*n], y[n:2*n])])
    with two_more_gib() as limit:
        new(2**10).fit(1)   # what libraries keep for good is there after the first fit
        learn = new()
        before, held = [o.cpu() for o in weights(learn.model)], allocated()
        found = learn.find_batch_size()
        assert same([o.cpu() for o in weights(learn.model)], before) and allocated() <= held
        del learn
        torch.cuda.reset_peak_memory_stats()
        new(found.largest).fit(1)
        peak = torch.cuda.max_memory_allocated()
        print(f'largest {found.largest}, peak {peak/limit:.0%} of the limit')
        assert .75*limit < peak <= .95*limit


# Several processes, of which this is one

ONE_RANK = """
import json, os, torch
os.environ.update(RANK='0', LOCAL_RANK='0', WORLD_SIZE='1', LOCAL_WORLD_SIZE='1', MASTER_ADDR='127.0.0.1',
                  MASTER_PORT='0')
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from test_gpu import DEVICE, batches, compiled, fitted, learner, make, weights, same
from trainer_nb.all import Accelerate
plain, learn = compiled(), compiled([Accelerate(cpu=DEVICE.type == 'cpu')])
ok = same(weights(plain.model), weights(learn.model))
ok = ok and learn.history.epochs['valid_loss'] == plain.history.epochs['valid_loss']
if DEVICE.type == 'cuda': torch.cuda.set_device(DEVICE)
kind = 'nccl' if DEVICE.type == 'cuda' else 'gloo'
if not dist.is_initialized(): dist.init_process_group(kind, store=dist.HashStore(), rank=0, world_size=1)
ok = ok and kind in dist.get_backend()
mesh = init_device_mesh(DEVICE.type, (1,))
model = make()
for m in model:
    if list(m.parameters()): fully_shard(m, mesh=mesh)
fully_shard(model, mesh=mesh)
parts = fitted(learner(model, batches(12)), 2)
full = [p.full_tensor() for p in model.parameters()]
worst = max((a - b).abs().max().item() for a, b in zip(full, plain.model.parameters()))
dist.destroy_process_group()
print(json.dumps([ok, worst, parts.state.optimizer_step]))
"""

def test_accelerate_and_fsdp2_with_one_rank():
    "Accelerate alone changes nothing; a model that torch has sharded (NCCL, one rank) trains to the same weights"
    ok, worst, steps = fresh(ONE_RANK)
    assert ok and worst < 1e-4 and steps == 24

def test_a_learner_on_the_host_moves():
    "As in a job that asked for a device: parameters, optimizer state and the rest of the training"
    def on_host():
        torch.manual_seed(0)
        return make_learner(nn.Linear(16, 5), TensorLoader(*data(20), bs=BS), device='cpu', lr=.01)
    learn, stays = on_host(), on_host()
    for o in learn, stays: o.fit(1)
    learn.move(DEVICE)
    for o in learn, stays: o.fit(1)
    held = [*learn.model.parameters(), *(v for s in learn.opt.state.values() for v in s.values() if v.ndim)]
    assert len(held) == 6 and all(o.device == DEVICE for o in held)
    assert all(torch.allclose(a.cpu(), b, atol=1e-5) for a, b in zip(weights(learn.model), weights(stays.model)))

def test_a_run_after_the_device_was_used(tmp_path):
    "In a process of its own, with the same random numbers: the weights are those of `fit`"
    torch.zeros(1, device=DEVICE)
    alone, learn = (learner(make(), batches(10), batches(3, 2), metrics=[accuracy]) for _ in range(2))
    torch.manual_seed(3)
    run = learn.start(2, folder=tmp_path/'run')
    run.wait(240)
    fitted(alone, 2)
    assert same(weights(learn.model), weights(alone.model)) and learn.device == alone.device
    assert learn.history.epochs['valid_loss'] == alone.history.epochs['valid_loss']

@on_cuda
def test_launch_after_the_device_was_used_is_refused():
    torch.zeros(1, device=DEVICE)
    learn = make_learner(mlp(), data(2))
    with pytest.raises(RuntimeError, match='cuda is in use.*Restart the kernel'):
        learn.launch(2, 1)
    assert not learn.history.n_steps

FORK = """
import json, os, torch
from test_gpu import data, make_learner, mlp
from trainer_nb.base import has_accelerator, rng_state
learn = make_learner(mlp(), data(2), device='cpu')
found, _ = has_accelerator(), rng_state()
pid = os.fork()
if not pid:
    try:
        torch.ones(2, device='cuda' if found else 'cpu').sum().item()
        os._exit(0)
    finally: os._exit(1)
print(json.dumps([found, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]))
"""

def test_a_process_that_asked_for_a_device_can_be_forked():
    "Looking whether there is one must not start the driver, which a forked process could not use"
    found, code = fresh(FORK, TRAINER_NB_GPU_DRY='1')      # without it this file asks torch itself
    assert found == torch.cuda.is_available() and code == 0

def test_hashes_are_those_of_the_host_and_two_fits_are_the_same():
    g = torch.Generator().manual_seed(0)
    some = [torch.randn(n, generator=g) for n in (1, 7, 2**14 + 3, 2**23 + 1)] + [torch.arange(9) % 2 > 0]
    assert torch.equal(hashes([o.to(DEVICE) for o in some]).cpu(), hashes(some))
    found = diff(*[lambda: learner(make(), batches(10), batches(3, 2))]*2, n_batches=10)
    assert found.is_equal, found
