"""Every hook that has a state goes on from a checkpoint as if nothing had happened

The training that is stopped and the one that goes on are different learners with different random numbers, which have the files in common. The reference is
one that was never stopped.
"""
import pytest, torch
from torch.optim import lr_scheduler as torch_sched

from common import batches, digest, make_learner, shuffled, weights
from trainer_nb.all import (AMP, EMA, Checkpoint, EarlyStopping, GradAccum, GradClip, GradNorm, LambdaHook, LRScheduler, NaNGuard, OneCycle, Schedule, WarmupCosine,
                            accuracy, linear)

N_EPOCHS = 3
HOOKS = {
    'accumulation': lambda: [GradAccum(2), GradClip(.5)],
    'one cycle': lambda: [OneCycle(.1)],
    'warm-up': lambda: [WarmupCosine(.1), GradAccum(3)],
    'torch by step': lambda: [LRScheduler(lambda opt, n: torch_sched.CosineAnnealingLR(opt, n))],
    'torch one cycle': lambda: [LRScheduler(lambda opt, n: torch_sched.OneCycleLR(opt, .1, n + 1))],
    'torch by epoch': lambda: [LRScheduler(lambda opt: torch_sched.StepLR(opt, 1, .5), 'epoch')],
    'torch, a function': lambda: [LRScheduler(lambda opt: torch_sched.LambdaLR(opt, lambda i: .9**i))],
    'torch, two in a row': lambda: [LRScheduler(lambda opt, n: torch_sched.SequentialLR(opt, [torch_sched.ConstantLR(opt, .1, 2), torch_sched.ExponentialLR(opt, .9)], [2]))],
    'plateau': lambda: [Schedule(linear(1, .5)), LRScheduler(lambda opt: torch_sched.ReduceLROnPlateau(opt, patience=0, threshold=.5), 'metric')],
    'bfloat16': lambda: [AMP(), EMA(.9)],
    'float16': lambda: [AMP('fp16', lambda device: torch.amp.GradScaler(device, init_scale=2.**16, growth_interval=2)), GradNorm()],
    'average': lambda: [EMA(.9), NaNGuard(), GradNorm(weights=True)],
    'all': lambda: [GradAccum(2), GradClip(.5), AMP(), EMA(.9), NaNGuard(), GradNorm(), OneCycle(.1), EarlyStopping(5)],
}

def make(kind, tmp_path, *more, seed=0):
    torch.manual_seed(0)
    learn = make_learner(valid_dl=batches(seed=2), metrics=[accuracy], lr=.01, hooks=[*HOOKS[kind](), Checkpoint(tmp_path), *more])
    torch.manual_seed(seed)
    return learn

def stop_at(epoch, batch, training=True):
    def f(learn):
        place = learn.state.batch_idx if learn.training else learn.valid_idx + 1
        if (learn.state.epoch, place, learn.training) == (epoch, batch, training): learn.stop()
    return LambdaHook(after_step=f)

@pytest.mark.parametrize('place', [(0, 1), (1, 3), (1, 2, False)], ids=str)
@pytest.mark.parametrize('kind', HOOKS)
@pytest.mark.filterwarnings('ignore:.*lr_scheduler.step')
def test_goes_on(kind, place, tmp_path, capsys):
    plain = make(kind, tmp_path/'plain')
    plain.fit(N_EPOCHS)
    stopped = make(kind, tmp_path/'run', stop_at(*place))
    stopped.fit(N_EPOCHS)
    assert stopped.cancelled == 'stop' and stopped.state.epoch == place[0]
    again = make(kind, tmp_path/'run', seed=99)
    again.fit(N_EPOCHS, resume=True)
    assert digest(again) == digest(plain)
    assert again.opt.param_groups[0]['lr'] == plain.opt.param_groups[0]['lr'] and again.history.steps['lr'] == plain.history.steps['lr']
    if again.ema: assert all(torch.equal(a, b) for a, b in zip(weights(again.ema.model), weights(plain.ema.model), strict=True)) and again.ema.n == plain.ema.n
