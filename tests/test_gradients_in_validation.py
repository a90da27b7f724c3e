"Validation that needs gradients, and validation inside of validation"
import pytest, torch
from torch import nn

from common import batches, make_learner, same, weights
from trainer_nb.all import LambdaHook


def residual(batch, learn):
    "A step that differentiates the model by its input"
    x = batch[0].detach().requires_grad_()
    u = learn.model(x)[:, :1]
    du, = torch.autograd.grad(u.sum(), x, create_graph=True)
    return {'loss': (du.sum(1, keepdim=True) - u).square().mean(), 'pred': u, 'targ': batch[1]}

def learner(**kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return make_learner(model, batches(), batches(seed=2), loss_fn=None, **kwargs)

def test_a_step_that_needs_gradients_is_told_that_validation_has_none():
    with pytest.raises(RuntimeError, match='does not require grad') as e: learner(train_step=residual).fit(1)
    assert any('with torch.enable_grad():' in o for o in e.value.__notes__)

def test_gradients_in_validation_as_the_note_says():
    "In the step, or as a wrapper around it; predictions keep no graph"
    def step(batch, learn):
        with torch.enable_grad(): return residual(batch, learn)
    runs = []
    for kwargs in {'train_step': step}, {'train_step': residual, 'eval_step': torch.enable_grad()(residual)}:
        learn = learner(**kwargs, metrics=lambda pred, targ: pred.mean())
        learn.fit(2)
        totals = [len(b[0])*residual(b, learn)['loss'].item() for b in batches(seed=2)]
        assert learn.history.epochs['valid_loss'][-1] == pytest.approx(sum(totals)/24, rel=1e-6)
        assert all(p.grad is None for p in learn.model.parameters())
        runs.append((weights(learn.model), learn.history.epochs['valid_loss']))
        if kwargs['train_step'] is step: assert not learn.predict(batches(seed=2)).requires_grad
    assert same(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1]

def test_validate_in_before_valid_recursed_without_end():
    other, values, n = batches(seed=3), [], []
    def look(learn):
        n.append(learn.training)
        values.append(learn.validate(other)['valid_loss'])
    def fitted(*hooks):
        torch.manual_seed(0)
        learn = make_learner(valid_dl=batches(seed=2))
        learn.fit(2, hooks=hooks)
        return learn
    learn, plain = fitted(LambdaHook(before_valid=look)), fitted()
    assert n == [False]*2 and values[-1] == plain.validate(other)['valid_loss']
    assert learn.history.epochs['valid_loss'] == plain.history.epochs['valid_loss']
    assert same(weights(learn.model), weights(plain.model))
    with learn.added_hooks(LambdaHook(before_valid=look)): learn.validate()     # outside of a fit, too

@pytest.mark.parametrize('event', ['before_step', 'after_pred', 'after_loss'])
def test_validate_in_a_batch_of_validation_is_refused(event):
    learn = make_learner(valid_dl=batches(seed=2))
    hook = LambdaHook(**{event: lambda learn: learn.validate()})
    with learn.added_hooks(hook), pytest.raises(RuntimeError, match='check learn.training first'): learn.fit(1)
    learn.fit(1)
    seen = []
    learn.fit(1, hooks=[LambdaHook(after_loss=lambda learn: seen.append(learn.validate()) if learn.training else None)])
    assert len(seen) == 5
