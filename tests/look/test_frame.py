"`predict(as_frame=True)`: a row for each sample, and numbers that mean what their heading says"
import sys
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import make_learner, problem
from trainer_nb.look.predictions import chances_of

X, Y = problem()

class Says(nn.Module):
    def __init__(self, out, config=None):
        super().__init__()
        self.out, self.weight, self.config = out, nn.Parameter(torch.zeros(())), config
    def forward(self, x): return self.out(x)

def frame(out, loss_fn, as_frame=True, config=None, train_dl=(), **kwargs):
    pytest.importorskip('pandas')
    return make_learner(Says(out, config), train_dl, loss_fn=loss_fn, **kwargs).predict(X, as_frame=as_frame)

def values(table, names): return torch.tensor(table[names].values)

def test_numbers_mean_what_the_loss_takes():
    "nbs/look/15_predictions has a cross entropy, one logit, a regression, and what each loss means"
    table = frame(lambda x: x.softmax(1).bfloat16(), F.cross_entropy)       # probabilities, though rounded
    assert torch.allclose(values(table, [0, 1, 2, 3]), X.softmax(1), atol=1e-2)
    table = frame(lambda x: x, nn.BCEWithLogitsLoss(), [*'abcd'])
    assert [*table.columns] == [*'abcd'] and torch.allclose(values(table, [*'abcd']), 1/(1 + (-X).exp()), atol=1e-6)

@pytest.mark.parametrize('out,loss_fn', [
    (lambda x: x.log_softmax(1), nn.NLLLoss()), (lambda x: x.softmax(1).bfloat16(), F.cross_entropy),
    (lambda x: x[:, :1], nn.BCEWithLogitsLoss())])
def test_results_show_the_same_probabilities(out, loss_fn):
    y = (Y > 0).float()[:, None] if out(X).size(1) == 1 else Y
    res = make_learner(Says(out), (), loss_fn=loss_fn).results((X, y))
    chances = chances_of(res, [*range(len(X))])
    assert torch.allclose(chances, values(frame(out, loss_fn), [*range(chances.size(1))]), atol=1e-6)

def test_names_come_from_the_data_and_the_config():
    data = TensorDataset(X, Y)
    data.classes = ['a', 'b', 'c', 'd']
    assert [*frame(lambda x: x, F.cross_entropy, train_dl=DataLoader(data)).columns][1:] == [*'abcd']
    config = SimpleNamespace(id2label=dict(enumerate('abcd')), problem_type=None)
    for kind, expected in (None, X.softmax(1)), ('multi_label_classification', X.sigmoid()), ('regression', X):
        config.problem_type = kind
        table = frame(lambda x: {'logits': x}, None, config=config)
        assert torch.allclose(values(table, [*'abcd']), expected, atol=1e-6)

def test_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pandas', None)
    with pytest.raises(ImportError, match=r'pip install "trainer_nb\[pandas\]"'):
        make_learner().predict(X, as_frame=True)

def test_a_row_for_each_box():
    pytest.importorskip('pandas')
    images = torch.tensor([2., 0., 1., 3.])[:, None, None, None].expand(4, 3, 8, 8)
    def find(images):       # a box of class 1 for each thing in a picture, the less likely first
        return [{'boxes': torch.arange(4.*k).reshape(k, 4), 'labels': torch.ones(k, dtype=torch.long),
                 'scores': torch.arange(1., k + 1)/10} for k in map(int, images.amax((1, 2, 3)))]
    learn = make_learner(Says(find), (), loss_fn=F.cross_entropy, bs=3)
    table = learn.predict(images, as_frame=['background', 'cat'])
    assert [*table.image] == [0, 0, 2, 3, 3, 3] and {*table.predicted} == {'cat'}       # the likeliest box first
    assert [*table.score.round(1)] == [.2, .1, .1, .3, .2, .1] and [*table.loc[0, 'x1':]] == [4., 5., 6., 7.]
    none = learn.predict(images[1:2], as_frame=True)
    assert len(none) == 0 and [*none.columns] == [*table.columns]
    assert [*learn.predict(images[3], batched=False, as_frame=True).predicted] == [1, 1, 1]
    with pytest.raises(ValueError, match='results'): learn.predict([(images, Y[:4])], with_targs=True, as_frame=True)
    with pytest.raises(ValueError, match=r"'boxes' \(k, 4\), 'labels' and 'scores'"):
        frame(lambda x: [{'found': o} for o in x], F.cross_entropy)
    with pytest.raises(ValueError, match=r'the predictions are a tensor of shape \(24, 4, 1\)'):
        frame(lambda x: x[:, :, None], F.cross_entropy)
