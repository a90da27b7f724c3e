"""What `Learner` costs on a GPU: `python benchmarks/gpu.py [rounds]`

Steps of an MLP in bf16 of about 0.2, 1 and 5 ms, ours beside the loop by hand. Then a GPT of 124M parameters in bf16,
with loss, accuracy, history and display, beside the best loop by hand: compiled, AdamW fused. Loops take turns in one
process; a figure is the median over the rounds. `--seconds=240` leaves out what would not fit in. Without a GPU nothing
is measured; `--cpu` runs the same lines on the CPU, a few steps of each in a tiny size, to see that they run: those
figures mean nothing.
"""
import gc, platform, sys
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from plain import in_turn, one_pass, quiet, timed
from trainer_nb.all import AMP, Compile, Learner, accuracy

ON_CPU = '--cpu' in sys.argv
DEVICE = torch.device('cpu' if ON_CPU else 'cuda:0')
ENDS = perf_counter() + next((float(o.partition('=')[2]) for o in sys.argv if o.startswith('--seconds=')), 270)
# dense bf16 FLOP/s (V100: fp16), as the maker says
PEAKS = {'H200': 989e12, 'H100': 989e12, 'B200': 2250e12, 'A100': 312e12, 'A10G': 70e12, 'L40S': 362e12,
         'L4': 121e12, 'RTX 4090': 165e12, 'V100': 125e12}


def wait():
    if not ON_CPU: torch.cuda.synchronize()

def settle():
    gc.collect()
    wait()

def clock(f): return timed(lambda: (f(), wait()))


def by_hand(model, batch, n, lr=1e-4, compiled=False):
    "`n` steps of the best loop"
    opt = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    def loss_of(xb, yb):
        with torch.autocast(DEVICE.type, torch.bfloat16): return F.cross_entropy(model(xb), yb)
    if compiled and not ON_CPU: loss_of = torch.compile(loss_of)
    return lambda: one_pass([batch]*n, model, opt, loss_of)

def ours(model, batch, n, *hooks, fused=True, **kwargs):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    learn = Learner(model, [batch]*n, loss_fn=F.cross_entropy, optim=opt, device=DEVICE, hooks=[AMP(), *hooks],
                    **{'display': False, **kwargs})
    return quiet(lambda: learn.fit(1))

EVERYTHING = {'metrics': [accuracy], 'display': 'text'}


def mlp(d):
    "(an MLP of width `d`, a batch)"
    torch.manual_seed(0)
    bs = 8 if ON_CPU else 4096
    model = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 10)).to(DEVICE)
    return model, (torch.randn(bs, d, device=DEVICE), torch.randint(10, (bs,), device=DEVICE))

def width_for(ms, n=20):
    "Of an MLP whose step by hand takes about as long: doubled until it does"
    d = 32
    while not ON_CPU and d < 2**14:
        f = by_hand(*mlp(d), n)
        f()
        if 1000*clock(f)/n >= .75*ms: break
        d *= 2
    return d

def lengths(rounds):
    print('| step by hand | loop | ms per step | × by hand |\n| --- | --- | ---: | ---: |')
    for ms in .2, 1, 5:
        if perf_counter() > ENDS - 60: return print('\nThere was no time for longer steps.')
        d, n = width_for(ms), 3 if ON_CPU else max(int(400/ms), 50)
        passes = {'by hand': by_hand(*mlp(d), n), 'ours': ours(*mlp(d), n),
                  'ours, accuracy, history and display': ours(*mlp(d), n, **EVERYTHING)}
        times = in_turn(passes, rounds, before=settle, clock=clock)
        for name, ts in times.items():
            ratio = median(t/b for t, b in zip(ts, times['by hand']))
            print(f'| about {ms} ms (width {d}) | {name} | {1000*median(ts)/n:.3f} | {ratio:.3f} |', flush=True)


