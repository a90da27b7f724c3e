"`fit` computes what the plain loop computes, bit for bit"
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import make_learner, make_model, plain_loop, record, same, sgd, shuffled, weights
from trainer_nb.loop.hooks import Hook
from trainer_nb.loop.optim import ParamGroups

def check_equal(make=make_model, named=lambda dl: dl, loss_of=None, plain_opt=sgd, **kwargs):
    "A fit of two epochs, on what `named` makes of the loader, and the plain loop"
    torch.manual_seed(0)
    model, train_dl = make_model(), shuffled()
    losses = plain_loop(model, plain_opt(model.parameters()), train_dl, 2, loss_of)
    torch.manual_seed(0)
    learn = make_learner(make(), named(shuffled()), **kwargs)
    learn.fit(2)
    assert learn.history.steps['train_loss'] == losses and same(weights(learn.model), weights(model))

@pytest.mark.parametrize('cls', [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize('rate', [{}, {'lr': .05}], ids=str)
def test_a_class_is_made_as_in_a_plain_loop(cls, rate):
    "On the CPU with torch's defaults, not fused; also where the learner chooses the class, or `ParamGroups` makes it"
    for optim in [cls, ParamGroups(optim=cls)] + [None]*(cls is torch.optim.AdamW):
        check_equal(plain_opt=lambda params: cls(params, **rate), optim=optim, **rate)

class Output(dict):
    "A mapping whose entries are attributes too, as Hugging Face's outputs"
    __getattr__ = dict.__getitem__

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

@pytest.mark.parametrize('output', [Output, SimpleNamespace])
def test_mapping_batches_and_a_model_with_its_own_loss(output):
    check_equal(lambda: OwnLoss(output), Named, optim=sgd, loss_fn=None)

def test_a_hook_that_changes_batches_and_losses():
    def loss_of(model, batch):
        pred = model(batch[0] + torch.randn_like(batch[0]))
        return F.cross_entropy(pred, batch[1]) + .1*model[0].weight.square().sum()
    class NoiseAndDecay(Hook):
        def before_step(self, learn):
            xb, yb = learn.batch
            learn.batch = xb + torch.randn_like(xb), yb
        def after_loss(self, learn): learn.loss = learn.loss + .1*learn.model[0].weight.square().sum()
    check_equal(loss_of=loss_of, optim=sgd, hooks=[NoiseAndDecay()])

def test_the_seed_counts_and_not_what_was_drawn_before():
    def run(n):
        torch.manual_seed(0)
        learn = make_learner(seed=5)
        torch.rand(n)
        learn.fit(1)
        return record(learn)
    assert run(0) == run(3)
