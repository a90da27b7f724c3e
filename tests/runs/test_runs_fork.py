"Forks: unchanged they repeat their parent bit for bit, changed they part from it, and what is not there is refused"
from contextlib import chdir

import pytest, torch

from trainer_nb.all import EMA, Checkpoint, GradClip, OneCycle, runs
from common import Slow, until
from test_runs import check_equal, kill, started, stop, trainer

N = 3       # epochs, of 16 batches

def make(*hooks): return trainer(EMA(.9), *hooks)

@pytest.fixture(scope='module')
def parent(tmp_path_factory, warm):
    "A run with a checkpoint at each step, and its learner at the end"
    with chdir(tmp_path_factory.mktemp('forks')):
        learn = make(Checkpoint('own', every=1, keep=1000))
        run = learn.start(N, folder='parent', hooks=[OneCycle(.05)])
        run.wait(300)
        yield run, learn

def info_of(run): return run.folder.read('run.json')['parent']

@pytest.mark.parametrize('steps', [[0, 23], pytest.param(range(1, N*16), marks=pytest.mark.soak)])
def test_repeats(steps, parent, tmp_path):
    "From the beginning, and from any point"
    run, learn = parent
    for step in steps:
        where = {'step': step} if step else {'at': 0}
        fork = run.fork(**where, folder=tmp_path/str(step))
        info, again = fork.folder.read('run.json'), run.fork(**where, folder=fork.path)
        assert again.folder.read('run.json') == info        # the cell runs again: it attaches
        fork.wait(300)
        assert fork.history.steps == run.history.steps and fork.history.valids == run.history.valids
        assert info_of(fork)['batch'] == step and info_of(fork)['differs'] == []
        assert f'its {N*16 - step} losses' in fork.branch.text(fork.history)
        (other := make(Checkpoint(tmp_path/'own'))).load(fork.path/'result.pt')
        check_equal(learn, other)

def test_refusals(parent, tmp_path):
    "Other cases are in the notebook"
    for args, kind in [
            (dict(at=1, step=3), TypeError), (dict(at='best'), TypeError), (dict(step=20, n_epochs=1), ValueError),
            (dict(step=5, train_dl=make().train_dl), ValueError)]:
        with pytest.raises(kind, match='not both|epoch'): parent[0].fork(**{'folder': tmp_path/'a', **args})
        assert not (tmp_path/'a').exists(), args

def test_changed(parent, tmp_path):
    "Other rates, hooks, data and ends; what differs is noted, and shown"
    run, _ = parent
    x = torch.randn(40, 4)
    lr = run.fork(at=1, lr=.001, folder=tmp_path/'lr')
    other = run.fork(at=1, hooks=[GradClip(.01)], train_dl=(x, x[:, :1]), n_epochs=4, folder=tmp_path/'other')
    for o in lr, other: o.wait(300)
    here, there = lr.history.steps, run.history.steps
    assert here['lr'][16] == .001 and here['lr'][:16] == there['lr'][:16]
    ratios = [a/b for a, b in zip(here['lr'][16:], there['lr'][16:])]
    assert max(ratios) == pytest.approx(min(ratios))        # the schedule continues in proportion
    text = lr.branch.text(lr.history)
    assert info_of(lr)['differs'] == ['lr → 0.001'] and info_of(lr)['epoch'] == 1
    assert 'fork of parent after epoch 0' in text and 'in batch 18' in text
    hooks, ends, data = info_of(other)['differs']
    assert (hooks, ends) == ('hooks GradClip', 'n_epochs 3 → 4') and data.startswith('data.train float32 (64, 4)')
    assert other.history.n_steps == 16 + 3*10 and other.history.steps['train_loss'][:16] == there['train_loss'][:16]
    assert 'in batch 17' in other.branch.text(other.history)
    assert [o['run'] for o in runs(tmp_path).values] == ['other', 'lr'] and lr.parent.path == run.path

@pytest.mark.soak
def test_of_a_run_that_trains(tmp_path, monkeypatch):
    "In two processes: it saves now, and goes on; killed and restarted, the fork does not set the rate again"
    monkeypatch.chdir(tmp_path)
    run = started(trainer(Slow()), 1000, 'a', 5, n_procs=2)
    fork = run.fork(lr=.5)
    assert fork.folder.read('run.json')['n_procs'] == 2 and info_of(fork)['batch'] > 5 and run.status == 'running'
    until(lambda: fork.history.n_steps > info_of(fork)['batch'] + 5)
    fork.set_lr(.25).wait()
    fork.checkpoint().wait()
    kill(fork)
    n = fork.restart().history.n_steps
    until(lambda: fork.status == 'running' and fork.history.n_steps > n + 2)
    stop(fork)
    assert fork.history.steps['lr'][info_of(fork)['batch']] == .5 and fork.history.steps['lr'][-1] == .25
    stop(run)
