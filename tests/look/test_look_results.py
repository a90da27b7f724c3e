"`results`, `confusion` and `report` against plain PyTorch and scikit-learn, and what they draw and refuse in each task"
import base64, copy, io, re, sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import sklearn.metrics as sk
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from common import Stream, make_learner, problem, same, shuffled, weights
from trainer_nb.all import *
from trainer_nb.draw import COLORS
from trainer_nb.look.results import Results
from trainer_nb.look.samples import Look, Sample, SampleView

def rand(): return torch.Generator().manual_seed(0)

def pictures(html):
    found = re.findall(r'data:image/(?:png|jpeg);base64,([^"]+)', html)
    return [np.array(Image.open(io.BytesIO(base64.b64decode(o)))) for o in found]

def shades(html): return [o.astype(float).mean() for o in pictures(html)]

# Losses of samples

@pytest.mark.parametrize('make', [
    lambda: tuple(o.numpy() for o in problem()), shuffled, lambda: DataLoader(Stream([*zip(*problem())]), 5),
    lambda: DataLoader(TensorDataset(*problem()), 5, drop_last=True), lambda: {'a': problem(), 'b': problem(7, 3)},
], ids=['arrays', 'shuffled', 'iterable', 'drop_last', 'sets'])
def test_losses_are_those_of_batches_of_one_and_samples_are_found_again(make):
    learn = make_learner()
    learn.fit(1)
    torch.manual_seed(3)
    rng, before = torch.get_rng_state(), weights(learn.model)
    res = learn.results(make())
    assert torch.equal(torch.get_rng_state(), rng) and same(before, weights(learn.model)) and not learn.hooks
    torch.manual_seed(3)
    batches = [next(iter(b.values())) if isinstance(b, dict) else b for b in learn.loader_for(make())]
    x, targ = map(torch.cat, zip(*batches))
    model = copy.deepcopy(learn.model).eval()
    with torch.no_grad(): pred = torch.cat([model(o[None]) for o in x])
    loss = torch.stack([F.cross_entropy(p[None], t[None]) for p, t in zip(pred, targ)])
    assert torch.allclose(res.pred, pred, atol=1e-6) and torch.equal(res.targ, targ)
    assert torch.allclose(res.loss, loss, atol=1e-6)
    state, k = torch.get_rng_state(), res.top_losses(6)[1]
    shown = res.show(6)
    assert torch.equal(torch.stack([o['x'] for o in shown.samples]), x[k]) and torch.equal(k, loss.topk(6)[1])
    assert [dict(o)['target'] for o in shown.captions] == [str(o.item()) for o in targ[k]]
    marks = ['✓' if o else '✗' for o in pred[k].argmax(1) == targ[k]]
    assert [dict(o)['predicted'] for o in shown.captions] == [f'{o} {m}' for o, m in zip(pred[k].argmax(1), marks)]
    assert torch.equal(torch.get_rng_state(), state) and len(res.show(at=range(10)).samples) == 10     # all that it got

class Given(nn.Module):
    "Returns the tensor that the input numbers point to"
    def __init__(self, out):
        super().__init__()
        self.out = nn.Parameter(out)
    def forward(self, i): return self.out[i]

y3 = torch.randint(3, (7, 4), generator=rand())
y3[0, 1:] = y3[3, 0] = y3[6, :2] = -1

@pytest.mark.parametrize('loss_fn, shape, targ', [      # nbs/look/03_results has functions, modules, sums, and weights
    (partial(F.cross_entropy, ignore_index=-1, label_smoothing=.1), (7, 3, 4), y3),
    (nn.BCEWithLogitsLoss(), (7, 4), (y3 > 0).float()),
    (nn.KLDivLoss(reduction='batchmean'), (7, 4), torch.full((7, 4), .25)),
    (lambda p, t: (p - t).square().mean().sqrt(), (7, 4), torch.zeros(7, 4))], ids=['ignored', 'bce', 'kl', 'rmse'])
def test_any_loss_function(loss_fn, shape, targ):
    out, i = torch.randn(shape, generator=rand()), torch.arange(7)
    expected = torch.stack([loss_fn(out[k:k+1], targ[k:k+1]) for k in i])
    def learner(**kwargs): return Learner(Given(out), valid_dl=(i, targ), bs=3, display=False, **kwargs)
    def step(b, learn): return {'loss': loss_fn(p := learn.model(b[0]), b[1]), 'pred': p, 'targ': b[1]}
    learn = learner(loss_fn=loss_fn)
    for res in learn.results(), learner(train_step=step).results():
        assert torch.allclose(res.loss, expected, atol=1e-6) and torch.equal(res.targ, targ)
    given = learn.results(loss=lambda p, t: p.flatten(1).sum(1))
    assert torch.allclose(given.loss, out.flatten(1).sum(1)) and torch.equal(given.pred, out)

