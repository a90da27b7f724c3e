"The memory of a training step, forecast without taking one, is what torch's profiler sees the allocator hand out"

import os, subprocess, sys
from pathlib import Path

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from common import same, weights
from trainer_nb.all import AMP, EMA, GradAccum, GradClip, Learner
from trainer_nb.look.forecast import forecast_of


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x): return x + self.inner(x)

class Last(nn.Module):
    "Of the outputs of a recurrent layer"
    def forward(self, x): return x[0][:, -1]

class Turned(nn.Module):
    "Lets a layer mix the steps of a series, and lets the next one see its fields"
    def forward(self, x): return x.transpose(1, 2)

class Attention(nn.Module):
    "Causal self-attention"
    def __init__(self, n=128, heads=4):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(n, 3*n), nn.Linear(n, n), heads
    def forward(self, x):
        bs, t, n = x.shape
        q, k, v = self.qkv(x).view(bs, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(bs, t, n))

class UNet(nn.Module):
    def __init__(self, n=16):
        super().__init__()
        self.a, self.b, self.c = conv(3, n), conv(n, 2*n), conv(3*n, n)
        self.out = nn.Conv2d(n, 10, 1)
    def forward(self, x):
        a = self.a(x)
        b = F.interpolate(self.b(F.max_pool2d(a, 2)), scale_factor=2)
        return self.out(self.c(torch.cat([a, b], 1))).mean((2, 3))

def conv(n_in, n_out, **kw):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1, **kw), nn.BatchNorm2d(n_out), nn.ReLU())

def head(*body, n): return nn.Sequential(*body, nn.Flatten(), nn.Linear(n, 10))

def mlp(*sizes): return head(*(o for a, b in zip(sizes, sizes[1:]) for o in (nn.Linear(a, b), nn.GELU())), n=sizes[-1])

IMAGES, ROWS, SERIES, TOKENS = (3, 32, 32), (64,), (24, 32), 'tokens'
def block(n=128): return Residual(nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 4*n), nn.GELU(), nn.Linear(4*n, n)))
def mixer(t): return nn.Sequential(Turned(), nn.Linear(t, 4*t), nn.GELU(), nn.Linear(4*t, t), Turned())
def pooled(*body, n): return head(*body, nn.AdaptiveAvgPool2d(1), n=n)

MODELS = {      # name → (model, shape of a sample, options of the learner)
    'linear': (lambda: mlp(64), ROWS, {}),
    'wide': (lambda: mlp(64, 1024, 1024), ROWS, {}),
    'deep': (lambda: mlp(*[64]*20), ROWS, {}),
    'momentum': (lambda: mlp(64, 512), ROWS, {'optim': lambda p: torch.optim.SGD(p, .01, momentum=.9)}),
    'sgd': (lambda: mlp(64, 512), ROWS, {'optim': torch.optim.SGD}),
    'rmsprop': (lambda: mlp(64, 512), ROWS, {'optim': torch.optim.RMSprop}),
    'convolutions': (lambda: pooled(conv(3, 32), conv(32, 32), n=32), IMAGES, {}),
    'depthwise': (lambda: pooled(conv(3, 32), conv(32, 32, groups=32), n=32), IMAGES, {}),
    'groups': (lambda: pooled(nn.Conv2d(3, 32, 3), nn.GroupNorm(4, 32), nn.SiLU(), n=32), IMAGES, {}),
    'dropout': (lambda: head(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(.5), n=512), ROWS, {}),
    'transformer': (lambda: head(Residual(Attention(32, 4)), block(32), n=24*32), SERIES, {}),
    'embedding': (lambda: head(nn.Embedding(1000, 128), Residual(Attention()), block(), n=16*128), TOKENS, {}),
    'mixer': (lambda: head(Residual(mixer(24)), block(32), n=24*32), SERIES, {}),
    'plain rnn': (lambda: head(nn.RNN(32, 64, batch_first=True), Last(), n=64), SERIES, {}),
    'frozen': (lambda: head(mlp(64, 512).requires_grad_(False), n=10), ROWS, {}),
    'average': (lambda: mlp(64, 512, 512), ROWS, {'hooks': lambda: [EMA(.9)]}),
    'clipping': (lambda: mlp(64, 512, 512), ROWS, {'hooks': lambda: [GradClip(1.)]}),
    'accumulation': (lambda: mlp(64, 512), ROWS, {'hooks': lambda: [GradAccum(2)]}),
    'bfloat16': (lambda: pooled(conv(3, 32), conv(32, 32), n=32), IMAGES, {'hooks': lambda: [AMP()]}),
}

