"""What `Learner` costs on a GPU: `python benchmarks/gpu.py [rounds]`

A small MLP, a ConvNet and a small transformer in bf16, AdamW (fused), batches that are on the device: eager and compiled, the raw loop and ours, interleaved
in one process; a figure is the median over the rounds of the time of a pass, divided by its steps. Then the same MLP with the whole step in CUDA graphs,
how often a fit waits for the device, beside the raw loop, and batches that come from the host. Without a GPU it says so; `--cpu` runs the same lines on the CPU, a few steps of each, to see
that they run: those figures say nothing.
"""
import gc, platform, sys, warnings
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn

from trainer_nb.all import AMP, Compile, Learner, TensorLoader, accuracy, prefetch

ON_CPU = '--cpu' in sys.argv
DEVICE = torch.device('cpu' if ON_CPU else 'cuda:0')
N_STEPS = 3 if ON_CPU else 200


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
    return nn.Sequential(*block(3, c), *block(c, c), nn.MaxPool2d(2), *block(c, 2*c), *block(2*c, 2*c), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2*c, 10))

MODELS = {   # name: (model, batch)
    'MLP': (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)), lambda: torch.randn(64, 64)),
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
    call = torch.compile(model, mode=mode) if compiled else model
    def one_pass():
        model.train()
        for xb, yb in batches:
            with torch.autocast(DEVICE.type, torch.bfloat16): loss = F.cross_entropy(call(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
        wait()
    return one_pass

def ours(name, hooks=(), **kwargs):
    model, opt, batches = parts(name)
    learn = Learner(model, batches, loss_fn=F.cross_entropy, optim=opt, hooks=[AMP(), *hooks], device=DEVICE, **{'display': False, **kwargs})
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
    "ours, `Compile(what='step')`": lambda name: ours(name, [Compile(what='step')]),
}
GRAPHS = {
    'raw, eager': raw,
    'raw, compiled, CUDA graphs': lambda name: raw(name, compiled=True, mode='reduce-overhead'),
    "ours, `Compile('reduce-overhead', what='step')`": lambda name: ours(name, [Compile('reduce-overhead', what='step')]),
}


def measure(variants, name, rounds):
    "Microseconds per step of each variant, by round"
    if ON_CPU and name != 'MLP': variants = {key: make for key, make in variants.items() if 'ompile' not in key}     # to compile takes minutes
    passes = {key: make(name) for key, make in variants.items()}
    times = {key: [] for key in passes}
    for i in range(rounds + 2):
        for key, one_pass in passes.items():
            gc.collect()
            wait()
            start = perf_counter()
            one_pass()
            if i >= 2: times[key].append((perf_counter() - start)/N_STEPS*1e6)      # the first two warm up, and compile
    return times

def table(variants, names, rounds):
    print('| model | loop | µs per step | quartiles | × raw, eager |\n| --- | --- | ---: | ---: | ---: |')
    for name in names:
        times = measure(variants, name, rounds)
        for key, ts in times.items():
            low, _, high = quantiles(ts, n=4)
            print(f'| {name} | {key} | {median(ts):.1f} | {low:.1f}–{high:.1f} | {median(t/b for t, b in zip(ts, times["raw, eager"])):.3f} |', flush=True)


def syncs(one_pass):
    "How often a pass waits for the device, as torch counts it; its own `synchronize` at the end is not counted by torch"
    one_pass()
    if ON_CPU: return 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        torch.cuda.set_sync_debug_mode('warn')
        try: one_pass()
        finally: torch.cuda.set_sync_debug_mode('default')
    return sum('synchroniz' in str(o.message) for o in seen)

def count_syncs():
    print(f'\n| a pass of {N_STEPS} steps | waits for the device |\n| --- | ---: |')
    for key, make in {'raw': raw, 'ours': ours, 'ours, accuracy and history': lambda name: ours(name, metrics=[accuracy])}.items():
        print(f'| {key} | {syncs(make("MLP"))} |')
    print('\nOurs reads the means of a pass at its end, in one go.')


def from_host(rounds):
    "Batches of a tensor on the host: as they are, and with `prefetch`"
    n, size = (64, 2**10) if ON_CPU else (2**14, 2**14)
    x, y = torch.randn(n, size), torch.randint(10, (n,))
    def fit(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
        learn = Learner(model, wrap(TensorLoader(x, y, bs=n//32, shuffle=True)), loss_fn=F.cross_entropy, device=DEVICE, display=False)
        def one_pass():
            learn.fit(1)
            wait()
        return one_pass
    passes = {'as they are': fit(lambda dl: dl), 'with `prefetch`': fit(lambda dl: prefetch(dl, DEVICE))}
    times = {key: [] for key in passes}
    for i in range(rounds + 1):
        for key, one_pass in passes.items():
            start = perf_counter()
            one_pass()
            if i: times[key].append(1000*(perf_counter() - start)/32)
    print(f'\n| batches of {n//32*size*4/2**20:.1f} MiB from the host | ms per step |\n| --- | ---: |')
    for key, ts in times.items(): print(f'| {key} | {median(ts):.2f} |')


if __name__ == '__main__':
    rounds = next((int(o) for o in sys.argv[1:] if o.isdigit()), 2 if ON_CPU else 10)
    if not ON_CPU and not torch.cuda.is_available():
        print('There is no GPU here (torch.cuda.is_available() is False): nothing is measured. `python benchmarks/gpu.py --cpu` sees that these lines run; '
              'for figures on a CPU there are overhead.py and compile.py.')
        sys.exit()
    where = 'CPU, to see that it runs: the figures say nothing' if ON_CPU else f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}'
    print(f'{where}; torch {torch.__version__}, Python {platform.python_version()}, {rounds} rounds of {N_STEPS} steps\n')
    table(VARIANTS, MODELS, rounds)
    print()
    table(GRAPHS, ['MLP'], rounds)
    count_syncs()
    from_host(rounds)
