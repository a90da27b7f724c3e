"""What a learning-rate search costs: `python benchmarks/lr_find.py [rounds]`

100 steps, one thread, batches that are ready in memory. Our time and that of installed peers is divided by the
time of 100 raw training steps plus one copy of the state, interleaved in one process; a figure is the median
over the rounds. Peers restore less than we do.
"""
import copy, platform, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from plain import timed
from trainer_nb.all import Learner

N_STEPS = 100
torch.set_num_threads(1)


class Problem:
    def __init__(self, width, bs):
        torch.manual_seed(0)
        self.batches = DataLoader([(torch.randn(bs, 64), torch.randint(10, (bs,))) for _ in range(N_STEPS)],
                                  batch_size=None)
        self.model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                   nn.Linear(width, 10))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.learn = Learner(self.model, self.batches, loss_fn=F.cross_entropy, optim=self.opt, device='cpu',
                             display=False)
        self.learn.fit(1)       # so that the optimizer has a state

    def raw(self):
        "The steps, and a copy of the state that is put back"
        state = copy.deepcopy([self.model.state_dict(), self.opt.state_dict()])
        losses = []
        for i, (xb, yb) in enumerate(self.batches):
            self.opt.param_groups[0]['lr'] = 1e-7*1e6**(i/(N_STEPS - 1))
            loss = F.cross_entropy(self.model(xb), yb)
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            losses.append(loss.detach())
        torch.stack(losses).tolist()
        self.model.load_state_dict(state[0])
        self.opt.load_state_dict(state[1])

    def ours(self): self.learn.lr_find(end=.1, stop_div=False)

    def torch_lr_finder(self):
        from torch_lr_finder import LRFinder
        finder = LRFinder(self.model, self.opt, F.cross_entropy, device='cpu')
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            finder.range_test(self.batches, start_lr=1e-7, end_lr=.1, num_iter=N_STEPS, diverge_th=1e9)
        finder.reset()


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {rounds} rounds\n')
    names = ['ours'] + ['torch_lr_finder']*(find_spec('torch_lr_finder') is not None)
    print('| model | raw steps and a copy | ' + ' | '.join(names) + ' |\n| --- | ---: |' + ' ---: |'*len(names))
    for what, width, bs in ('MLP of 64', 64, 32), ('MLP of 512', 512, 64), ('MLP of 1024', 1024, 64):
        problem, ratios, raws = Problem(width, bs), {name: [] for name in names}, []
        for i in range(rounds + 1):
            times = {name: timed(getattr(problem, name)) for name in ('raw', *names)}
            if not i: continue      # warm
            raws.append(times['raw'])
            for name in names: ratios[name].append(times[name]/times['raw'])
        print(f'| {what} | {1000*median(raws):.1f} ms | ' + ' | '.join(f'{median(o):.2f}' for o in ratios.values())
              + ' |')
