"What `show_batch` and the hook `Samples` show is what the model sees and makes; training does not notice it"
import re

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Subset, TensorDataset

from common import batches, make_learner, problem, same, shuffled, stop_when
from test_look_results import pictures, shades
from trainer_nb.all import *
from trainer_nb.draw import new_figure

def augment(learn): learn.batch = (learn.batch[0] + torch.randn(()), *learn.batch[1:])

@pytest.mark.parametrize('hooks, loader', [((), shuffled), ((lambda: EMA(.9), augment), problem)])
def test_the_batch_shown_is_the_next_one(hooks, loader):
    "That nothing has changed, see test_lr_find.py"
    hooks = [LambdaHook(before_step=f) if f is augment else f() for f in hooks]
    learn = make_learner(train_dl=loader(), valid_dl=batches(bs=7, seed=2), hooks=hooks)
    if hooks: learn.fit(1)
    train, valid, seen = learn.show_batch().batch, learn.show_batch(valid=True).batch, {}
    def note(learn): seen.setdefault(learn.training, [o.clone() for o in learn.batch])
    learn.fit(1, hooks=[LambdaHook(before_step=note, ord=1000)])
    assert same(train, seen[True]) and same(valid[1:], seen[False][1:])
    if not hooks: assert same(valid, batches(bs=7, seed=2)[0])

def shown(x, y=None, **kwargs):
    y = torch.zeros(len(x), dtype=torch.long) if y is None else y
    dl = DataLoader(TensorDataset(x, y), 64)
    return Learner(nn.Linear(2, 2), dl, loss_fn=F.cross_entropy, display=False).show_batch(**kwargs)

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
    [torch.eye(3).to_sparse(), torch.zeros(3)], [['a <b>', 'c'], torch.zeros(2)], {},
    [torch.zeros(3, 2, dtype=torch.complex64), torch.zeros(3)]], ids=str)
def test_any_batch_is_described(batch):
    view = Learner(nn.Linear(2, 2), [batch], train_step=lambda batch: {}, display=False).show_batch()
    assert view.title() in repr(view) and '<b>' not in re.sub(r'<b>[^<]*</b>', '', view._repr_html_())

def test_names_come_from_the_arguments_or_the_dataset():
    class Named(TensorDataset): classes = ['cat', 'dog']
    x, y = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    learn = Learner(nn.Linear(3, 2), DataLoader(Subset(Named(x, y), [1, 2]), 2), loss_fn=F.cross_entropy, display=False)
    assert repr(learn.show_batch()).count('dog') == 2 and 'cat' not in repr(learn.show_batch())
    assert repr(learn.show_batch(classes={1: 'wolf'})).count('wolf') == 2
    with pytest.raises(ValueError, match='1 names.* 3'): repr(learn.show_batch(columns=['a']))
    view = shown(torch.tensor([[5., 6.], [7, 8]]), torch.tensor([0, 1]),
                 columns=np.array(['x', 'y']), classes=np.array(['cat', 'dog']))
    assert view.table() == [['x', 'x.y', 'y'], ['5', '6', 'cat'], ['7', '8', 'dog']]

def test_pictures_have_a_normalization_undone_and_their_range_said():
    "Also to values from 0 to 255; each picture beside another has its own range; HTML is short"
    x = torch.stack([torch.full((1, 8, 8), -1.), torch.full((1, 8, 8), 1.)])
    html = shown(x, x/4 + 7, mean=[120.], std=[100.])._repr_html_()
    assert 'x: black is 20, white is 220' in html and 'y: black is 795, white is 845' in html
    html = shown(x, x/4 + 7)._repr_html_()
    assert 'x: black is -1, white is 1' in html and 'y: black is 6.75, white is 7.25' in html
    assert shades(html) == [0, 0, 255, 255]
    html = shown(torch.rand(9, 3, 300, 300), n=9)._repr_html_()
    assert len(html) < 1e6 and all(max(o.shape) == 256 for o in pictures(html))

def test_a_signal_keeps_its_peaks_its_gaps_and_the_theme():
    x = torch.zeros(1, 2, 10_000)
    x[0, 0, 7777], x[0, 1, :5000] = 50, float('nan')
    html = shown(x)._repr_html_()
    assert 'light-dark' in html and re.search(r'>(50|40)<|%3E(50|40)%3C', html) and len(html) < 30_000

# The hook `Samples`

def learner(*hooks):
    set_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(.3), nn.BatchNorm1d(8), nn.Linear(8, 4)), torch.randn(40, 4)
    return Learner(model, (x, x), (x, x), bs=5, loss_fn=F.mse_loss, lr=.01, hooks=hooks, display=False, device='cpu')

def test_resumed_it_shows_the_same(tmp_path):
    "That training is the one without it, the notebook shows"
    def draws(learn): return learn(torch.randn(3, 4)), torch.rand(2)
    whole, stopped, again = (learner(Samples(draws), GradAccum(2)) for _ in range(3))
    whole.fit(3)
    stopped.fit(3, hooks=[stop_when(lambda learn: learn.history.n_steps == 11)])
    stopped.save(tmp_path/'a.pt')
    again.load(tmp_path/'a.pt')
    again.resume()
    moments, others = (o.get_hook(Samples).moments for o in (whole, again))
    assert [o['at'] for o in moments] == ['before training', 'epoch 2'] and others[-1] == moments[-1]

def test_all_that_can_be_shown():
    fig, (ax,) = new_figure(3, 2)
    ax.plot([1, 2])
    def html(out, **kwargs):
        learn = learner(samples := Samples(lambda learn: out, **kwargs))
        learn.fit(1)
        return samples.html_below_plot()
    found = html({'text': 'a <b>\nc', 'picture': Image.new('RGB', (500, 300)), 'figure': fig, 'number': 3.5,
                  'image': torch.rand(3, 8, 8)*9, 'curve': torch.rand(400), 'array': torch.rand(64).numpy()}, n=9)
    assert found.count('<img') == 2*5 and 'light-dark' in found and 'a &lt;b&gt;\nc' in found and '3.5' in found
    assert len(html(torch.rand(6, 3, 300, 300))) < 200_000
    assert not any(o in html({'<b>': '<script>'}) for o in ('<script', '<b>'))
    with pytest.raises(TypeError, match='returned None'): html(None)
    with pytest.raises(ZeroDivisionError) as e: learner(Samples(lambda learn: 1/0)).fit(1)
    assert 'Samples' in ''.join(e.value.__notes__)
