"`fit` computes what the plain loop computes, bit for bit, on each of the four roads"
from dataclasses import dataclass

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model, record, same, shuffled, weights
from trainer_nb.loop.metrics import accuracy
from trainer_nb.loop.hooks import Hook
from trainer_nb.learner import Learner

OPTIMS = {'sgd': lambda params: torch.optim.SGD(params, lr=.1, momentum=.9),
          'adamw': lambda params: torch.optim.AdamW(params, lr=.01)}
optims = pytest.mark.parametrize('optim', OPTIMS.values(), ids=OPTIMS)

class Plain:
    "The loop that everybody has written; the methods are what a hook or a step may do otherwise"
    def __init__(self, optim, model=None):
        self.model = make_model() if model is None else model
        self.opt, self.losses, self.valid_losses, self.i = optim(self.model.parameters()), [], [], 0
    def loss(self, xb, yb): return F.cross_entropy(self.model(xb), yb)
    def after_backward(self): pass
    def step(self): self.opt.step()
    def zero_grad(self): self.opt.zero_grad()

    def fit(self, n_epochs, train_dl, valid_dl=(), max_steps=None):
        for _ in range(n_epochs):
            self.model.train()
            for xb, yb in train_dl:
                loss = self.loss(xb, yb)
                loss.backward()
                self.after_backward()
                self.step()
                self.zero_grad()
                self.losses.append(loss.item())
                self.i += 1
                if self.i == max_steps: break
            self.validate(valid_dl)
            if self.i == max_steps: break
        return self

    def validate(self, valid_dl):
        self.model.eval()
        with torch.no_grad(): sums = [(len(yb)*self.loss(xb, yb).double(), len(yb)) for xb, yb in valid_dl]
        if sums: self.valid_losses.append((sum(s for s, _ in sums)/sum(n for _, n in sums)).item())

def plain_run(cls, optim):
    torch.manual_seed(0)
    return cls(optim).fit(3, shuffled(), shuffled(seed=2, bs=7))

def learner_run(optim, n_epochs=3, **kwargs):
    torch.manual_seed(0)
    learn = make_learner(valid_dl=shuffled(seed=2, bs=7), optim=optim, **kwargs)
    learn.fit(n_epochs)
    return learn

def assert_equal(learn, plain):
    assert learn.history.steps['train_loss'] == plain.losses
    assert learn.history.epochs['valid_loss'] == pytest.approx(plain.valid_losses, rel=1e-12)
    assert same(weights(learn.model), weights(plain.model))


# Road 1: model + loss function

@optims
def test_model_and_loss(optim): assert_equal(learner_run(optim), plain_run(Plain, optim))

class Output(dict):
    "A mapping whose entries are attributes too, as Hugging Face's outputs"
    __getattr__ = dict.__getitem__

@dataclass
class DataOutput:
    loss: torch.Tensor
    logits: torch.Tensor

class OwnLoss(nn.Module):
    "A model that gets its batch by name and returns its own loss"
    def __init__(self, output):
        super().__init__()
        self.body, self.output = make_model(), output
    def forward(self, inputs, labels=None):
        logits = self.body(inputs)
        return self.output(loss=F.cross_entropy(logits, labels), logits=logits)

@pytest.mark.parametrize('output', [Output, DataOutput])
def test_mapping_batches_and_a_model_with_its_own_loss(output):
    def named(bs): return [{'inputs': xb, 'labels': yb} for xb, yb in batches(bs=bs)]
    torch.manual_seed(0)
    learn = Learner(OwnLoss(output), named(5), named(7), optim=OPTIMS['adamw'], display=False)
    learn.fit(2)
    torch.manual_seed(0)
    plain = Plain(OPTIMS['adamw']).fit(2, batches(bs=5), batches(bs=7))
    assert_equal(learn, plain)


# Road 2: a step of the user's

def own_step(batch, learn):
    xb, yb = batch
    pred = learn.model(xb)
    return {'loss': F.cross_entropy(pred, yb) + .01*pred.square().mean(), 'pred': pred, 'targ': yb}

class OwnStep(Plain):
    def loss(self, xb, yb):
        pred = self.model(xb)
        return F.cross_entropy(pred, yb) + .01*pred.square().mean()

class OwnLearner(Learner):
    def train_step(self, batch): return own_step(batch, self)

@pytest.mark.parametrize('own', [dict(train_step=own_step), dict(cls=OwnLearner)], ids=['function', 'method'])
def test_own_step(own):
    assert_equal(learner_run(OPTIMS['adamw'], **own), plain_run(OwnStep, OPTIMS['adamw']))


# Road 4: hooks

class InputNoise(Hook):
    def before_step(self, learn):
        xb, yb = learn.batch
        learn.batch = xb + torch.randn_like(xb), yb
class PlainInputNoise(Plain):
    def loss(self, xb, yb): return F.cross_entropy(self.model(xb + torch.randn_like(xb)), yb)

class Decay(Hook):
    def after_loss(self, learn): learn.loss = learn.loss + .1*learn.model[0].weight.square().sum()
class PlainDecay(Plain):
    def loss(self, xb, yb): return super().loss(xb, yb) + .1*self.model[0].weight.square().sum()

PAIRS = {'noise': (InputNoise, PlainInputNoise), 'decay': (Decay, PlainDecay)}

@pytest.mark.parametrize('hook, plain', PAIRS.values(), ids=PAIRS)
def test_hook(hook, plain):
    optim = OPTIMS['sgd']
    assert_equal(learner_run(optim, hooks=[hook()]), plain_run(plain, optim))

# What comes again

def test_seed_of_the_learner():
    torch.manual_seed(0)
    learn = make_learner(seed=5, optim=OPTIMS['sgd'])
    torch.rand(3)       # whatever happens between construction and fit
    learn.fit(1)
    torch.manual_seed(0)
    plain = Plain(OPTIMS['sgd'])
    torch.manual_seed(5)
    plain.fit(1, shuffled())
    assert learn.history.steps['train_loss'] == plain.losses

@pytest.mark.parametrize('valid_every', [1, 7])
def test_valid_every_changes_no_training_number(valid_every):
    def run(**kwargs):
        torch.manual_seed(0)
        learn = make_learner(valid_dl=batches(seed=2), metrics=[accuracy])
        learn.fit(3, **kwargs)
        return learn
    learn, plain = run(valid_every=valid_every), run()
    assert record(learn)['epochs'] == record(plain)['epochs'] and learn.history.steps == plain.history.steps
    assert same(weights(learn.model), weights(plain.model))
    assert learn.history.valids['step'] == sorted({*range(valid_every, 16, valid_every), 5, 10, 15})
    at_ends = [v for v, s in zip(learn.history.valids['valid_loss'], learn.history.valids['step']) if s % 5 == 0]
    assert at_ends == plain.history.valids['valid_loss']
