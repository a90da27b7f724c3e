"Optimizers whose step evaluates the loss again: LBFGS, and SAM"
import pytest, torch, torch.nn.functional as F
from torch import nn

from common import make_learner, same, shuffled, weights
from programs.sam import sam
from trainer_nb.all import AMP, GradAccum, GradClip, GradNorm, LambdaHook, NaNGuard
from trainer_nb.loop.metrics import accuracy


def lbfgs(params): return torch.optim.LBFGS(params, lr=.3, max_iter=3)
def wolfe(params): return torch.optim.LBFGS(params, lr=.3, max_iter=3, line_search_fn='strong_wolfe')

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(.2), nn.Linear(8, 3))

def plain(optim, max_norm=None):
    "(model, losses of the first evaluations, number of evaluations) of two epochs"
    model = net()
    opt, losses, n = optim(model.parameters()), [], 0
    for _ in range(2):
        for xb, yb in shuffled():
            seen = []
            def closure():
                opt.zero_grad()
                loss = F.cross_entropy(model(xb), yb)
                loss.backward()
                if max_norm: nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                seen.append(loss.item())
                return loss
            closure()
            opt.step(closure)
            losses.append(seen[0])
            n += len(seen)
    return model, losses, n

@pytest.mark.parametrize('optim, max_norm', [(lbfgs, .2), (wolfe, None), (sam, .2)])
def test_an_optimizer_with_a_closure_equals_the_plain_loop_that_evaluates_before_the_step(optim, max_norm):
    model, losses, n = plain(optim, max_norm)
    seen = dict.fromkeys(['after_pred', 'after_loss', 'after_backward'], 0)
    def count(name): return lambda learn: seen.__setitem__(name, seen[name] + 1)
    watch = LambdaHook(**{o: count(o) for o in seen}, name='Watch')
    clip = [GradClip(max_norm)] if max_norm else []
    learn = make_learner(net(), optim=optim, metrics=[accuracy], hooks=[watch, GradNorm(), *clip])
    learn.fit(2)
    assert learn.history.steps['train_loss'] == losses and same(weights(learn.model), weights(model))
    assert {*seen.values()} == {n} and learn.state.optimizer_step == 10
    assert {r.point: r.calls for r in learn.describe_hooks().rows if r.hook == 'Watch'} == seen

@pytest.mark.parametrize('name, make', [
    ('GradAccum', lambda: GradAccum(2)), ('NaNGuard', NaNGuard),
    ('AMP(torch.float16)', lambda: AMP('fp16', scaler=lambda device: torch.amp.GradScaler(device)))])
def test_what_cannot_evaluate_again_is_refused_by_name(name, make):
    learn = make_learner(optim=lbfgs, hooks=[make()])
    before = weights(learn.model)
    with pytest.raises(ValueError) as e: learn.fit(1)
    assert str(e.value).startswith(f'{name} is not for LBFGS') and same(weights(learn.model), before)
