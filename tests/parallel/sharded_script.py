"""FSDP on 2 or 4 ranks, under `torchrun`, with one or two copies of the shards: a program, whose arguments are a file
that says that all is well, and the number of copies"""
import sys
from pathlib import Path

import pytest, torch
from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig

from test_distributed import check_equal, learner, noisy
from trainer_nb.all import EMA, Accelerate, Checkpoint, Compile, GradAccum, GradClip, LambdaHook, set_seed
from trainer_nb.base import local

def sharded(copies, *units):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy='transformer_based_wrap',
                                            transformer_cls_names_to_wrap=['Sequential', *units])
    config = ParallelismConfig(dp_replicate_size=copies, dp_shard_size=2) if copies > 1 else None
    return Accelerate(cpu=True, fsdp_plugin=plugin, parallelism_config=config)

def check_case(case, n_epochs, copies, *hooks):
    "A fit, whose ranks have their part of everything; then it is saved, and goes on"
    alone, learn = learner(case, *hooks), learner(case, *hooks, sharded(copies))
    alone.fit(n_epochs)
    learn.fit(n_epochs)
    for p in learn.opt.param_groups[0]['params']:
        assert len(local(p)) <= -(-len(p)//2) < len(p) and all(
            o.shape == p.shape and local(o).shape == local(p).shape for o in learn.opt.state[p].values() if o.ndim)
    for _ in range(2):
        learn.save('saved.pt')
        torch.distributed.barrier()
        loaded = learner(case, *hooks)
        loaded.load('saved.pt')
        check_equal(alone, loaded)
        for o in alone, learn:
            set_seed(7)
            o.fit(1)

def check_resume(copies):
    "Stopped in an open window, resumed here, from a checkpoint, and from a file with a window of whole gradients"
    def make(*hooks): return noisy(sharded(copies), *hooks)
    def stop(learn):
        if learn.state.optimizer_step == 4 and learn.state.batch_idx == 1: learn.stop()
    def kept(): return Checkpoint('kept', every=2)
    whole, learn, there, again = make(), make(LambdaHook(after_step=stop), kept()), make(kept()), make()
    whole.fit(3)
    learn.fit(3)
    assert learn.cancelled == 'stop' and learn.state.epoch < 3
    learn.save('stopped.pt')
    torch.distributed.barrier()
    there.fit(3, resume=True)
    learn.resume()
    again.fit(3, resume='stopped.pt')
    for o in learn, there, again:
        assert all(map(torch.equal, *([local(p) for p in m.model.parameters()] for m in (whole, o))))
        assert o.history.steps == whole.history.steps

if __name__ == '__main__':
    path, copies = Path(sys.argv[1]), int(sys.argv[2])
    check_case('adam', 2, copies, GradClip(.5), GradAccum(3))
    check_case('plain', 1, copies, GradClip(norm_per_tensor=.02))
    check_resume(copies)
    for hook in EMA(.9), Compile():
        with pytest.raises(ValueError, match='sharded model'):
            learner('plain', sharded(copies), hook).fit(1)
    with pytest.raises(NotImplementedError, match='yields losses'):
        learner('two optimizers', sharded(copies, 'Linear')).fit(1)
    path.touch()
