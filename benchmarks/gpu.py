"""What `Learner` costs on a GPU: `python benchmarks/gpu.py [rounds]`

A small MLP, a ConvNet and a small transformer in bf16, AdamW (fused), batches that are on the device: eager and
compiled, the raw loop and ours, interleaved in one process; a figure is the median over the rounds of the time
of a pass, divided by its steps. First come steps of 0.2, 1 and 5 ms, ours beside raw; then two models of the
size that people train, a ResNet-50 and a GPT of 124M parameters in bf16, with loss, accuracy, history and
display, beside the best loop by hand: compiled, AdamW fused, images in channels_last. Finally the MLP with the
whole step in CUDA graphs, how often a fit waits for the device, and batches that come from the host.
`--seconds=240` leaves out what would not fit in. Without a GPU nothing is measured; `--cpu` runs the same lines
on the CPU, a few steps of each in a tiny size, to see that they run: those figures mean nothing.
"""
import gc, io, platform, sys, warnings
from contextlib import redirect_stdout
from statistics import median, quantiles
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from plain import in_turn
from trainer_nb.all import AMP, Compile, Learner, TensorLoader, accuracy

ON_CPU = '--cpu' in sys.argv
DEVICE = torch.device('cpu' if ON_CPU else 'cuda:0')
N_STEPS = 3 if ON_CPU else 200
ENDS = perf_counter() + next((float(o.partition('=')[2]) for o in sys.argv if o.startswith('--seconds=')), 270)
# dense bf16 FLOP/s (V100: fp16), as the maker says
PEAKS = {'H200': 989e12, 'H100': 989e12, 'B200': 2250e12, 'A100': 312e12, 'A10G': 70e12, 'L40S': 362e12,
         'L4': 121e12, 'RTX 4090': 165e12, 'V100': 125e12}


class Transformer(nn.Module):
    "Classes of sequences of 128 tokens: (bs, 128) int64 → (bs, 10)"
    def __init__(self, d=32 if ON_CPU else 256, n_layers=1 if ON_CPU else 4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, d), nn.Parameter(.02*torch.randn(128, d))
        layer = nn.TransformerEncoderLayer(d, 8, 4*d, dropout=0., batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False), nn.Linear(d, 10)

    def forward(self, x): return self.head(self.layers(self.tokens(x) + self.places).mean(1))

def conv_net(c=4 if ON_CPU else 64):
    def block(i, o): return nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()
    return nn.Sequential(*block(3, c), *block(c, c), nn.MaxPool2d(2), *block(c, 2*c), *block(2*c, 2*c),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2*c, 10))

MODELS = {   # name: (model, batch)
    'MLP': (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
            lambda: torch.randn(64, 64)),
    'ConvNet': (conv_net, lambda: torch.randn(8 if ON_CPU else 256, 3, 32, 32)),
    'transformer': (Transformer, lambda: torch.randint(1000, (2 if ON_CPU else 64, 128))),
}


def wait():
    if not ON_CPU: torch.cuda.synchronize()

def parts(name):
    make, batch = MODELS[name]
    torch.manual_seed(0)
    x = [batch() for _ in range(8)]
    batches = [(o.to(DEVICE), torch.randint(10, (len(o),), device=DEVICE)) for o in x]
    model = make().to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), [batches[i % 8] for i in range(N_STEPS)]

def raw(name, compiled=False, mode=None):
    model, opt, batches = parts(name)
    def loss_of(xb, yb):
        with torch.autocast(DEVICE.type, torch.bfloat16): return F.cross_entropy(model(xb), yb)
    call = torch.compile(loss_of, mode=mode) if compiled else loss_of
    def one_pass():
        model.train()
        for xb, yb in batches:
            call(xb, yb).backward()
            opt.step()
            opt.zero_grad()
        wait()
    return one_pass

def ours(name, hooks=(), **kwargs):
    model, opt, batches = parts(name)
    learn = Learner(model, batches, loss_fn=F.cross_entropy, optim=opt, device=DEVICE, hooks=[AMP(), *hooks],
                    **{'display': False, **kwargs})
    def one_pass():
        learn.fit(1)
        wait()
    return one_pass

