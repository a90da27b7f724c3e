"Optimizers that evaluate the loss again, on several ranks: each evaluation has loss and gradient of the whole batch"
import pytest, torch, torch.nn.functional as F
from torch import nn

from accelerate import DistributedDataParallelKwargs

from common import make_learner, problem, weights
from programs.sam import sam
from trainer_nb.all import Accelerate, GradClip, GradNorm, LambdaHook, TensorLoader

# batches of 9 are split into 5 and 4, and the last one, a single sample, leaves a rank with none
X, Y = problem(46)
X = X.double()

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

def lbfgs(**kwargs): return lambda params: torch.optim.LBFGS(params, lr=.1, max_iter=4, **kwargs)

def tokens(model, x, y):
    "(mean over some entries, their number)"
    here = x[:, 0] > -1
    return (F.cross_entropy(model(x), y, reduction='none')*here).sum()/here.sum().clamp(min=1), here.sum().double()

def token_step(batch, learn): return dict(zip(('loss', 'n'), tokens(learn.model, *batch)))

def plain_loss(model, x, y): return F.cross_entropy(model(x), y)
def token_loss(model, x, y): return tokens(model, x, y)[0]

def plain(optim, loss_of, max_norm=None):
    "(weights, number of evaluations) of a loop over whole batches in this process"
    model, n = net(), 0
    opt = optim(model.parameters())
    for _ in range(2):
        for x, y in zip(X.split(9), Y.split(9)):
            def closure():
                nonlocal n
                opt.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                if max_norm: nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                n += 1
                return loss
            closure()
            opt.step(closure)
    return weights(model), n

OPTIMS = {'lbfgs': lbfgs(), 'wolfe': lbfgs(line_search_fn='strong_wolfe'), 'sam': sam}
WRAPPED = {'kwargs_handlers': [DistributedDataParallelKwargs()]}        # torch's wrapper averages, as on GPUs
CASES = {**{name: (o, plain_loss, {}, None) for name, o in OPTIMS.items()},
         'wolfe, wrapped, clipped': (OPTIMS['wolfe'], plain_loss, WRAPPED, .2),
         'sam, wrapped, clipped': (sam, plain_loss, WRAPPED, .2),
         'wolfe, tokens': (OPTIMS['wolfe'], token_loss, {}, None)}

def learner(optim, loss_of, kwargs, max_norm):
    step = {'train_step': token_step} if loss_of is token_loss else {'loss_fn': F.cross_entropy}
    hooks = [Accelerate(cpu=True, **kwargs), GradNorm(), *([GradClip(max_norm)] if max_norm else [])]
    return make_learner(net(), TensorLoader(X, Y, bs=9), optim=optim, hooks=hooks, **step)

OFTEN = 'wolfe, wrapped, clipped', 'sam', 'wolfe, tokens'

@pytest.mark.parametrize('case', [pytest.param(o, marks=[pytest.mark.soak]*(o not in OFTEN)) for o in CASES])
def test_each_evaluation_is_that_of_the_whole_batch(case):
    optim, loss_of, kwargs, max_norm = CASES[case]
    expected, n = plain(optim, loss_of, max_norm)
    learn = learner(*CASES[case])
    seen = []
    learn.add_hook(LambdaHook(after_backward=seen.append))
    learn.launch(2, 2)
    for a, b in zip(weights(learn.model), expected, strict=True): assert torch.allclose(a, b, rtol=0, atol=1e-6)
    alone = learner(*CASES[case])
    alone.fit(2)
    for name in 'train_loss', 'grad_norm':
        a, b = (torch.tensor(o.history.steps[name]) for o in (learn, alone))
        assert torch.allclose(a, b, rtol=0, atol=1e-6)
    assert len(learn.history.steps['train_loss']) == 12
    assert len(seen) == pytest.approx(n, abs=4 if 'wolfe' in case else 0)      # rounding may end a line search later
