"A batch counts as many samples as it has, however it holds them; a loss that is a sum is told by sample"
from collections import UserDict
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from common import make_learner, plain_loop
from trainer_nb.base.nested import batch_size

T = torch.zeros

GRAPHS = SimpleNamespace(num_graphs=6, x=T(60, 2))       # as torch_geometric's `Batch`: nodes of all graphs

@dataclass
class Record:
    name: list
    x: Tensor

boxes = [{'boxes': T(k, 4), 'labels': T(k)} for k in (3, 1, 2, 3, 3)]
packed = pack_sequence([T(3, 2), T(2, 2), T(1, 2)])
BATCHES = {     # a batch, and its samples
    'graphs and targets': ((GRAPHS, T(6)), 6), 'packed': (packed, 3),
    'images of other sizes': (([T(3, 8, k) for k in range(5)], tuple(boxes)), 5),
    'images and labels': (([T(3, 9, 9)]*5, T(5)), 5), 'list of dicts': ([{'image': T(3, 9, 9), 'label': 1}]*5, 5),
    'images and as many boxes each': (([T(3, 9, 9)]*5, [{'boxes': T(7, 4), 'labels': T(7)}]*5), 5),
    'one image and as many boxes as channels': (([T(3, 9, 9)], boxes[:1]), 1), 'pairs': ([(T(1, 28), 3)]*5, 5),
    'texts and labels': ((['a']*7, T(7)), 7), 'encoding': (UserDict(ids=T(4, 7), n=T(())), 4),
    'dataclass': (Record(['a']*4, T(4, 2)), 4), 'array': (T(6, 2).numpy(), 6), 'objects': ([object()]*4, 4),
    'nested': ((torch.nested.nested_tensor([T(2), T(3)], layout=torch.jagged), T(2)), 2), 'number': (3, 1)}

def test_known_containers():
    assert {k: batch_size(batch) for k, (batch, _) in BATCHES.items()} == {k: n for k, (_, n) in BATCHES.items()}

g = torch.Generator().manual_seed(3)
X, Y = torch.randn(20, 4, generator=g), torch.randn(20, 2, generator=g)
DL = list(zip(X.split(8), Y.split(8)))

def summed(model, batch): return F.mse_loss(model(batch[0]), batch[1], reduction='sum')

@pytest.mark.parametrize('kwargs', [
    dict(loss_fn=nn.MSELoss(reduction='sum')),
    dict(train_step=lambda b, learn: {'loss': summed(learn.model, b), 'reduction': 'sum'})], ids=['module', 'step'])
def test_a_loss_that_is_a_sum_is_told_by_sample(kwargs):
    "as PyTorch's VAE example prints it, `train_loss/len(dataset)`; its gradients are those of the sum"
    model = nn.Linear(4, 2)
    mine = deepcopy(model)
    losses = plain_loop(model, torch.optim.SGD(model.parameters(), lr=.01), DL, 1, summed)
    with torch.no_grad(): valid = summed(model, (X, Y)).item()/20
    learn = make_learner(mine, DL, DL, optim=torch.optim.SGD(mine.parameters(), lr=.01), **kwargs)
    h = learn.fit(1)
    assert all(map(torch.equal, mine.parameters(), model.parameters()))
    assert h.steps['train_loss'] == pytest.approx([o/len(x) for o, (x, _) in zip(losses, DL)], rel=1e-6)
    assert h.epochs['train_loss'] == pytest.approx([sum(losses)/20], rel=1e-6)
    assert h.epochs['valid_loss'] == [learn.validate()['valid_loss']] == pytest.approx([valid], rel=1e-6)