class Block(nn.Module):
    def __init__(self, d, n_heads):
        super().__init__()
        self.n_heads, self.na, self.nb = n_heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3*d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4*d), nn.GELU(approximate='tanh'), nn.Linear(4*d, d))
    def forward(self, x):       # (B, T, d)
        B, T, d = x.shape
        q, k, v = self.qkv(self.na(x)).view(B, T, 3, self.n_heads, d//self.n_heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, d))
        return x + self.mlp(self.nb(x))

class GPT(nn.Module):
    "GPT-2's small size: 124M parameters, one embedding for both ends; (B, T) int64 → (B, vocabulary, T), a view"
    def __init__(self, d=32 if ON_CPU else 768, n_layers=2 if ON_CPU else 12, n_heads=2 if ON_CPU else 12,
                 vocab=128 if ON_CPU else 50304, T=16 if ON_CPU else 1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, d), nn.Parameter(.02*torch.randn(T, d))
        self.blocks, self.norm = nn.Sequential(*[Block(d, n_heads) for _ in range(n_layers)]), nn.LayerNorm(d)
        nn.init.normal_(self.tokens.weight, std=.02)
    def forward(self, ids):
        x = self.norm(self.blocks(self.tokens(ids) + self.places[:ids.size(1)]))
        return F.linear(x, self.tokens.weight).transpose(1, 2)

def throughput(rounds):
    "The GPT, ours beside the best loop by hand"
    bs, T, vocab, n = (2, 16, 128, 2) if ON_CPU else (32, 1024, 50304, 20)
    ids = torch.randint(vocab, (bs, T + 1), device=DEVICE)
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    def parts(): return GPT().to(DEVICE), batch, n
    model = GPT().to(DEVICE)
    with FlopCounterMode(display=False) as counter, torch.autocast(DEVICE.type, torch.bfloat16):
        F.cross_entropy(model(batch[0]), batch[1]).backward()
    n_params, n_flops = sum(p.numel() for p in model.parameters()), counter.get_total_flops()
    del model
    compile_it = (lambda **kwargs: []) if ON_CPU else (lambda **kwargs: [Compile(**kwargs)])
    passes = {'by hand, compiled with the loss': by_hand(*parts(), compiled=True), 'by hand, eager': by_hand(*parts()),
              'ours, everything, `Compile()`': ours(*parts(), *compile_it(), **EVERYTHING),
              'ours, everything, `Compile(optimizer=True)`': ours(*parts(), *compile_it(optimizer=True), fused=False,
                                                                  **EVERYTHING),
              'ours, everything, eager': ours(*parts(), **EVERYTHING)}
    times = in_turn(passes, rounds, before=settle, clock=clock)
    peak = None if ON_CPU else next((v for k, v in PEAKS.items() if k in torch.cuda.get_device_name()), None)
    print(f'\nGPT of 1,024 tokens: {n_params/1e6:.0f}M parameters, {n_flops/1e12:.3f} TFLOP in a step, '
          'by torch\'s counter\n')
    print('| loop | tokens per s | × by hand, compiled | share of peak |\n| --- | ---: | ---: | ---: |')
    best = median(times['by hand, compiled with the loss'])
    for key, ts in times.items():
        t = median(ts)
        share = f'{n_flops*n/t/peak:.1%}' if peak else 'unknown'
        print(f'| {key} | {bs*T*n/t:,.0f} | {best/t:.3f} | {share} |', flush=True)


if __name__ == '__main__':
    rounds = next((int(o) for o in sys.argv[1:] if o.isdigit()), 2 if ON_CPU else 5)
    if not ON_CPU and not torch.cuda.is_available():
        sys.exit('There is no GPU here (torch.cuda.is_available() is False): nothing is measured. '
                 '`python benchmarks/gpu.py --cpu` sees that these lines run.')
    where = ('CPU, to see that it runs: the figures say nothing' if ON_CPU
             else f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}')
    print(f'{where}; torch {torch.__version__}, Python {platform.python_version()}, {rounds} rounds\n')
    lengths(rounds)
    if ON_CPU or perf_counter() + 75 < ENDS: throughput(min(rounds, 3))
    else: print('\nThere was no time for the GPT.')
