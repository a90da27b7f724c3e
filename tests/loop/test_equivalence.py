"`fit` computes what the plain loop computes, bit for bit, with batches by name and with hooks"
from dataclasses import dataclass

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model, plain_loop, record, same, shuffled, weights
from trainer_nb.loop.hooks import Hook
from trainer_nb.loop.metrics import accuracy
from trainer_nb.loop.optim import ParamGroups

OPTIMS = {'sgd': lambda params: torch.optim.SGD(params, lr=.1, momentum=.9),
          'adamw': lambda params: torch.optim.AdamW(params, lr=.01)}

def plain_loss(model, batch): return F.cross_entropy(model(batch[0]), batch[1])

def assert_equal(optim='sgd', loss_of=plain_loss, make=make_model, named=lambda dl: dl, **kwargs):
    "Training and validation, of loaders that shuffle; `named` is what the learner reads in their place"
    torch.manual_seed(0)
    model, train_dl, valid_dl, losses, values = make_model(), shuffled(), shuffled(seed=2, bs=7), [], []
    opt = OPTIMS[optim](model.parameters())
    for _ in range(3):
        losses += plain_loop(model.train(), opt, train_dl, loss_of=loss_of)
        model.eval()
        with torch.no_grad(): sums = [(len(b[1])*loss_of(model, b).double(), len(b[1])) for b in valid_dl]
        values.append((sum(s for s, _ in sums)/sum(n for _, n in sums)).item())
    torch.manual_seed(0)
    learn = make_learner(make(), named(shuffled()), named(shuffled(seed=2, bs=7)), optim=OPTIMS[optim], **kwargs)
    learn.fit(3)
    assert learn.history.steps['train_loss'] == losses and same(weights(learn.model), weights(model))
    assert learn.history.epochs['valid_loss'] == pytest.approx(values, rel=1e-12)

@pytest.mark.parametrize('cls', [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize('lr', [None, .05])
def test_a_class_is_made_as_in_a_plain_loop(cls, lr):
    "On the CPU with torch's defaults, not fused; also where the learner chooses the class, or `ParamGroups` makes it"
    rate = {} if lr is None else {'lr': lr}
    torch.manual_seed(0)
    model, train_dl = make_model(), shuffled()
    losses = plain_loop(model, cls(model.parameters(), **rate), train_dl, 2)
    for optim in [cls, ParamGroups(optim=cls)] + [None]*(cls is torch.optim.AdamW):
        torch.manual_seed(0)
        learn = make_learner(optim=optim, **rate)
        learn.fit(2)
        assert learn.history.steps['train_loss'] == losses and same(weights(learn.model), weights(model))

class Output(dict):
    "A mapping whose entries are attributes too, as Hugging Face's outputs"
    __getattr__ = dict.__getitem__

@dataclass
class DataOutput:
    loss: torch.Tensor
    logits: torch.Tensor

class OwnLoss(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.net, self.output = make_model(), output
    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return self.output(loss=F.cross_entropy(logits, labels), logits=logits)

class Named:
    "A loader of mappings"
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return ({'inputs': xb, 'labels': yb} for xb, yb in self.dl)

@pytest.mark.parametrize('output', [Output, DataOutput])
def test_mapping_batches_and_a_model_with_its_own_loss(output):
    assert_equal('adamw', make=lambda: OwnLoss(output), named=Named, loss_fn=None)

class InputNoise(Hook):
    def before_step(self, learn):
        xb, yb = learn.batch
        learn.batch = xb + torch.randn_like(xb), yb

class Decay(Hook):
    def after_loss(self, learn): learn.loss = learn.loss + .1*learn.model[0].weight.square().sum()

def noisy(model, batch): return plain_loss(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))

def decayed(model, batch): return plain_loss(model, batch) + .1*model[0].weight.square().sum()

@pytest.mark.parametrize('hook, loss_of', [(InputNoise, noisy), (Decay, decayed)], ids=['noise', 'decay'])
def test_hook(hook, loss_of): assert_equal('sgd', loss_of, hooks=[hook()])

def test_seed_of_the_learner():
    torch.manual_seed(0)
    learn = make_learner(seed=5, optim=OPTIMS['sgd'])
    torch.rand(3)       # whatever happens between construction and fit
    learn.fit(1)
    torch.manual_seed(0)
    model = make_model()
    opt = OPTIMS['sgd'](model.parameters())
    torch.manual_seed(5)
    assert learn.history.steps['train_loss'] == plain_loop(model, opt, shuffled())

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
