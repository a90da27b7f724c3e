"""Every hook that has a state goes on from a checkpoint as if nothing had happened

The training that is stopped and the one that goes on are different learners with different random numbers, which have
the files in common. The reference is
one that was never stopped.
"""
from itertools import cycle

import pytest, torch
from torch.optim import lr_scheduler as torch_sched

from common import batches, digest, make_learner, weights
from trainer_nb.all import (AMP, EMA, Checkpoint, EarlyStopping, GradAccum, GradClip, GradNorm, LambdaHook, LRScheduler,
                            NaNGuard, OneCycle, Schedule, WarmupCosine,
                            accuracy, linear)

N_EPOCHS = 3
HOOKS = {
    'accumulation': lambda: [GradAccum(2), GradClip(.5)],
    'one cycle': lambda: [OneCycle(.1)],
    'warm-up': lambda: [WarmupCosine(.1), GradAccum(3)],
    'torch one cycle': lambda: [LRScheduler(lambda opt, n: torch_sched.OneCycleLR(opt, .1, n + 1))],
    'torch by epoch': lambda: [LRScheduler(lambda opt: torch_sched.StepLR(opt, 1, .5), 'epoch')],
    'torch, two in a row': lambda: [LRScheduler(lambda opt, n: torch_sched.SequentialLR(
        opt, [torch_sched.ConstantLR(opt, .1, 2), torch_sched.ExponentialLR(opt, .9)], [2]))],
    'plateau': lambda: [Schedule(linear(1, .5)),
                        LRScheduler(lambda opt: torch_sched.ReduceLROnPlateau(opt, patience=0, threshold=.5),
                                    'metric')],
    'bfloat16': lambda: [AMP(), EMA(.9)],
    'float16': lambda: [AMP('fp16', lambda device: torch.amp.GradScaler(device, init_scale=2.**16, growth_interval=2)),
                        GradNorm()],
    'all': lambda: [GradAccum(2), GradClip(.5), AMP(), EMA(.9), NaNGuard(), GradNorm(), OneCycle(.1), EarlyStopping(5)],
}

def make(kind, tmp_path, *more, seed=0):
    torch.manual_seed(0)
    learn = make_learner(valid_dl=batches(seed=2), metrics=[accuracy], lr=.01,
                         hooks=[*HOOKS[kind](), Checkpoint(tmp_path), *more])
    torch.manual_seed(seed)
    return learn

def stop_at(epoch, batch, training=True):
    def f(learn):
        place = learn.state.batch_idx if learn.training else learn.valid_idx + 1
        if (learn.state.epoch, place, learn.training) == (epoch, batch, training): learn.stop()
    return LambdaHook(after_step=f)

# after the first batch, in mid-epoch, in a validation pass
PLACES = (0, 1), (1, 3), (1, 2, False)

@pytest.mark.parametrize('kind, place', [*zip(HOOKS, cycle(PLACES)), *(('all', o) for o in PLACES[1:])], ids=str)
@pytest.mark.filterwarnings('error:.*lr_scheduler.step')
def test_goes_on(kind, place, tmp_path, capsys):
    plain = make(kind, tmp_path/'plain')
    plain.fit(N_EPOCHS)
    stopped = make(kind, tmp_path/'run', stop_at(*place))
    stopped.fit(N_EPOCHS)
    assert stopped.cancelled == 'stop' and stopped.state.epoch == place[0]
    again = make(kind, tmp_path/'run', seed=99)
    again.fit(N_EPOCHS, resume=True)
    assert digest(again) == digest(plain)
    assert again.opt.param_groups[0]['lr'] == plain.opt.param_groups[0]['lr']
    assert again.history.steps['lr'] == plain.history.steps['lr']
    if again.ema:
        assert all(torch.equal(a, b) for a, b in zip(weights(again.ema.model), weights(plain.ema.model), strict=True))
        assert again.ema.n == plain.ema.n

@pytest.mark.filterwarnings('error:.*lr_scheduler.step')
def test_a_scheduler_by_epoch_is_not_told_that_nothing_has_stepped(tmp_path):
    "After a stop between the first epoch's last step and its end"
    make('torch by epoch', tmp_path, stop_at(0, 2, False)).fit(N_EPOCHS)
    again = make('torch by epoch', tmp_path)
    again.fit(N_EPOCHS, resume=True)
    assert again.history.epochs['lr'] == pytest.approx([.01, .005, .0025])

class Drawn:
    "Batches drawn from the stream that dropout uses, too, and a length that nobody vouches for"
    def __len__(self): return 5
    def __iter__(self):
        for _ in range(5):
            x = torch.randn(4, 4)
            yield x, x[:, :3].argmax(1)

@pytest.mark.filterwarnings('ignore:resume. train_dl is a Drawn')
@pytest.mark.parametrize('batch', [1, 2])
def test_a_batch_that_was_read_ahead_is_the_same_one_after_a_resume(batch, tmp_path):
    """Accumulation asks whether a batch is the last one. The batches before are drawn again,
    without the dropout in between"""
    def learner(folder, *more, seed=0):
        torch.manual_seed(0)
        learn = make_learner(train_dl=Drawn(), hooks=[GradAccum(2), Checkpoint(tmp_path/folder), *more])
        torch.manual_seed(seed)
        return learn
    plain, again = learner('plain'), learner('run', seed=99)
    torch.manual_seed(0)
    plain.fit(2)
    learner('run', stop_at(1, batch)).fit(2)
    torch.manual_seed(99)
    again.fit(2, resume=True)
    assert digest(again) == digest(plain)

@pytest.mark.filterwarnings('ignore:resume. train_dl is a Drawn')
def test_a_batch_that_was_read_ahead_is_nobody_elses_shard(tmp_path):
    "In two processes each reads its own shard ahead"
    def learner(folder, *more):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        return make_learner(model, Drawn(), hooks=[GradAccum(2), Checkpoint(tmp_path/folder), *more])
    plain, stopped, again = learner('plain'), learner('run', stop_at(0, 1)), learner('run')
    torch.manual_seed(0)
    plain.launch(2, 2)
    torch.manual_seed(0)
    stopped.launch(2, 2)
    assert stopped.cancelled == 'stop' and stopped.state.epoch == 0 < stopped.state.batch_idx < 5
    again.launch(2, 2, resume=True)
    assert again.history.steps['train_loss'] == pytest.approx(plain.history.steps['train_loss'], rel=1e-5)
