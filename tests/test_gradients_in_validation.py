"Validation that needs gradients, and validation inside of validation"
import pytest, torch

from common import batches, digest, make_learner, plain_model
from trainer_nb.all import LambdaHook

VALID = batches(seed=2)

def residual(batch, learn):
    "A step that differentiates the model by its input"
    x = batch[0].detach().requires_grad_()
    u = learn.model(x)[:, :1]
    du, = torch.autograd.grad(u.sum(), x, create_graph=True)
    return {'loss': (du.sum(1, keepdim=True) - u).square().mean(), 'pred': u, 'targ': batch[1]}

def test_a_step_that_needs_gradients_is_told_that_validation_has_none():
    "As the note says, it computes them; predictions keep no graph, parameters no gradients"
    learn = make_learner(plain_model(), batches(), VALID, train_step=residual)
    with pytest.raises(RuntimeError, match='does not require grad') as e: learn.fit(1)
    assert any('with torch.enable_grad():' in o for o in e.value.__notes__)
    learn.eval_step = torch.enable_grad()(residual)
    learn.fit(1)
    totals = [len(b[0])*residual(b, learn)['loss'].item() for b in VALID]
    assert learn.history.epochs['valid_loss'] == pytest.approx([sum(totals)/24], rel=1e-6)
    assert all(p.grad is None for p in learn.model.parameters()) and not learn.predict(VALID).requires_grad

def test_a_validation_before_validation():
    other, seen = batches(seed=3), []
    def look(learn): seen.append((learn.training, learn.validate(other)['valid_loss']))
    learn, plain = (make_learner(plain_model(), batches(), VALID) for _ in range(2))
    learn.fit(2, hooks=[LambdaHook(before_valid=look)])
    plain.fit(2)
    assert len(seen) == 2 and seen[-1] == (False, plain.validate(other)['valid_loss'])
    assert digest(learn) == digest(plain)

def test_a_validation_in_a_batch_of_validation_is_refused():
    learn, seen = make_learner(valid_dl=VALID), []
    for event in 'before_step', 'after_loss':
        hook = LambdaHook(**{event: lambda learn: learn.validate()})
        with pytest.raises(RuntimeError, match='check learn.training'): learn.fit(1, hooks=[hook])
    learn.fit(1, hooks=[LambdaHook(after_loss=lambda learn: seen.append(learn.validate()) if learn.training else None)])
    assert len(seen) == 5
