"What `show_batch` and the hook `Samples` show is what the model sees and makes; training does not notice it"
import re
from dataclasses import make_dataclass

import numpy as np
import pytest
from PIL import Image
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Subset, TensorDataset

from common import Broken, batches, digest, make_learner, problem, same, shuffled
from test_look_results import pictures
from trainer_nb.all import *
from trainer_nb.draw import new_figure
from trainer_nb.look.samples import samples_in

class Augment(Hook):
    "Adds noise on the device"
    def before_step(self, learn): learn.batch = (learn.batch[0] + torch.randn(()), *learn.batch[1:])

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

def test_data_that_is_missing_broken_or_read_once():
    learn = Learner(nn.Linear(4, 3), valid_dl=batches(), loss_fn=F.cross_entropy, display=False)
    assert same(learn.show_batch(valid=True).batch, batches()[0])
    for dl, error, text in ((None, ValueError, 'no train_dl'), (DataLoader(Broken()), OSError, 'no such picture'),
                            (iter(batches()), ValueError, 'read only once')):
        learn.train_dl = dl
        with pytest.raises(error, match=text): learn.show_batch()

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
    [torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), torch.zeros(2)],], ids=str)
def test_any_batch_is_described(batch):
    learn = Learner(nn.Linear(2, 2), [batch], train_step=lambda batch: {}, display=False)
    view = learn.show_batch()
    assert view.title() in repr(view) and '<b>' not in re.sub(r'<b>[^<]*</b>', '', view._repr_html_())
    assert 'script' not in view._repr_html_()

def test_names_and_text_come_from_the_arguments_or_the_dataset():
    class Named(TensorDataset): classes = ['cat', 'dog']
    x, y = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    learn = Learner(nn.Linear(3, 2), DataLoader(Subset(Named(x, y), [1, 2]), 2), loss_fn=F.cross_entropy, display=False)
    assert repr(learn.show_batch()).count('dog') == 2 and 'cat' not in repr(learn.show_batch())
    assert repr(learn.show_batch(classes={1: 'wolf'})).count('wolf') == 2
    view = shown(torch.tensor([[1, 0], [0, 0]]), decode=lambda ids: ' '.join('ab'[i] for i in ids))
    assert 'a a' in view._repr_html_()
    with pytest.raises(ValueError, match='1 names, but the samples have 3'): repr(learn.show_batch(columns=['a']))
    with pytest.raises(ValueError, match='3 values, but the pictures have 1'):
        shown(torch.rand(2, 1, 8, 8), mean=[0, 0, 0], std=[1, 1, 1])._repr_html_()
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
    assert [o.mean() for o in pictures(html)] == [0, 0, 255, 255]
    html = shown(torch.rand(64, 3, 300, 300), n=9)._repr_html_()
    assert len(html) < 1e6 and all(max(o.shape) == 256 for o in pictures(html))

def test_rows_of_numbers_are_pictures_of_a_shape():
    "And what they are compared with, as in an autoencoder; a shape that does not fit is an error of torch"
    x = torch.rand(6, 64)
    html = shown(x, n=6, shape=(8, 8))._repr_html_()
    assert [o.mean().round() for o in pictures(html)] == pytest.approx([255*o.mean().item() for o in x], abs=1)
    learn = Learner(nn.Linear(64, 64), valid_dl=(x, x*.5), loss_fn=F.mse_loss, display=False)
    assert [*learn.results(shape=[8, 8]).show(2).samples[0].beside] == ['target', 'predicted']
    with pytest.raises(RuntimeError, match=r"shape '\[9, 9\]' is invalid for input of size 64"): shown(x, shape=(9, 9))

def test_a_signal_keeps_its_peaks_its_gaps_and_the_theme():
    x = torch.zeros(1, 2, 10_000)
    x[0, 0, 7777], x[0, 1, :5000] = 50, float('nan')
    html = shown(x)._repr_html_()
    assert 'light-dark' in html and re.search(r'>(50|40)<|%3E(50|40)%3C', html) and len(html) < 30_000

def unequal(n): return [torch.randn(2 + i, 4) for i in range(n)]

@pytest.mark.parametrize('make', [lambda xs: pack_sequence(xs, enforce_sorted=False),
                                  lambda xs: torch.nested.nested_tensor(xs, layout=torch.jagged)])
