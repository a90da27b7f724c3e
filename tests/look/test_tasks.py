"Results of each task: what a picture shows, which figures a report gives, and which it refuses"
import base64, io, re, sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from trainer_nb.all import *
from trainer_nb.draw import COLORS

def learner(model, x, y, loss_fn, **kwargs):
    set_seed(0)
    learn = Learner(model, (x, y), (x, y), loss_fn=loss_fn, display=False, device='cpu', **kwargs)
    learn.fit(1)
    return learn

def dice_loss(pred, targ):
    pred = pred.sigmoid()
    return 1 - 2*(pred*targ).sum()/(pred + targ).sum()

@pytest.mark.parametrize('loss_fn, n', [(dice_loss, 1), (F.cross_entropy, 2)])
def test_a_report_of_masks_has_dice_and_iou(loss_fn, n):
    set_seed(0)
    x = torch.rand(12, 3, 16, 16)
    y = (x[:, :1] > .6).float() if n == 1 else (x[:, 0] > .6).long()
    learn = learner(nn.Conv2d(3, n, 1), x, y, loss_fn)
    report, logits = learn.results().report(), learn.predict((x,))
    pred, targ = logits.argmax(1).bool() if n > 1 else logits[:, 0] > 0, y.reshape(12, 16, 16).bool()
    both, either = (pred & targ).sum().item(), (pred | targ).sum().item()
    assert 'r2' not in repr(report) and 'pixels of 12 pictures' in report.title()
    assert report.scores['iou'][1] == pytest.approx(both/max(either, 1))
    assert report.scores['dice'][1] == pytest.approx(2*both/(pred.sum() + targ.sum()).item())

def test_pictures_of_0_and_1_that_a_distance_compares_are_a_regression():
    x = (torch.rand(8, 1, 8, 8) > .5).float()
    results = learner(nn.Conv2d(1, 1, 1), x, x, F.mse_loss).results()
    assert results.task() == 'regression'

def pictures(html):
    found = re.findall(r'data:image/(?:png|jpeg);base64,([^"]+)', html)
    return [np.array(Image.open(io.BytesIO(base64.b64decode(o)))) for o in found]

@pytest.fixture
def drawn(monkeypatch):
    "What torchvision is asked to draw: (shape, boxes, names, color)"
    calls, utils = [], ModuleType('torchvision.utils')
    def draw(image, boxes, names, color, **kwargs):
        calls.append((image.shape, boxes, names, color))
        return image
    utils.draw_bounding_boxes = draw
    monkeypatch.setitem(sys.modules, 'torchvision', ModuleType('torchvision'))
    monkeypatch.setitem(sys.modules, 'torchvision.utils', utils)
    return calls

@pytest.mark.parametrize('kind, n', [(list, 2), (tuple, 3), (list, 4)])
def test_boxes_on_pictures_of_several_sizes(kind, n, drawn):
    "Also where there are as many pictures as channels"
    net = nn.Linear(2, 1)
    batch = (kind(torch.zeros(3, 130 + i, 140) for i in range(n)),
             kind({'boxes': torch.tensor([[20., 30., 60. + i, 90.]]), 'labels': torch.tensor([1])} for i in range(n)))
    learn = Learner(net, [batch], train_step=lambda b, learn: {'loss': net.weight.sum()}, display=False, device='cpu')
    html = learn.show_batch(classes=['none', 'cat'])._repr_html_()
    assert len(pictures(html)) == len(drawn) == n and html.count('>cat<') == n
    for i, (shape, boxes, names, color) in enumerate(drawn):
        times = 512/140
        assert shape == (3, int((130 + i)*times), 512) and (names, color) == (['cat'], COLORS[2])
        assert boxes.tolist()[0] == pytest.approx([20*times, 30*times, (60 + i)*times, 90*times])


# Boxes

class Detector(nn.Module):
    "Of torchvision's interface: it predicts what `pred` has for the number in the corner of a picture"
    def __init__(self, pred):
        super().__init__()
        self.pred, self.weight = pred, nn.Parameter(torch.ones(()))
    def forward(self, images, targets=None):
        if self.training: return {'loss_box': self.weight**2, 'loss_class': self.weight**2}
        return [self.pred[int(o[0, 0, 0])] for o in images]

def detector(bs=1, n=6):
    targs = [{'boxes': torch.tensor([[5., 6., 20. + i, 30.]]), 'labels': torch.tensor([1 + i % 2])} for i in range(n)]
    preds = [{**o, 'boxes': o['boxes'] + 1, 'scores': torch.tensor([.8])} for o in targs]
    images = [torch.full((3, 50 + i % 2, 60), float(i)) for i in range(n)]
    def train_step(batch, learn):
        losses = learn.model(*batch)
        return {'loss': sum(losses.values()), **losses}
    def eval_step(batch, learn): return {'pred': learn.model(batch[0]), 'targ': batch[1]}
    dl = torch.utils.data.DataLoader([*zip(images, targs)], bs, collate_fn=lambda o: tuple(zip(*o)))
    learn = Learner(Detector(preds), dl, dl, train_step=train_step, eval_step=eval_step, display=False, device='cpu')
    learn.fit(1)
    return learn

@pytest.mark.parametrize('bs', [1, 3])
def test_boxes_of_a_detector_are_drawn(bs, drawn, monkeypatch):
    "Also for as many pictures in a batch as channels; a step without a loss leaves the samples in their order"
    res = detector(bs).results(classes=['', 'cat', 'dog'], min_score=.4)
    view = res.show(5)
    html = view._repr_html_()
    assert res.top_losses(6)[1].tolist() == [*range(6)]
    assert len(pictures(html)) == 5 and 'predicted, with a score of at least 0.4' in html
    assert [o[2:] for o in drawn[:2]] == [(['cat'], COLORS[2]), (['cat 0.80'], COLORS[1])]
    monkeypatch.setitem(sys.modules, 'torchvision.utils', None)
    plain = view._repr_html_()
    assert 'torchvision, which draws boxes, cannot be imported' in plain and '>cat 0.80<' in plain
    assert [dict(o) for o in view.captions[:2]] == [
        {'#': str(i), 'target': k, 'predicted': f'{k} 0.80'} for i, k in enumerate(['cat', 'dog'])]
    for f in res.report, res.confusion, res.task:
        with pytest.raises(ValueError, match='expected tensors'): f()

def test_boxes_in_another_format_are_not_drawn_in_the_wrong_place():
    res = detector().results()
    for o in res.targ: o['boxes'] = o['boxes']/60
    assert 'not x1, y1, x2, y2 in pixels' in res.show(2)._repr_html_()


# Pictures from pictures

def shades(html): return [o.astype(float).mean() for o in pictures(html)]

def test_pictures_that_a_model_returns_are_drawn_in_the_range_of_the_target():
    set_seed(0)
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
    "and pictures have no R²"
    set_seed(0)
    x = torch.rand(6, 1, 8, 8)
    res = learner(nn.Conv2d(1, 1, 1), x, x, F.binary_cross_entropy_with_logits).results()
    report = res.report()
    assert 'r2' not in report.scores
    assert report.scores['mae'][0] == pytest.approx((res.pred.sigmoid() - x).abs().mean().item(), abs=1e-6)
    assert shades(res.show(1, at=[3])._repr_html_())[1] == pytest.approx(255*res.pred[3].sigmoid().mean().item(), abs=1)
    target = learner(nn.Conv2d(1, 1, 1), x, 4*x, F.mse_loss).show_batch(2)._repr_html_()
    assert len(pictures(target)) == 4 and 'tensor (' not in target
