"""What `Compile` gains: `python benchmarks/compile.py [processes] [model ...]`

Each model trains with AdamW on batches that are ready in a list, with one thread. The loops are interleaved in
one process, for 8 rounds, and again in four others, as processes differ by a tenth. A figure is the median over all
rounds of the time of one pass, divided by its steps. First passes are those of the first process, which finds nothing
compiled. `Compile()` compiles model and loss in one graph, as does the loop by hand beside it; with `optimizer=True` it
compiles the optimizer's step in a second one. The compiled step by hand is `torch.compile` over forward, backward and
optimizer, as PyTorch's documentation shows it. The last row is the fastest version that we know: one graph of forward,
loss, backward and optimizer.
"""
import json, os, platform, subprocess, sys
from inspect import unwrap
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

import plain
from trainer_nb.all import Compile, Learner

torch.set_num_threads(1)

MODELS = {   # name: (model, shape of a sample, batch size, steps in a pass)
    'tiny': (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)), (16,), 32, 300),
    'middling': (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512),
                                       nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)), (256,), 64, 40),
    'ConvNet': (lambda: nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32),
                nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), (1, 16, 16), 64, 30),
}


def parts(name):
    make, shape, bs, n = MODELS[name]
    torch.manual_seed(0)
    model = make()
    return model, torch.optim.AdamW(model.parameters(),
                                    lr=1e-3), [(torch.randn(bs, *shape), torch.randint(2, (bs,))) for _ in range(n)]

def raw(name, compiled=False):
    model, opt, batches = parts(name)
    return plain.by_hand(model, opt, batches, torch.compile(model) if compiled else None)

def raw_with_loss(name, optimizer=False):
    model, opt, batches = parts(name)
    loss_of = torch.compile(lambda xb, yb: F.cross_entropy(model(xb), yb))
    if optimizer: opt.param_groups[0]['lr'] = torch.tensor(opt.param_groups[0]['lr'])
    end = torch.compile(lambda: opt.step()) if optimizer else opt.step
    def one_pass():
        model.train()
        for xb, yb in batches:
            loss_of(xb, yb).backward()
            end()
            opt.zero_grad()
    return one_pass

def raw_step(name):
    model, opt, batches = parts(name)
    opt.param_groups[0]['lr'] = torch.tensor(opt.param_groups[0]['lr'])
    @torch.compile
    def step(xb, yb):
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss
    def one_pass():
        model.train()
        for xb, yb in batches: step(xb, yb)
    return one_pass

def one_graph(name):
    model, opt, batches = parts(name)
    params, end = list(model.parameters()), unwrap(type(opt).step)     # torch compiles no wrapper
    opt.param_groups[0]['lr'] = torch.tensor(opt.param_groups[0]['lr'])
    for p in params: p.grad = torch.zeros_like(p)
    @torch.compile(fullgraph=True)
    def step(xb, yb):
        loss = F.cross_entropy(model(xb), yb)
        for p, g in zip(params, torch.autograd.grad(loss, params)): p.grad.copy_(g)
        with torch.no_grad(): end(opt)
        return loss.detach()
    def one_pass():
        model.train()
        for xb, yb in batches: step(xb, yb)
    return torch._dynamo.config.patch(trace_autograd_ops=True)(one_pass)

def ours(name, *hooks):
    model, opt, batches = parts(name)
    learn = Learner(model, batches, loss_fn=F.cross_entropy, optim=opt, display=False, hooks=hooks)
    return lambda: learn.fit(1)

VARIANTS = {
    'raw loop': raw,
    'ours': ours,
    'raw loop, compiled model': lambda name: raw(name, compiled=True),
    'raw loop, compiled with the loss': raw_with_loss,
    'ours, compiled model': lambda name: ours(name, Compile()),
    'raw loop, compiled with the loss, and the optimizer': lambda name: raw_with_loss(name, optimizer=True),
    'ours, compiled model, and the optimizer': lambda name: ours(name, Compile(optimizer=True)),
    'raw loop, compiled step': raw_step,
    'one graph by hand': one_graph,
}
REFERENCE = dict.fromkeys(VARIANTS, 'raw loop') | {     # what is the same thing by hand
    'ours, compiled model': 'raw loop, compiled with the loss',
    'ours, compiled model, and the optimizer': 'raw loop, compiled with the loss, and the optimizer'}


ROUNDS = 8

def times(name):
    "dict: variant → seconds of a first pass and of `ROUNDS` further ones, in this process"
    return plain.in_turn({variant: make(name) for variant, make in VARIANTS.items()}, ROUNDS + 1)

def measure(name, processes, env):
    "dict: variant → median µs per step, its ratio to the raw loop, and to the same thing by hand, in the same round"
    found = [json.loads(subprocess.run([sys.executable, '-W', 'ignore', __file__, 'times', name], env=env, check=True,
                                       stdout=subprocess.PIPE).stdout) for _ in range(processes)]
    took = {variant: [t/MODELS[name][3]*1e6 for o in found for t in o[variant][1:]] for variant in VARIANTS}
    ratio = lambda a, b: median(s/t for s, t in zip(took[a], took[b]))
    return {v: (median(ts), ratio(v, 'raw loop'), ratio(v, REFERENCE[v]), found[0][v][0]) for v, ts in took.items()}


if __name__ == '__main__' and sys.argv[1:2] == ['times']: print(json.dumps(times(sys.argv[2])))
elif __name__ == '__main__':
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {ROUNDS} rounds in each of {processes} processes')
    with TemporaryDirectory() as cache:
        env = {**os.environ, 'TORCHINDUCTOR_CACHE_DIR': cache}
        for name in sys.argv[2:] or MODELS:
            print(f'\n{name}\n\n| variant | µs per step | × raw loop | × by hand | first pass, s |\n'
                  '| --- | ---: | ---: | ---: | ---: |')
            for variant, (us, x, y, first) in measure(name, processes, env).items():
                print(f'| {variant} | {us:.1f} | {x:.3f} | {y:.3f} | {first:.1f} |', flush=True)