def test_samples_of_packed_nested_and_dataclass_batches(make):
    "As many as a packed batch has fields, too"
    class Mean(nn.Linear):
        def forward(self, x): return torch.stack([super(Mean, self).forward(o).mean(0) for o in samples_in(x)])
    def step(batch, learn):
        pred = learn.model(batch.x)
        return {'loss': F.cross_entropy(pred, batch.y), 'pred': pred, 'targ': batch.y}
    xs, y, Batch = unequal(4), torch.tensor([0, 1, 2, 1]), make_dataclass('Batch', ['x', 'y'])
    for batch, more in ((make(xs), y), dict(loss_fn=F.cross_entropy)), (Batch(make(xs), y), dict(train_step=step)):
        learn = Learner(Mean(4, 3), [batch], [batch], display=False, **more)
        batch, res = learn.show_batch(), learn.results()
        for view, name in (batch, 'y'), (res.show(at=range(4)), 'target'):
            assert same([o['x'] for o in view.samples], xs) and [dict(o)[name] for o in view.captions] == [*'0121']
        with torch.no_grad(): expected = F.cross_entropy(learn.model(make(xs)), y, reduction='none')
        assert torch.allclose(res.loss, expected)

def test_predictions_for_each_entry_of_a_jagged_batch():
    x = torch.nested.nested_tensor(unequal(3), layout=torch.jagged)
    y = torch.nested.nested_tensor([torch.randint(3, (2 + i,)) for i in range(3)], layout=torch.jagged)
    res = Learner(nn.Linear(4, 3), valid_dl=[(x, y)], loss_fn=lambda p, t: F.cross_entropy(p.values(), t.values()),
                  display=False).results()
    assert len(res.show().samples) == len(res.pred) == 3
    with pytest.raises(ValueError, match='an eval_step can pad both'): res.report()

# The hook `Samples`

def learner(*hooks):
    set_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(.3), nn.BatchNorm1d(8), nn.Linear(8, 4)), torch.randn(40, 4)
    return Learner(model, (x, x), (x, x), bs=5, loss_fn=F.mse_loss, lr=.01, hooks=hooks, display=False, device='cpu')

def draws(learn):
    "Noise, and what the model makes of it"
    return learn(torch.randn(3, 4)), torch.rand(2)

def test_training_and_resuming_are_those_without_it(tmp_path):
    def run(*hooks):
        learn = learner(*hooks, GradAccum(2))
        learn.fit(3)
        return digest(learn), torch.rand(3).tolist()
    samples = Samples(draws)
    assert run(samples) == run()
    assert [o['at'] for o in samples.moments] == ['before training', 'epoch 2']
    stopped = learner(Samples(draws), GradAccum(2))
    stopped.fit(3, hooks=[LambdaHook(after_step=lambda l: l.stop() if l.history.n_steps == 11 else None)])
    stopped.save(tmp_path/'a.pt')
    again = learner(Samples(draws), GradAccum(2))
    again.load(tmp_path/'a.pt')
    again.resume()
    assert again.get_hook(Samples).moments[-1] == samples.moments[-1]

def test_the_average_draws_from_the_same_noise():
    seen = []
    def f(learn):
        assert not learn.model.training and not torch.is_grad_enabled()
        z = torch.randn(2, 4)
        seen.append((z, learn(z), learn.ema.average_of(learn)(z)))
        return 'text'
    learn = learner(Samples(f), EMA(.5))
    learn.fit(2)
    assert learn.model.training and len(seen) == 3
    for z, shown, average in seen: assert torch.equal(z, seen[0][0]) and torch.equal(shown, average)

def test_all_that_can_be_shown():
    fig, (ax,) = new_figure(3, 2)
    ax.plot([1, 2])
    shown = {'text': 'a <b>\nc', 'picture': Image.new('RGB', (500, 300)), 'figure': fig, 'image': torch.rand(3, 8, 8)*9,
             'curve': torch.rand(400), 'array': torch.rand(64).numpy(), 'number': 3.5}
    learn = learner(Samples(lambda learn: shown, n=9))
    learn.fit(1)
    html = learn.get_hook(Samples).html_below_plot()
    assert html.count('<img') == 2*5 and 'light-dark' in html and 'a &lt;b&gt;\nc' in html and '3.5' in html
    with pytest.raises(TypeError, match='returned None'): learner(Samples(lambda learn: None)).fit(1)
    with pytest.raises(ZeroDivisionError) as e: learner(Samples(lambda learn: 1/0)).fit(1)
    assert 'Samples' in ''.join(e.value.__notes__)
    learn = learner(samples := Samples(lambda learn: torch.rand(6, 3, 300, 300)))
    learn.fit(5)
    assert len(samples.html_below_plot()) < 200_000 and 'before training' in samples.html_below_plot()
    learn = learner(samples := Samples(lambda learn: {'<b>': '<script>'}))
    learn.fit(1)
    assert not any(o in samples.html_below_plot() for o in ('<script', '<b>'))