def test_the_pass_is_that_of_validate():
    "Hooks take part: the average of EMA predicts, a hook that changes the batch is heard, AMP computes"
    shift = LambdaHook(before_step=lambda learn: setattr(learn, 'batch', (learn.batch[0] + 1, learn.batch[1])))
    for hook, rel in (EMA(.5), 1e-5), (shift, 1e-5), (AMP(), 1e-2):
        learn = make_learner(valid_dl=problem(), hooks=[hook])
        learn.fit(1)
        res = learn.results()
        assert res.loss.dtype == torch.float32
        assert res.loss.mean().item() == pytest.approx(learn.validate()['valid_loss'], rel=rel)

def contrast(pred, targ=None): return F.cross_entropy(pred @ pred.T, torch.arange(len(pred)))
def contrast_step(batch, learn): return {'loss': contrast(pred := learn.model(batch[0])), 'pred': pred}

@pytest.mark.parametrize('given', [dict(loss_fn=contrast), dict(train_step=contrast_step)])
def test_losses_between_samples_are_refused(given):
    learn = make_learner(nn.Linear(4, 3), **given)
    with pytest.raises(ValueError, match='compares samples with one another'): learn.results(problem())
    res = learn.results(problem(), loss=lambda pred, targ: pred.square().sum(1))
    with torch.no_grad(): assert torch.allclose(res.loss, learn.model(problem()[0]).square().sum(1))

# Confusion and report

def results(pred, targ, loss_fn=F.cross_entropy, **kwargs):
    return Results(pred, targ, torch.zeros(len(targ)), {}, Look(**kwargs), loss_fn)

def check_scores(res, targ, pred, **kwargs):
    theirs = sk.precision_recall_fscore_support(targ, pred, zero_division=0, **kwargs)
    for k, o in zip(('precision', 'recall', 'f1', 'support'), theirs):
        assert np.allclose(res.report().scores[k].nan_to_num(), o)

@pytest.mark.parametrize('seed, n, c', [(0, 1, 2), (3, 300, 30), (1, 20, 30)])
def test_scores_are_those_of_scikit_learn(seed, n, c):
    "Also for classes without a sample, or that are never predicted; those that never occur do not pull the mean down"
    g = torch.Generator().manual_seed(seed)
    pred, targ = torch.randn(n, c, generator=g), torch.randint(max(c - 1, 1), (n,), generator=g)
    res, ids = results(pred, targ), pred.argmax(1)
    assert np.array_equal(res.confusion().counts, sk.confusion_matrix(targ, ids, labels=range(c)))
    check_scores(res, targ, ids, labels=range(c))
    means = {o[0]: [float(v) for v in o[1:4]] for o in res.report().rows()[-2:]}
    for name, how in ('mean', 'macro'), ('mean by support', 'weighted'):
        expected = sk.precision_recall_fscore_support(targ, ids, average=how, zero_division=0)[:3]
        assert means[name] == pytest.approx(expected, abs=6e-4)

t2 = torch.tensor([0, 1, 1, 0])

@pytest.mark.parametrize('pred, targ, loss_fn, ids', [
    (torch.tensor([-1., 2, .4, -3]), t2.float(), F.binary_cross_entropy_with_logits, [0, 1, 1, 0]),
    (torch.tensor([.1, .9, .4, .3])[:, None], t2.float()[:, None], nn.BCELoss(), [0, 1, 0, 0]),
    (torch.tensor([-1., 2, -1, 3]), t2.bool(), lambda p, t: 0, [0, 1, 0, 1]),
    (torch.tensor([[1., 0], [0, 1], [1, 0], [0, 1]]), t2[:, None], None, [0, 1, 0, 1])])
def test_two_classes_in_all_forms(pred, targ, loss_fn, ids):
    found, t = results(pred, targ, loss_fn).as_ids()
    assert found.tolist() == ids and t.tolist() == t2.tolist()

def test_pixels_tokens_and_ignored_targets():
    for shape, unit in ((), 'samples'), ((7,), 'tokens'), ((4, 6), 'pixels'):
        pred, targ = torch.randn(5, 3, *shape, generator=rand()), torch.randint(3, (5, *shape), generator=rand())
        targ[0] = -100
        right = sk.confusion_matrix(targ[targ >= 0], pred.argmax(1)[targ >= 0], labels=range(3))
        for o in pred, pred.movedim(1, -1):
            c = results(o, targ).confusion()
            assert np.array_equal(c.counts, right)
            assert c.rows()[0][2] == c.unit == unit and f'>{unit}<' in c._repr_html_()
        assert (f'of {right.sum()} {unit} right' in c.title()) == (unit != 'samples')

