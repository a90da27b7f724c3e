"Results of each task: what a picture shows, which figures a report gives, and which it refuses"
import base64, io, re

import numpy as np
import pytest
from PIL import Image
from trainer_nb.all import *

def learner(model, x, y, loss_fn, **kwargs):
    set_seed(0)
    learn = Learner(model, (x, y), (x, y), loss_fn=loss_fn, display=False, device='cpu', **kwargs)
    learn.fit(1)
    return learn

def dice_loss(pred, targ):
    pred = pred.sigmoid()
    return 1 - 2*(pred*targ).sum()/(pred + targ).sum()

@pytest.mark.parametrize('loss_fn', [dice_loss, F.binary_cross_entropy_with_logits, F.cross_entropy])
def test_a_report_of_masks_has_dice_and_iou(loss_fn):
    set_seed(0)
    x = torch.rand(12, 3, 16, 16)
    y = (x[:, :1] > .6).float() if loss_fn is not F.cross_entropy else (x[:, 0] > .6).long()
    learn = learner(nn.Conv2d(3, 2 if loss_fn is F.cross_entropy else 1, 1), x, y, loss_fn)
    report = learn.results().report()
    assert 'r2' not in repr(report) and 'pixels of 12 pictures' in report.title
    logits = learn.predict((x,))
    pred = (logits.argmax(1) if logits.size(1) > 1 else logits[:, 0] > 0).bool()
    targ = y.reshape(pred.shape).bool()
    both, either = (pred & targ).sum().item(), (pred | targ).sum().item()
    row = report.rows[1]
    assert row['iou'] == pytest.approx(both/max(either, 1))
    assert row['dice'] == pytest.approx(2*both/(pred.sum() + targ.sum()).item())

def test_pictures_of_0_and_1_that_a_distance_compares_are_a_regression():
    x = (torch.rand(8, 1, 8, 8) > .5).float()
    results = learner(nn.Conv2d(1, 1, 1), x, x, F.mse_loss).results()
    assert results.task() == 'regression'

def pictures(html):
    found = re.findall(r'data:image/(?:png|jpeg);base64,([^"]+)', html)
    return [np.array(Image.open(io.BytesIO(base64.b64decode(o)))) for o in found]

@pytest.mark.parametrize('kind', [list, tuple])
@pytest.mark.parametrize('n', [2, 3, 4])
def test_boxes_on_pictures_of_several_sizes(kind, n):
    "Also where there are as many pictures as channels"
    net = nn.Linear(2, 1)
    batch = (kind(torch.zeros(3, 130 + i, 140) for i in range(n)),
             kind({'boxes': torch.tensor([[20., 30., 60. + i, 90.]]), 'labels': torch.tensor([1])} for i in range(n)))
    learn = Learner(net, [batch], train_step=lambda b, learn: {'loss': net.weight.sum()}, display=False, device='cpu')
    html = learn.show_batch(classes=['none', 'cat'])._repr_html_()
    drawn = pictures(html)
    assert len(drawn) == n and html.count('cat') == n
    for i, o in enumerate(drawn):
        assert o.shape == (130 + i, 140, 3)
        rows, columns = o.any(2).any(1).nonzero()[0], o.any(2).any(0).nonzero()[0]
        assert [rows[0], rows[-1], columns[0], columns[-1]] == [30, 90, 20, 60 + i]

def test_pairs_of_sentences_and_sounds():
    net = nn.Linear(2, 1)
    def shown(x, **kwargs):
        learn = Learner(net, [(x, torch.tensor([0, 1, 1]))], display=False, device='cpu',
                        train_step=lambda b, learn: {'loss': net.weight.sum()})
        view = learn.show_batch(**kwargs)
        return repr(view), view._repr_html_()
    assert 'a | b' in shown([('a', 'b'), ('c', 'd'), ('e', 'f')])[0]
    text = shown((['a', 'c', 'e'], ['b', 'd', 'f']))[0]
    assert 'x.0' in text and 'x.1' in text
    html = shown(torch.randn(3, 800), rate=8000, n=2)[1]
    assert html.count('<audio controls') == html.count('0.1 s') == 2
    assert '<audio' not in shown(torch.randn(3, 800))[1]
