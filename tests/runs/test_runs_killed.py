"A worker that is killed again and again, at random moments, loses nothing"
import os, random, signal, time

import pytest, torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import Checkpoint, EMA, Learner, OneCycle
from common import Slow, until
from test_runs import _ends, check_equal    # noqa: F401

KILLS = int(os.environ.get('TRAINER_NB_KILLS', 100))
N = 6       # epochs, of 20 batches

def make():
    torch.manual_seed(0)
    x = torch.randn(160, 300)
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Tanh(), nn.Dropout(.2), nn.Linear(300, 3))
    every = Checkpoint('own', every=1, keep=2)      # it writes most of the time
    return Learner(model, (x, x[:, :3]), (x, x[:, :3]), loss_fn=F.mse_loss, bs=8, lr=.01, seed=1, display=False,
                   hooks=[Slow(.01), EMA(.9), OneCycle(), every])

@pytest.mark.soak
def test_kills(tmp_path, monkeypatch):
    "SIGKILL at random moments, also while it starts and while it writes checkpoints: each run ends bit-equal"
    monkeypatch.chdir(tmp_path)
    rng, expected = random.Random(0), make()
    expected.fit(N)
    n_kills = n_runs = n_starting = n_writing = 0
    seen_s, back_s = [], []
    while n_kills < KILLS:
        learn = make()
        run = learn.start(N, folder=tmp_path/f'{n_runs}')
        n_here = 0
        while n_kills < KILLS and n_here < 12:
            is_early = rng.random() < .15
            if not is_early: until(lambda: run.status in ('running', 'done'), 120)
            time.sleep(rng.uniform(0, 2.5 if is_early else .8))
            if run.is_over: break
            n_starting += run.status == 'starting'
            os.kill(run.folder.read('status.json')['pid'], signal.SIGKILL)
            start = time.monotonic()
            until(lambda: run.status == 'died')
            seen_s.append(time.monotonic() - start)
            n_writing += any(run.path.glob('checkpoints/.*.tmp'))
            n_kills, n_here = n_kills + 1, n_here + 1
            start = time.monotonic()
            run.restart()
            back_s.append(time.monotonic() - start)
        run.wait(300)
        check_equal(expected, learn)
        assert run.history.steps == expected.history.steps and run.history.ends == expected.history.ends
        n_runs += 1
        print(f'{n_kills} kills, {n_starting} while it started, {n_writing} while it wrote; {n_runs} runs bit-equal; '
              f'at most {max(seen_s):.2f} s until seen, {max(back_s):.2f} s until `restart` returned', flush=True)