def test_labels_and_regression():
    pred, targ = torch.randn(50, 4, generator=rand()), torch.randint(2, (50, 4), generator=rand()).float()
    labels = results(pred, targ, nn.BCEWithLogitsLoss())
    check_scores(labels, targ, pred > 0)
    with pytest.raises(ValueError, match='report'): labels.confusion()
    scores = results(pred, targ + pred, F.mse_loss).report().scores
    for i in range(4):
        assert scores['r2'][i] == pytest.approx(sk.r2_score((targ + pred)[:, i], pred[:, i]))
        assert scores['mae'][i] == pytest.approx(sk.mean_absolute_error((targ + pred)[:, i], pred[:, i]))
    assert results(torch.randn(3, 1), torch.ones(3, 1), F.mse_loss).report().scores['r2'].isnan().all()
    two = torch.tensor([[0., 1]]).expand(2000, 2)
    assert {*results(two, two, F.mse_loss).report().points[0]} == {0, 1}      # of each output
    counts, binary = torch.arange(6)[:, None], (torch.rand(8, 1, 8, 8) > .5).float()
    for p, t in (counts + .5, counts), (binary, binary):        # whole numbers, but no classes
        assert results(p, t, nn.MSELoss()).task() == 'regression'

def test_the_text_and_the_picture_of_a_confusion_say_the_same():
    def html(*args, **kwargs): return results(*map(torch.tensor, args), None, **kwargs).confusion()._repr_html_()
    pred, targ = [0, 1, 2, 2, 2, 1, 0, 0], [0, 1, 2, 1, 1, 1, 0, 2]
    found = html(pred, targ, classes=['cat', '<dog>', 'eel'])
    assert '5 of 8 right, 62.5%' in found and '50%' in found and '&lt;dog&gt;' in found and '<dog>' not in found
    near = html([0]*299 + [1], [0]*300)
    assert '&gt;99%<' in near and '&lt;1%<' in near and '100%' not in near
    blue = [float(o) for o in re.findall(r'0,114,178,([.0-9]+)', html([0]*89 + [1]*111, [0]*100 + [1]*100))]
    assert blue[1] - blue[0] > .15      # 100 % and 89 %
    many = results(torch.arange(40), torch.arange(40).roll(1), None).confusion()
    svg = base64.b64decode(re.search('svg[+]xml;base64,([^"]+)', many._repr_html_())[1]).decode()
    assert '0 of 40' in repr(many) and svg.count('rgba(213,94,0,0.80)') == 40 and svg.count('>39</text>') == 2

def test_what_a_loss_with_weights_takes_are_no_scores():
    class Proxies(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3, 5))
        def forward(self, pred, targ): return F.cross_entropy(pred @ self.weight.T, targ)
    learn = make_learner(nn.Linear(4, 5), loss_fn=Proxies())
    res = learn.results(problem())
    assert '✓' not in repr(res.show()) and '✗' not in repr(res.show())
    with pytest.raises(ValueError, match='weights of its own'): res.report()
    scores = learn.results(problem(), keep=lambda pred: pred @ learn.loss_fn.weight.T)
    assert len(scores.report().names) == 3 and 'predicted' in repr(scores.show())

# Graphs, and targets that the step makes

class Graphs:
    "As batches of torch_geometric"
    def __init__(self, graphs): self.graphs, self.num_graphs = graphs, len(graphs)
    def __getitem__(self, i): return self.graphs[i]
    def to_data_list(self): return self.graphs
    def to_dict(self): return {'x': torch.cat(self.graphs), 'ptr': torch.arange(len(self.graphs) + 1)}
    from_data_list = classmethod(lambda cls, graphs: cls(graphs))

def test_graphs_and_targets_that_the_step_makes():
    graphs = [torch.rand(3 + i, 2) for i in range(5)]
    def step(batch, learn):
        pred = learn.model(torch.stack([o.sum(0) for o in batch.graphs]))
        targ = torch.rand_like(pred)
        return {'loss': F.mse_loss(pred, targ), 'pred': pred, 'targ': targ}
    learn = Learner(nn.Linear(2, 2), [Graphs(graphs)], train_step=step, display=False)
    res = learn.results([Graphs(graphs[:3]), Graphs(graphs[3:])])
    with torch.no_grad(): expected = learn.model(torch.stack([o.sum(0) for o in graphs]))
    assert torch.allclose(res.pred, expected) and len(res.show(5).captions) == 5
    assert '(25, 2)' in repr(learn.show_batch())

# Pictures, masks and boxes

def fitted(model, x, y, loss_fn):
    learn = Learner(model, (x, y), (x, y), loss_fn=loss_fn, display=False, device='cpu')
    learn.fit(1)
    return learn

