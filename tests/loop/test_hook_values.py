"A hook passes another loss to the backward by `nxt`, and chooses the model by `model_for`; what is the user's stays"
import pytest, torch
import torch.nn.functional as F

from common import batches, make_learner, plain_loop, plain_model, same, weights
from trainer_nb.all import Hook, LambdaHook

def sgd(params): return torch.optim.SGD(params, lr=.1)

def fitted(*hooks, **kwargs):
    learn = make_learner(plain_model(), batches(), optim=sgd, hooks=hooks, **kwargs)
    learn.fit(1)
    return learn

def is_plain(learn, scale=1.):
    "Whether it has the weights of a loop by hand that multiplies each loss by `scale`"
    model = plain_model()
    plain_loop(model, sgd(model.parameters()), batches(), 1, lambda m, b: scale*F.cross_entropy(m(b[0]), b[1]))
    return same(weights(learn.model), weights(model))

class Chooses(Hook):
    "Chooses a model for the passes that train, or for the others"
    def __init__(self, model, training=True): self.model, self.training = model, training
    def model_for(self, learn, model): return self.model if learn.training == self.training else model

class Doubles(Hook):
    def do_step(self, learn, nxt): nxt()
    def do_backward(self, learn, nxt, scale=2.): nxt(scale*learn.loss)

@pytest.mark.parametrize('hook, scale', [
    (LambdaHook(do_backward=lambda learn, nxt, loss: nxt(.25*loss)), .25), (Doubles(), 2.)], ids=['loss', 'method'])
def test_a_method_gets_the_loss_if_it_names_it(hook, scale):
    "Bit-equal to the plain loop with the loss that it passes on"
    assert is_plain(fitted(hook), scale)

def test_a_chosen_model_is_that_of_its_pass():
    "Hooks choose in their order; a step sees the choice, whatever ran in it, and the user's model stays"
    seen, other = set(), plain_model()
    class Looks(Hook):
        def model_for(self, learn, model):
            seen.add((learn.training, model is other))
            return model
        def do_step(self, learn, nxt):
            if learn.training: learn.validate()
            seen.add((learn.training, learn.model is other))
            nxt()
        def do_backward(self, learn, nxt):
            learn.validate()
            nxt()
    learn = fitted(Chooses(other, training=False), Looks(), valid_dl=batches()[:1])
    assert seen == {(True, False), (False, True)} and learn.model is not other and is_plain(learn)

@pytest.mark.parametrize('point, f, error, message, note', [
    ('do_backward', lambda learn, nxt: nxt(None), TypeError, 'loss is a NoneType', 'hook Mine passed on'),
    ('do_backward', lambda learn, nxt, loss: nxt(loss.detach()), ValueError, 'require grad', 'hook Mine passed on'),
    ('do_step', lambda learn, nxt: None, TypeError, r'do_step of Mine.*call nxt\(\)', ''),
    ('do_opt_step', lambda learn, nxt: None, TypeError, r'what nxt\(\) returned', '')])
def test_wrong_values_say_who_passed_them_on(point, f, error, message, note):
    with pytest.raises(error, match=message) as e: fitted(LambdaHook(name='Mine', **{point: f}))
    assert note in '\n'.join(e.value.__notes__)
