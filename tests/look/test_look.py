"What `show_batch` shows is what the model sees"
import re

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Broken, batches, make_learner, problem, same, shuffled
from test_tasks import pictures
from trainer_nb.all import EMA, Hook, Learner


class Augment(Hook):
    "Adds noise on the device"
    def before_step(self, learn):
        learn.batch = (learn.batch[0] + torch.randn(()), *learn.batch[1:])

class First(Hook):
    "Takes the first batch of each phase"
    ord = 1000
    def __init__(self): self.seen = {}
    def before_step(self, learn): self.seen.setdefault(learn.training, [o.clone() for o in learn.batch])

@pytest.mark.parametrize('hooks, fitted, loader', [
    ((), False, shuffled), ((lambda: EMA(.9), Augment), True, lambda: problem()),
    ((Augment,), True, lambda: shuffled(num_workers=1))])
def test_the_batch_shown_is_the_next_one(hooks, fitted, loader):
    "That nothing has changed, see test_lr_find.py"
    learn = make_learner(train_dl=loader(), valid_dl=batches(bs=7, seed=2), hooks=[f() for f in hooks])
    if fitted: learn.fit(1)
    train, valid = learn.show_batch().batch, learn.show_batch(valid=True).batch
    first = First()
    learn.fit(1, hooks=[first])
    assert same(train, first.seen[True]) and same(valid[1:], first.seen[False][1:])
    if not hooks: assert same(valid, batches(bs=7, seed=2)[0])

def test_a_learner_without_training_data():
    learn = Learner(nn.Linear(4, 3), valid_dl=batches(), loss_fn=F.cross_entropy, display=False)
    assert same(learn.show_batch(valid=True).batch, batches()[0])
    with pytest.raises(ValueError, match='no train_dl'): learn.show_batch()

def test_an_error_in_the_data_is_told():
    with pytest.raises(OSError, match='no such picture'): make_learner(train_dl=DataLoader(Broken())).show_batch()
    once = make_learner(train_dl=iter(batches()))
    with pytest.raises(ValueError, match='read only once'): once.show_batch()

def shown(x, y=None, bs=64, **kwargs):
    y = torch.zeros(len(x), dtype=torch.long) if y is None else y
    learn = Learner(nn.Linear(2, 2), DataLoader(TensorDataset(x, y), bs), loss_fn=F.cross_entropy, display=False)
    return learn.show_batch(**kwargs)

@pytest.mark.parametrize('c, last', [(1, False), (3, True), (4, False)])
def test_pixels_are_those_of_the_data(last, c):
    "Channels first or last; bytes and numbers from 0 to 1 as they are, and a normalization undone"
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (5, c, 6, 9), generator=g)
    right = x.permute(0, 2, 3, 1).squeeze(-1).numpy()
    if last: x = x.permute(0, 2, 3, 1)
    mean, std = torch.rand(c, generator=g), torch.rand(c, generator=g) + .2
    shape = (c,) if last else (c, 1, 1)
    for given, kwargs in (x.byte(), {}), (x/255, {}), ((x/255 - mean.view(shape))/std.view(shape),
                                                       dict(mean=mean.tolist(), std=std.tolist())):
        found = [o[::14, ::14] for o in pictures(shown(given, n=5, **kwargs)._repr_html_())]
        assert len(found) == 5 and all(np.abs(a.astype(int) - b).max() == 0 for a, b in zip(found, right))

@pytest.mark.parametrize('batch', [
    ({'a': [torch.zeros(3, 2), torch.zeros(3)]}, ['a', 'b', 'c']), [torch.zeros(0, 4), torch.zeros(0)], ('text', 3),
    [torch.eye(3).to_sparse(), torch.zeros(3)],
    [['a <b>', 'c'], torch.zeros(2)], [torch.zeros(3, 2, dtype=torch.complex64), torch.zeros(3)], {},
    [torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), torch.zeros(2)],
], ids=str)
def test_any_batch_is_described(batch):
    learn = Learner(nn.Linear(2, 2), [batch], train_step=lambda batch: {}, display=False)
    view = learn.show_batch()
    assert view.title() in repr(view) and '<b>' not in re.sub(r'<b>[^<]*</b>', '', view._repr_html_())
    assert 'script' not in view._repr_html_()

def test_names_and_text_come_from_the_arguments_or_the_dataset():
    class Named(TensorDataset): classes = ['cat', 'dog']
    x, y = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    learn = Learner(nn.Linear(3, 2), DataLoader(torch.utils.data.Subset(Named(x, y), [1, 2]), 2),
                    loss_fn=F.cross_entropy, display=False)
    assert repr(learn.show_batch()).count('dog') == 2 and 'cat' not in repr(learn.show_batch())
    assert repr(learn.show_batch(classes={1: 'wolf'})).count('wolf') == 2
    view = shown(torch.tensor([[1, 0], [0, 0]]), decode=lambda ids: ' '.join('ab'[i] for i in ids))
    assert 'a a' in view._repr_html_()
    with pytest.raises(ValueError, match='1 names, but the samples have 3'): repr(learn.show_batch(columns=['a']))
    with pytest.raises(ValueError, match='3 values, but the pictures have 1'):
        shown(torch.rand(2, 1, 8, 8), mean=[0, 0, 0], std=[1, 1, 1])._repr_html_()

def test_names_in_arrays_and_columns_with_the_name_of_the_target():
    x = torch.tensor([[5., 6.], [7, 8]])
    view = shown(x, torch.tensor([0, 1]), columns=np.array(['x', 'y']), classes=np.array(['cat', 'dog']))
    assert view.table() == [['x', 'x.y', 'y'], ['5', '6', 'cat'], ['7', '8', 'dog']]

def test_pictures_have_a_normalization_undone_and_their_range_said():
    "Also to values from 0 to 255; each picture that stands beside another has its own range"
    x = torch.stack([torch.full((1, 8, 8), -1.), torch.full((1, 8, 8), 1.)])
    html = shown(x, x/4 + 7, mean=[120.], std=[100.])._repr_html_()
    assert 'x: black is 20, white is 220' in html and 'y: black is 795, white is 845' in html
    html = shown(x, x/4 + 7)._repr_html_()
    assert 'x: black is -1, white is 1' in html and 'y: black is 6.75, white is 7.25' in html
    assert [o.mean() for o in pictures(html)] == [0, 0, 255, 255]

def test_what_is_drawn_is_short():
    html = shown(torch.rand(64, 3, 300, 300), n=9)._repr_html_()
    assert len(html) < 1e6 and all(max(o.shape) == 256 for o in pictures(html))