VARIANTS = {
    'raw, eager': raw,
    'ours, eager': ours,
    'ours, eager, accuracy and history': lambda name: ours(name, metrics=[accuracy]),
    'raw, compiled': lambda name: raw(name, compiled=True),
    'ours, compiled': lambda name: ours(name, [Compile()]),
}
GRAPHS = {
    'raw, eager': raw,
    'raw, compiled, CUDA graphs': lambda name: raw(name, compiled=True, mode='reduce-overhead'),
    "ours, `Compile('reduce-overhead')`": lambda name: ours(name, [Compile('reduce-overhead')]),
}


def measure(variants, name, rounds):
    "Microseconds per step of each variant, by round"
    # to compile takes minutes
    if ON_CPU and name != 'MLP': variants = {key: make for key, make in variants.items() if 'ompile' not in key}
    def settle():
        gc.collect()
        wait()
    times = in_turn({key: make(name) for key, make in variants.items()}, rounds + 2, settle)
    return {key: [t/N_STEPS*1e6 for t in ts[2:]] for key, ts in times.items()}      # the first two warm up, and compile

def table(variants, names, rounds):
    print('| model | loop | µs per step | quartiles | × raw, eager |\n| --- | --- | ---: | ---: | ---: |')
    for name in names:
        times = measure(variants, name, rounds)
        for key, ts in times.items():
            low, _, high = quantiles(ts, n=4)
            print(f'| {name} | {key} | {median(ts):.1f} | {low:.1f}–{high:.1f} | '
                  f'{median(t/b for t, b in zip(ts, times["raw, eager"])):.3f} |', flush=True)


def syncs(one_pass):
    "How often a pass waits for the device, as torch counts it, without the `synchronize` at the end"
    one_pass()
    if ON_CPU: return 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        torch.cuda.set_sync_debug_mode('warn')
        try: one_pass()
        finally: torch.cuda.set_sync_debug_mode('default')
    return sum('called a synchronizing' in str(o.message) for o in seen)   # torch's first message is about the mode

def count_syncs():
    print(f'\n| a pass of {N_STEPS} steps | waits for the device |\n| --- | ---: |')
    for key, make in {'raw': raw, 'ours': ours,
                      'ours, accuracy and history': lambda name: ours(name, metrics=[accuracy])}.items():
        print(f'| {key} | {syncs(make("MLP"))} |')
    print('\nOurs reads the means of a pass at its end, in one go.')


def from_host(rounds):
    "Batches of a tensor on the host: as they are, and pinned, with `device`"
    n, size = (64, 2**10) if ON_CPU else (2**14, 2**14)
    x, y = torch.randn(n, size), torch.randint(10, (n,))
    def fit(**kwargs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
        learn = Learner(model, TensorLoader(x, y, bs=n//32, shuffle=True, **kwargs), loss_fn=F.cross_entropy,
                        device=DEVICE, display=False)
        def one_pass():
            learn.fit(1)
            wait()
        return one_pass
    passes = {'as they are': fit(), 'with `device`': fit(device=DEVICE)}
    times = {key: [] for key in passes}
    for i in range(rounds + 1):
        for key, one_pass in passes.items():
            start = perf_counter()
            one_pass()
            if i: times[key].append(1000*(perf_counter() - start)/32)
    print(f'\n| batches of {n//32*size*4/2**20:.1f} MiB from the host | ms per step |\n| --- | ---: |')
    for key, ts in times.items(): print(f'| {key} | {median(ts):.2f} |')


# Steps of a given length

def wide_mlp(d): return nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 10))

def of_length(ms):
    "Width of an MLP whose raw step takes about as long: doubled until it does"
    d = 32
    while not ON_CPU and d < 2**14:
        one_pass, n = sized(d, raw=True), 20
        one_pass(n)
        start = perf_counter()
        one_pass(n)
        if 1000*(perf_counter() - start)/n >= .75*ms: break
        d *= 2
    return d

def sized(d, raw=False, **kwargs):
    "A pass over `n` batches of an MLP of width `d`, in bf16"
    torch.manual_seed(0)
    model, bs = wide_mlp(d).to(DEVICE), 8 if ON_CPU else 4096
    batch = torch.randn(bs, d, device=DEVICE), torch.randint(10, (bs,), device=DEVICE)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    learn = None if raw else Learner(model, [batch], loss_fn=F.cross_entropy, optim=opt, hooks=[AMP()],
                                     device=DEVICE, **{'display': False, **kwargs})
    def one_pass(n):
        if raw:
            model.train()
            for xb, yb in [batch]*n:
                with torch.autocast(DEVICE.type, torch.bfloat16): loss = F.cross_entropy(model(xb), yb)
                loss.backward()
                opt.step()
                opt.zero_grad()
        else:
            learn.train_dl = [batch]*n
            with redirect_stdout(io.StringIO()): learn.fit(1)
        wait()
    return one_pass