BUFFERED = {    # kernels of the CPU take memory inside, which nobody sees from outside
    '1d': (lambda: head(nn.Conv1d(24, 48, 5), nn.ReLU(), nn.Conv1d(48, 48, 5), nn.ReLU(), n=48*24), SERIES, {}),
    'strided': (lambda: pooled(conv(3, 32, stride=2), conv(32, 64, stride=2), n=64), IMAGES, {}),
    'residual': (lambda: pooled(conv(3, 24), Residual(conv(24, 24)), Residual(conv(24, 24)), n=24), IMAGES, {}),
    'u-net': (UNet, IMAGES, {}),
    'lstm': (lambda: head(nn.LSTM(32, 64, batch_first=True), Last(), n=64), SERIES, {}),
}

def make(name, n=256, bs=64, device='cpu'):
    build, shape, options = (MODELS | BUFFERED)[name]
    torch.manual_seed(0)
    x = torch.randint(1000, (n, 16)) if shape == TOKENS else torch.randn(n, *shape)
    options = {k: o() if k == 'hooks' else o for k, o in options.items()}
    return Learner(build(), (x, torch.randint(10, (n,))), loss_fn=F.cross_entropy, bs=bs, display=False, device=device,
                   **options)

def real_peak(learn):
    "The most bytes that exist in the second epoch, by torch's profiler"
    learn.fit(1)
    held = [*learn.model.parameters(), *learn.model.buffers()]
    held += [v for s in learn.opt.state.values() for v in s.values() if torch.is_tensor(v)]
    if (average := learn.get_hook(EMA, None)) is not None: held += average.model.state_dict().values()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p: learn.fit(1)
    events = [e for e in p.profiler.kineto_results.events() if e.name() == '[memory]']
    now = peak = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        now += e.nbytes()
        peak = max(peak, now)
    return sum(t.nbytes for t in held) + peak

@pytest.mark.parametrize('name', MODELS)
def test_is_the_real_peak(name):
    learn = make(name)
    before, rng = weights(learn.model), torch.get_rng_state()
    f = forecast_of(learn)
    assert same(before, weights(learn.model)) and torch.equal(rng, torch.get_rng_state()) and not learn.opt.state
    assert sum(f.parts.values()) == f.peak
    assert f.peak == pytest.approx(real_peak(learn), rel=.1)
    assert forecast_of(learn).peak == pytest.approx(f.peak, rel=.01)        # after two fits

@pytest.mark.parametrize('name', BUFFERED)
def test_leaves_out_what_kernels_take_inside(name):
    learn = make(name)
    assert .1 < forecast_of(learn).peak/real_peak(learn) < 1

def test_a_batch_that_is_a_view_is_not_all_the_data():
    x, y = torch.randn(1400, 64), torch.randint(10, (1400,))
    learn = Learner(mlp(64), [(x[:64], y[:64])], loss_fn=F.cross_entropy, display=False)
    assert forecast_of(learn).parts['batch'] == 64*64*4 + 64*8

def test_a_step_that_needs_values_is_named():
    learn = make('linear')
    def step(batch, learn):
        loss = F.cross_entropy(learn.model(batch[0]), batch[1])
        return {'loss': loss/max(1, loss.item())}
    learn.train_step = step
    with pytest.raises(RuntimeError) as e: learn.summary(memory=True)
    assert 'cannot read one' in ''.join(e.value.__notes__)

def test_a_forecast_leaves_the_private_paths_of_torch_usable():
    "A check of such a path that is first asked for without values would fail, and be remembered"
    code = """if True:
        from test_forecast import make
        make('average').summary(memory=True)
        from trainer_nb.base import torch_private
        assert torch_private._foreach_is_right()"""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get('PYTHONPATH', '')]
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(paths)}
    subprocess.run([sys.executable, '-c', code], env=env, check=True)
