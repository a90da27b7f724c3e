"A batch counts as many samples as it has, however it holds them"
from collections import UserDict
from dataclasses import dataclass

import pytest, torch, torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from common import make_learner, plain_loop
from trainer_nb.base.nested import batch_size

T = torch.zeros

class Graphs:
    "As torch_geometric's `Batch`: nodes of all graphs in one tensor"
    def __init__(self, n): self.num_graphs, self.x = n, T(10*n, 2)
    def to(self, device): return self

class Images:
    def to(self, device): return self

@dataclass
class Record:
    name: list
    x: Tensor

boxes = [{'boxes': T(k, 4), 'labels': T(k)} for k in (3, 1, 2, 3, 3)]
packed = pack_sequence([T(3, 2), T(2, 2), T(1, 2)])
BATCHES = {     # a batch, and its samples
    'graphs': (Graphs(6), 6), 'graphs and targets': ((Graphs(6), T(6)), 6), 'packed': (packed, 3),
    'packed and targets': ((packed, T(3)), 3),
    'images and boxes': (([T(3, 9, 9)]*5, boxes), 5),
    'images of other sizes': (([T(3, 8, k) for k in range(5)], tuple(boxes)), 5),
    'images and labels': (([T(3, 9, 9)]*5, T(5)), 5), 'list of dicts': ([{'image': T(3, 9, 9), 'label': 1}]*5, 5),
    'samples with boxes': ([{'image': T(3, 9, 9), 'boxes': T(7, 4), 'labels': T(7)}]*5, 5),
    'images and as many boxes each': (([T(3, 9, 9)]*5, [{'boxes': T(7, 4), 'labels': T(7)}]*5), 5),
    'one image and as many boxes as channels': (([T(3, 9, 9)], boxes[:1]), 1),
    'pairs': ([(T(1, 28), 3)]*5, 5), 'texts': ({'text': ['a']*7}, 7), 'texts and labels': ((['a']*7, T(7)), 7),
    'encoding': (UserDict(ids=T(4, 7), n=T(())), 4),
    'two encodings': (({'ids': T(4, 2)}, {'ids': T(4, 3)}), 4), 'several inputs': (([T(5, 2), T(5, 3)], T(5)), 5),
    'dataclass': (Record(['a']*4, T(4, 2)), 4),
    'nested': ((torch.nested.nested_tensor([T(2), T(3)], layout=torch.jagged), T(2)), 2), 'array': (T(6, 2).numpy(), 6),
    'objects': ([Images()]*4, 4), 'number': (3, 1)}

def test_known_containers():
    assert {k: batch_size(batch) for k, (batch, _) in BATCHES.items()} == {k: n for k, (_, n) in BATCHES.items()}


# Losses that are sums

def sums():
    g = torch.Generator().manual_seed(3)
    return torch.randn(20, 4, generator=g), torch.randn(20, 2, generator=g)

def plain(x, y, n_epochs=2):
    "The loop of PyTorch's VAE example: `train_loss += loss.item()`, and the epoch's is `train_loss/len(dataset)`"
    torch.manual_seed(0)
    model, rows = nn.Linear(4, 2), []
    opt, dl = torch.optim.SGD(model.parameters(), lr=.01), list(zip(x.split(8), y.split(8)))
    def loss_of(model, batch): return F.mse_loss(model(batch[0]), batch[1], reduction='sum')
    for _ in range(n_epochs):
        losses = plain_loop(model, opt, dl, 1, loss_of)
        with torch.no_grad(): valid = loss_of(model, (x, y)).item()/len(x)
        rows.append((sum(losses)/len(x), [o/len(xb) for o, (xb, _) in zip(losses, dl)], valid))
    return model, rows

def sum_step(batch, learn):
    return {'loss': F.mse_loss(learn.model(batch[0]), batch[1], reduction='sum'), 'reduction': 'sum'}

def own_mean(batch, learn): return {'loss': learn.loss_fn(learn.model(batch[0]), batch[1])/len(batch[0])}

@pytest.mark.parametrize('kwargs', [
    dict(loss_fn=nn.MSELoss(reduction='sum')), dict(train_step=sum_step)], ids=['module', 'step'])
def test_a_loss_that_is_a_sum_is_told_by_sample(kwargs):
    "as the program that it comes from prints it; its gradients are those of the sum"
    x, y = sums()
    expected, rows = plain(x, y)
    torch.manual_seed(0)
    dl = list(zip(x.split(8), y.split(8)))
    learn = make_learner(nn.Linear(4, 2), dl, dl, optim=lambda p: torch.optim.SGD(p, lr=.01), **kwargs)
    learn.fit(2)
    assert all(map(torch.equal, learn.model.parameters(), expected.parameters()))
    assert learn.history.epochs['train_loss'] == pytest.approx([o[0] for o in rows], rel=1e-6)
    assert learn.history.epochs['valid_loss'] == pytest.approx([o[2] for o in rows], rel=1e-6)
    assert learn.history.steps['train_loss'] == pytest.approx(rows[0][1] + rows[1][1], rel=1e-6)
    assert learn.validate()['valid_loss'] == pytest.approx(rows[1][2], rel=1e-6)

def test_a_step_that_divides_a_sum_is_left_alone():
    x, y = sums()
    dl = list(zip(x.split(8), y.split(8)))
    learn = make_learner(nn.Linear(4, 2), dl, dl, optim=lambda p: torch.optim.SGD(p, lr=0.), train_step=own_mean,
                         loss_fn=nn.MSELoss(reduction='sum'))
    learn.fit(1)
    expected = F.mse_loss(learn.model(x), y, reduction='sum').item()/20
    for phase in 'train', 'valid': assert learn.history.epochs[f'{phase}_loss'] == pytest.approx([expected], rel=1e-6)
