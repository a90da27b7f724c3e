"Runs of several processes: the numbers of one, requests that reach all ranks at the same batch, and nobody left behind"
import os, signal, socket, subprocess, sys, time
from pathlib import Path

import psutil, pytest, torch, torch.nn.functional as F
from accelerate import FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Accelerate, Hook, Learner, ProcessFailed, accuracy
from common import Slow, alive, until
from test_runs import kill, started, status_of, stop
from test_distributed import check_equal, check_same

N = 8       # epochs, of six batches and five
X, Y = torch.randn(46, 4, generator=torch.Generator().manual_seed(0)), torch.arange(46) % 3

def make(*hooks, dropout=.5, **kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))
    data = DataLoader(TensorDataset(X, Y), batch_size=9, shuffle=True)
    return Learner(model, data, (X, Y), loss_fn=F.cross_entropy, bs=10, lr=.01, seed=5, device='cpu', display=False,
                   metrics=[accuracy], hooks=[*hooks], **kwargs)

def ranks_of(run):
    "Process ids, rank 0 first"
    pid = status_of(run)['pid']
    return [pid, *(o.pid for o in psutil.Process(pid).parent().children() if o.pid != pid)]

def test_equals_one_process(tmp_path):
    "Weights, losses and metrics of one process up to rounding; the record is the history; data are there once"
    alone, learn = make(dropout=0.), make(Slow(.06), dropout=0.)
    alone.fit(3)
    run = started(learn, 3, tmp_path/'a', n_procs=2)
    pids = ranks_of(run)
    for pid in pids: assert '/a/program.pt' in Path(f'/proc/{pid}/maps').read_text()
    run.wait(300)
    check_equal(alone, learn)
    assert run.history.steps == learn.history.steps and run.history.epochs == learn.history.epochs
    assert len(pids) == 2 and run.folder.read('run.json')['n_procs'] == 2
    until(lambda: not any(map(alive, pids)))

@pytest.mark.soak
@pytest.mark.skipif(not hasattr(torch.cpu.Stream, 'record_event'), reason='this torch shards on a GPU only')
def test_a_sharded_model_equals_one_process(tmp_path):
    sharded = Accelerate(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    alone, learn = make(dropout=0.), make(sharded, dropout=0.)
    alone.fit(2)
    learn.start(2, folder=tmp_path/'a', n_procs=2).wait(300)
    check_equal(alone, learn)

class Rates(Hook):
    def __init__(self, folder): self.folder = folder
    def after_step(self, learn):
        with open(self.folder/f'rates-{learn.world.rank}', 'a') as f: print(learn.opt.param_groups[0]['lr'], file=f)

@pytest.mark.soak
def test_requests_and_restart(tmp_path):
    "Asked to wait, to save and to stop, all ranks do it at the same batch; stopped and restarted, the end is bit-equal"
    reference, learn = make(), make(Slow(), Rates(tmp_path))
    reference.launch(2, N)
    run = started(learn, N, tmp_path/'a', 5, n_procs=2)
    run.pause().wait()
    n = run.history.n_steps
    assert run.status == 'paused' and run.checkpoint().wait() == 'saved' and run.weights()
    time.sleep(1.5)         # rank 0 tells the others that it lives
    run.unpause().wait()
    assert run.checkpoint().wait() == 'saved' and run.history.n_steps >= n
    stop(run)
    assert run.status == 'stopped' and 0 < learn.state.epoch < N
    with pytest.raises(RuntimeError, match='2 processes'): learn.resume()
    with pytest.raises(RuntimeError, match='n_procs=2'): learn.start(folder=tmp_path/'b')
    other = learn.start(folder=tmp_path/'b', n_procs=2)
    run.restart()
    for o in other, run:
        o.wait(300)
        check_same(learn, reference)
    assert run.history.steps == reference.history.steps
    third = started(learn, 2*N, tmp_path/'c', run.history.n_steps + 5, n_procs=2)
    third.set_lr(.25).wait()        # holds from the same batch on
    until(lambda: third.history.steps['lr'][-1] == .25)
    stop(third)
    first, second = ((tmp_path/f'rates-{i}').read_text().split() for i in range(2))
    assert first == second and '0.25' in first
    learn.launch(2)         # what was stopped in a run continues
    assert not learn.stopped

class FailOn(Hook):
    def __init__(self, rank): self.rank = rank
    def after_backward(self, learn):
        if learn.state.optimizer_step == 8 and learn.world.rank == self.rank: raise ZeroDivisionError('on purpose')

@pytest.mark.soak
@pytest.mark.parametrize('rank', [1, 0])
def test_rank_fails(rank, tmp_path):
    run = make(FailOn(rank)).start(N, folder=tmp_path/'a', n_procs=2)
    with pytest.raises(ZeroDivisionError, match='on purpose') as e: run.wait(300)
    assert 'after_backward' in str(e.value.__cause__) and ('on rank 1' in e.value.__notes__) == rank
    assert run.status == 'failed' and 'on purpose' in run.error
    until(lambda: not [o for o in psutil.process_iter(['cmdline']) if str(run.path) in (o.info['cmdline'] or [])])

@pytest.mark.soak
def test_rank_killed(tmp_path):
    "The run fails at once, and its output says who was killed; if rank 0 is killed, the others end"
    run = started(make(Slow()), N, tmp_path/'a', n_procs=2)
    pids = ranks_of(run)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(ProcessFailed, match='run.output says how'): run.wait(300)
    until(lambda: not any(map(alive, pids)))
    until(lambda: f'Signal 9 (SIGKILL) received by PID {pids[1]}' in run.output)
    run.restart()
    until(lambda: run.status == 'running')
    pids = ranks_of(run)
    kill(run)
    until(lambda: not any(map(alive, pids)))

@pytest.mark.soak
@pytest.mark.parametrize('n_agents', [1, 2])
def test_torchrun(n_agents, tmp_path):
    "The same run under torchrun, also with an agent for each rank, as on two machines"
    learn, reference = make(), make()
    reference.launch(2, 3)
    kill(run := make(Slow()).start(3, folder=tmp_path/'a', n_procs=2))
    env = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[2])}
    with socket.create_server(('127.0.0.1', 0)) as s: port = s.getsockname()[1]
    command = [sys.executable, '-m', 'torch.distributed.run', f'--nproc-per-node={2//n_agents}',
               f'--nnodes={n_agents}', '--master-addr=127.0.0.1', f'--master-port={port}']
    agents = [subprocess.Popen([*command, f'--node-rank={i}', '-m', 'trainer_nb', 'run', str(run.path)], env=env,
                               stderr=subprocess.PIPE, text=True) for i in range(n_agents)]
    try:
        for o in agents:
            _, err = o.communicate(timeout=120)
            assert not o.returncode, err[-3000:]
    finally:
        for o in agents: o.kill()
    run.learn = learn
    run._is_taken = False
    run.wait(300)
    check_same(learn, reference)
