"""What `Compile` gains: `python benchmarks/compile.py [processes]`

Each model trains with AdamW on batches that are ready in a list, with one thread. The loops take turns in one process,
for 8 rounds, and again in others, as processes differ by a tenth. A figure is the median over all rounds of the time of
one pass, divided by its steps. First passes are those of the first process, which finds nothing compiled. `Compile()`
compiles model and loss in one graph, as does the loop by hand beside it; with `optimizer=True` it compiles the
optimizer's step in a second one. The compiled step by hand is `torch.compile` over forward, backward and optimizer, as
PyTorch's documentation shows it. The last row is the fastest version that we know: one graph of all of them.
"""
import json, os, subprocess, sys
from inspect import unwrap
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

import plain
from trainer_nb.all import Compile, Learner

ROUNDS = 8
torch.set_num_threads(1)


def tiny(): return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

def middling():
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU(),
                         nn.LayerNorm(512), nn.Linear(512, 10))

def conv_net():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

MODELS = {   # name: (model, shape of a sample, batch size, steps in a pass)
    'tiny': (tiny, (16,), 32, 300), 'middling': (middling, (256,), 64, 40), 'ConvNet': (conv_net, (1, 16, 16), 64, 30)}


def parts(name, tensor_lr=False):
    "Model, optimizer and batches; a rate that is a tensor is an input of a compiled step"
    make, shape, bs, n = MODELS[name]
    torch.manual_seed(0)
    model = make()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if tensor_lr: opt.param_groups[0]['lr'] = torch.tensor(1e-3)
    return model, opt, [(torch.randn(bs, *shape), torch.randint(2, (bs,))) for _ in range(n)]

def with_loss(name):
    model, opt, batches = parts(name)
    loss_of = torch.compile(lambda xb, yb: F.cross_entropy(model(xb), yb))
    return lambda: plain.one_pass(batches, model, opt, loss_of)

def whole_step(name):
    model, opt, batches = parts(name, True)
    step = torch.compile(lambda xb, yb: plain.one_pass([(xb, yb)], model, opt))
    def one_pass():
        for xb, yb in batches: step(xb, yb)
    return one_pass

def one_graph(name):
    model, opt, batches = parts(name, True)
    params, end = list(model.parameters()), unwrap(type(opt).step)     # torch compiles no wrapper
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

def by_hand(name):
    model, opt, batches = parts(name)
    return lambda: plain.one_pass(batches, model, opt)

def ours(name, *hooks):
    model, opt, batches = parts(name)
    learn = Learner(model, batches, loss_fn=F.cross_entropy, optim=opt, display=False, hooks=hooks)
    return lambda: learn.fit(1)

VARIANTS = {        # name → what makes it, and the same thing by hand
    'raw loop': (by_hand, 'raw loop'),
    'ours': (ours, 'raw loop'),
    'raw loop, compiled with the loss': (with_loss, 'raw loop, compiled with the loss'),
    'ours, compiled model': (lambda name: ours(name, Compile()), 'raw loop, compiled with the loss'),
    'ours, and the optimizer': (lambda name: ours(name, Compile(optimizer=True)), 'raw loop, compiled with the loss'),
    'raw loop, compiled step': (whole_step, 'raw loop, compiled step'),
    'one graph by hand': (one_graph, 'one graph by hand'),
}


def measured(name, processes, env):
    "dict: variant → µs per step by round, and the seconds of the first pass"
    call, n = [sys.executable, '-W', 'ignore', __file__, 'times', name], MODELS[name][3]
    found = [json.loads(subprocess.check_output(call, env=env)) for _ in range(processes)]
    return {o: ([t/n*1e6 for res in found for t in res[o][1:]], found[0][o][0]) for o in VARIANTS}

def main(processes):
    plain.heading(f'{ROUNDS} rounds in each of {processes} processes')
    with TemporaryDirectory() as cache:
        for name in MODELS:
            print(f'{name}\n\n| variant | µs per step | × raw loop | × by hand | first pass, s |\n'
                  '| --- | ---: | ---: | ---: | ---: |')
            found = measured(name, processes, {**os.environ, 'TORCHINDUCTOR_CACHE_DIR': cache})
            for variant, (times, first) in found.items():
                bases = (found[o][0] for o in ('raw loop', VARIANTS[variant][1]))
                raw, hand = (median(t/b for t, b in zip(times, base)) for base in bases)
                print(f'| {variant} | {median(times):.1f} | {raw:.3f} | {hand:.3f} | {first:.1f} |')
            print(flush=True)


if __name__ == '__main__' and sys.argv[1:2] == ['times']:
    passes = {variant: make(sys.argv[2]) for variant, (make, _) in VARIANTS.items()}
    print(json.dumps(plain.in_turn(passes, ROUNDS + 1, warm=0)))
elif __name__ == '__main__': main(plain.argument(2))
