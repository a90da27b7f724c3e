"""What a rank holds with FSDP2: `python benchmarks/fsdp.py`

A model of 16 blocks of two linear layers (256 → 1024 → 256) trains with Adam on batches of 256 samples a rank, over
gloo on the CPU. After some steps each rank counts the bytes of its shards: weights and both moments of Adam. The share
is the bytes of these in the whole model, divided by the number of ranks.
"""
import platform
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from accelerate import FullyShardedDataParallelPlugin
from torch import nn

from trainer_nb.all import Accelerate, Hook, Learner, set_seed
from trainer_nb.base import local

MIB = 2**20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, x): return x + self.body(x)


class Held(Hook):
    "Writes what this rank holds after the fourth step"
    def __init__(self, folder): self.folder = folder

    def after_step(self, learn):
        if learn.state.optimizer_step != 4: return
        params = list(learn.model.parameters())
        states = [o for p in params for o in learn.opt.state[p].values()]
        n_bytes = sum(local(o).nbytes for o in (*params, *states))
        (Path(self.folder)/str(learn.world.rank)).write_text(str(n_bytes))


def measure(n):
    "The share of a rank of `n`, and the most bytes that one holds"
    set_seed(0)
    x, y = torch.randn(256*n*5, 256), torch.randint(10, (256*n*5,))
    model = nn.Sequential(*(Block() for _ in range(16)), nn.Linear(256, 10))
    policy = {'auto_wrap_policy': 'transformer_based_wrap', 'transformer_cls_names_to_wrap': ['Block']}
    accelerate = Accelerate(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **policy))
    with TemporaryDirectory() as folder:
        learn = Learner(model, (x, y), loss_fn=F.cross_entropy, optim=torch.optim.Adam, lr=1e-3, bs=256*n,
                        hooks=[accelerate, Held(folder)], display=False)
        learn.launch(n, 1)
        found = [int(o.read_text()) for o in Path(folder).iterdir()]
    assert len(found) == n
    whole = 3*sum(p.nbytes for p in model.parameters())
    return whole/n, max(found)


if __name__ == '__main__':
    torch.set_num_threads(1)
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}\n')
    print('| ranks | share, MiB | held, MiB | held / share |\n| ---: | ---: | ---: | ---: |')
    for n in 1, 2, 4:
        share, held = measure(n)
        print(f'| {n} | {share/MIB:.1f} | {held/MIB:.1f} | {held/share:.3f} |')