def lengths(rounds):
    print('\n| raw step of about | loop | ms per step | × raw | CPU ms per step |\n| --- | --- | ---: | ---: | ---: |')
    for ms in .2, 1, 5:
        if perf_counter() > ENDS - 60: return print('\nThere was no time for longer steps.')
        d = of_length(ms)
        n = 3 if ON_CPU else max(int(400/ms), 50)
        passes = {'raw': sized(d, raw=True), 'ours': sized(d),
                  'ours, accuracy, history and display': sized(d, metrics=[accuracy], display='text')}
        times = timed({key: (lambda f=f: f(n)) for key, f in passes.items()}, rounds)
        for key, ts in times.items():
            ratio = median(t/b for (t, _), (b, _) in zip(ts, times['raw']))
            print(f'| {ms} ms (width {d}) | {key} | {1000*median(t for t, _ in ts)/n:.3f} | '
                  f'{ratio:.3f} | {1000*median(c for _, c in ts)/n:.3f} |', flush=True)

def timed(passes, rounds, warm=1):
    "dict: name → [(seconds, CPU seconds of this process)] by round, interleaved; those that warm up are left out"
    res = {key: [] for key in passes}
    for i in range(rounds + warm):
        for key, one_pass in passes.items():
            gc.collect()
            wait()
            start, cpu = perf_counter(), process_time()
            one_pass()
            if i >= warm: res[key].append((perf_counter() - start, process_time() - cpu))
    return res


# Two models of the size that people train

class Bottleneck(nn.Module):
    def __init__(self, i, c, stride):
        super().__init__()
        self.a = nn.Conv2d(i, c, 1, bias=False)
        self.b = nn.Conv2d(c, c, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(c, 4*c, 1, bias=False)
        self.na, self.nb, self.nc = nn.BatchNorm2d(c), nn.BatchNorm2d(c), nn.BatchNorm2d(4*c)
        self.short = nn.Sequential(nn.Conv2d(i, 4*c, 1, stride, bias=False),
                                   nn.BatchNorm2d(4*c)) if stride > 1 or i != 4*c else nn.Identity()
    def forward(self, x):
        y = self.nb(self.b(self.na(self.a(x)).relu())).relu()
        return (self.nc(self.c(y)) + self.short(x)).relu()

def resnet50(c=4 if ON_CPU else 64, depths=(1, 1, 1, 1) if ON_CPU else (3, 4, 6, 3)):
    "(bs, 3, 224, 224) → (bs, 1000)"
    layers, i = [nn.Conv2d(3, c, 7, 2, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], c
    for k, depth in enumerate(depths):
        for j in range(depth):
            layers.append(Bottleneck(i, c*2**k, 2 if k and not j else 1))
            i = 4*c*2**k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 1000))

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