def dice_loss(pred, targ):
    pred = pred.sigmoid()
    return 1 - 2*(pred*targ).sum()/(pred + targ).sum()

@pytest.mark.parametrize('loss_fn, n', [(dice_loss, 1), (F.cross_entropy, 2)])
def test_a_report_of_masks_has_dice_and_iou(loss_fn, n):
    x = torch.rand(12, 3, 16, 16)
    y = (x[:, :1] > .6).float() if n == 1 else (x[:, 0] > .6).long()
    learn = fitted(nn.Conv2d(3, n, 1), x, y, loss_fn)
    report, logits = learn.results().report(), learn.predict((x,))
    pred, targ = logits.argmax(1).bool() if n > 1 else logits[:, 0] > 0, y.reshape(12, 16, 16).bool()
    both, either = (pred & targ).sum().item(), (pred | targ).sum().item()
    assert 'r2' not in repr(report) and 'pixels of 12 pictures' in report.title()
    assert report.scores['iou'][1] == pytest.approx(both/max(either, 1))
    assert report.scores['dice'][1] == pytest.approx(2*both/(pred.sum() + targ.sum()).item())

def test_boxes_are_drawn_where_they_are(monkeypatch):
    "In pictures of two sizes, as torchvision gets them; without it, the words are left"
    drawn, utils = [], ModuleType('torchvision.utils')      # what torchvision is asked to draw
    def draw(image, boxes, names, color, **kwargs):
        drawn.append((image.shape, boxes.tolist()[0], names, color))
        return image
    utils.draw_bounding_boxes = draw
    monkeypatch.setitem(sys.modules, 'torchvision', ModuleType('torchvision'))
    monkeypatch.setitem(sys.modules, 'torchvision.utils', utils)
    samples, look = [], Look(['', 'cat', 'dog'], min_score=.4)
    for i in range(4):
        known = {'boxes': torch.tensor([[5., 6., 20. + i, 30.]]), 'labels': torch.tensor([1 + i % 2])}
        found = {**known, 'scores': torch.tensor([.8])}
        samples.append(Sample({'x': torch.rand(3, 50 + i % 2, 60)}, {'target': known, 'predicted': found}))
    view, times = SampleView(samples, [o.caption(look) for o in samples], look), 512/60
    assert len(pictures(view._repr_html_())) == 4
    assert [o[2:] for o in drawn[:2]] == [(['cat'], COLORS[2]), (['cat 0.80'], COLORS[1])]
    for i, (shape, boxes, *_) in enumerate(drawn[::2]):
        assert shape == (3, int((50 + i % 2)*times), 512)
        assert boxes == pytest.approx([5*times, 6*times, (20 + i)*times, 30*times])
    monkeypatch.setitem(sys.modules, 'torchvision.utils', None)
    assert 'cannot be imported' in (plain := view._repr_html_()) and '>cat 0.80<' in plain
    with pytest.raises(ValueError, match='expected tensors'): results([found], [known]).report()

def test_pictures_that_a_model_returns_are_drawn_in_the_range_of_the_target():
    x = torch.rand(6, 1, 8, 8)
    for noisy, y, net in [(x, x*.5 + .25, nn.Conv2d(1, 1, 1)), (F.avg_pool2d(x, 2), x, nn.Upsample(scale_factor=2)),
                          (x, x, nn.Conv2d(1, 1, 1))]:
        expected = ['predicted'] if y is noisy else ['target', 'predicted']     # an autoencoder has no other target
        learn = Learner(net, valid_dl=(noisy, y), loss_fn=F.mse_loss, display=False, device='cpu')
        view = learn.results().show(2, at=[0, 1])
        html, drawn = view._repr_html_(), learn.predict(noisy).clamp(0, 1)
        assert re.findall('<small>([a-z]+)</small>', html) == expected*2
        assert [k for k, _ in view.captions[0]] == ['#', 'loss']
        inputs = [noisy, y, drawn] if 'target' in expected else [noisy, drawn]
        assert shades(html) == pytest.approx([255*o[i].mean().item() for i in (0, 1) for o in inputs], abs=1.)

def test_logits_of_pictures_are_compared_as_probabilities():
    "And pictures have no R²"
    x = torch.rand(6, 1, 8, 8)
    res = fitted(nn.Conv2d(1, 1, 1), x, x, F.binary_cross_entropy_with_logits).results()
    scores = res.report().scores
    assert 'r2' not in scores
    assert scores['mae'][0] == pytest.approx((res.pred.sigmoid() - x).abs().mean().item(), abs=1e-6)
    assert shades(res.show(1, at=[3])._repr_html_())[1] == pytest.approx(255*res.pred[3].sigmoid().mean().item(), abs=1)