def images():
    bs, side = (2, 32) if ON_CPU else (256, 224)
    x = torch.randn(bs, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(1000, (bs,), device=DEVICE)
    return resnet50().to(DEVICE, memory_format=torch.channels_last), (x, y), bs, 'images'

def texts():
    bs, T, vocab = (2, 16, 128) if ON_CPU else (32, 1024, 50304)
    ids = torch.randint(vocab, (bs, T + 1), device=DEVICE)
    return GPT().to(DEVICE), (ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), bs*T, 'tokens'

def flops(model, batch):
    "Of a training step, as torch counts them, before anything is compiled"
    with FlopCounterMode(display=False) as counter, torch.autocast(DEVICE.type, torch.bfloat16):
        F.cross_entropy(model(batch[0]), batch[1]).backward()
    model.zero_grad()
    return counter.get_total_flops()

def by_hand(n, make, is_compiled=True):
    "The best loop: compiled with the loss, as by `Compile`; AdamW fused, gradients set to None"
    model, batch, *_ = make()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    def loss_of(xb, yb):
        with torch.autocast(DEVICE.type, torch.bfloat16): return F.cross_entropy(model(xb), yb)
    f = torch.compile(loss_of) if is_compiled and not ON_CPU else loss_of
    def one_pass():
        model.train()
        for xb, yb in [batch]*n:
            f(xb, yb).backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
        wait()
    return one_pass

def with_everything(n, make, *hooks, fused=True):
    "Ours: loss, accuracy, history and display"
    model, batch, *_ = make()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    learn = Learner(model, [batch]*n, loss_fn=F.cross_entropy, optim=opt, metrics=[accuracy], hooks=[AMP(), *hooks],
                    device=DEVICE, display='text')
    def one_pass():
        with redirect_stdout(io.StringIO()): learn.fit(1)
        wait()
    return one_pass

def peak():
    "FLOP/s of this device, if the table has it"
    name = '' if ON_CPU else torch.cuda.get_device_name()
    return next((v for k, v in PEAKS.items() if k in name), None)

def throughput(name, make, rounds):
    "One model, ours beside the best loop by hand"
    model, batch, units, kind = make()
    n_params, n_flops = sum(p.numel() for p in model.parameters()), flops(model, batch)
    del model, batch
    n = 2 if ON_CPU else 20
    passes = {'by hand, compiled with the loss': by_hand(n, make), 'by hand, eager': by_hand(n, make, False),
              'ours, everything, `Compile()`': with_everything(n, make, *([] if ON_CPU else [Compile()])),
              'ours, everything, `Compile(optimizer=True)`': with_everything(
                  n, make, *([] if ON_CPU else [Compile(optimizer=True)]), fused=False),
              'ours, everything, eager': with_everything(n, make)}
    times = timed(passes, rounds)
    print(f'\n{name}: {n_params/1e6:.0f}M parameters, {n_flops/1e12:.3f} TFLOP in a step, by torch\'s counter\n')
    print(f'| loop | {kind} per s | × by hand, compiled | share of peak | CPU ms per step |')
    print('| --- | ---: | ---: | ---: | ---: |')
    best = median(t for t, _ in times['by hand, compiled with the loss'])
    for key, ts in times.items():
        t = median(t for t, _ in ts)
        share = f'{n_flops*n/t/peak():.1%}' if peak() else 'unknown'
        print(f'| {key} | {units*n/t:,.0f} | {best/t:.3f} | {share} | {1000*median(c for _, c in ts)/n:.2f} |',
              flush=True)
    del passes
    gc.collect()
    if not ON_CPU:
        torch._dynamo.reset()
        torch.cuda.empty_cache()

def part(name, f, *args, needs_s):
    "Measure something, if there is time; what fails does not end the others"
    if not ON_CPU and perf_counter() + needs_s > ENDS: return print(f'\n{name}: there was no time for it.', flush=True)
    try: f(*args)
    except Exception as e:
        print(f'\n{name}: failed with {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ""}', flush=True)


if __name__ == '__main__':
    rounds = next((int(o) for o in sys.argv[1:] if o.isdigit()), 2 if ON_CPU else 10)
    if not ON_CPU and not torch.cuda.is_available():
        print('There is no GPU here (torch.cuda.is_available() is False): nothing is measured. '
              '`python benchmarks/gpu.py --cpu` sees that these lines run; '
              'for figures on a CPU there are overhead.py and compile.py.')
        sys.exit()
    where = ('CPU, to see that it runs: the figures say nothing' if ON_CPU
             else f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}')
    print(f'{where}; torch {torch.__version__}, Python {platform.python_version()}, '
          f'{rounds} rounds of {N_STEPS} steps\n')
    part('Steps of a given length', lengths, min(rounds, 5), needs_s=30)
    part('Waits', count_syncs, needs_s=5)
    part('From the host', from_host, min(rounds, 3), needs_s=10)
    part('ResNet-50', throughput, 'ResNet-50, bf16, channels_last', images, min(rounds, 3), needs_s=75)
    part('GPT', throughput, 'GPT, bf16, 1,024 tokens', texts, min(rounds, 3), needs_s=75)
    print()
    part('Small models', table, VARIANTS, MODELS, min(rounds, 5), needs_s=60)
    print()
    part('CUDA graphs', table, GRAPHS, ['MLP'], min(rounds, 5), needs_s=20)
