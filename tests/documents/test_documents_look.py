"What four documents ask of pictures and pages: masks, a confusion by pixel, headline figures"
import re
from pathlib import Path

import torch, torch.nn.functional as F
from torch import nn

from common import read_cells
from trainer_nb.all import Learner

nbs = Path(__file__).parents[2]/'nbs'

def shown(page):
    "Text that the cells of a page printed"
    outputs = [o for _, found, _ in read_cells(nbs/page) for o in found]
    return ''.join(''.join(o['text']) for o in outputs if o.get('name') == 'stdout')


def test_a_cell_shows_the_pictures_with_most_of_its_pixels():
    g = torch.Generator().manual_seed(0)
    x, targ = torch.rand(6, 1, 9, 12, generator=g), torch.randint(3, (6, 9, 12), generator=g)
    learn = Learner(nn.Conv2d(1, 3, 3, padding=1), valid_dl=(x, targ), loss_fn=F.cross_entropy, display=False)
    res = learn.results(classes=['sky', 'cell', 'rod'])
    hits = ((res.pred.argmax(1) == 1) & (targ == 2)).flatten(1).sum(1)
    shown = res.confusion().samples(2, 1)
    assert [hits[int(o[0][1])] for o in shown.captions] == sorted(hits[hits > 0].tolist(), reverse=True)
    few = res.show(2)
    assert [*few.samples[0].over] == ['target', 'predicted']
    at = res.top_losses(1)[1].item()
    assert torch.equal(few.samples[0].over['target'], targ[at])
    assert torch.equal(few.samples[0].over['predicted'], res.pred[at].argmax(0))
    assert few._repr_html_().count('<img') == 6 and '■</span> rod' in few._repr_html_()
    assert 'rod' in repr(few) and 'tensor' not in repr(few)
    learn.results(keep=lambda p: p.mean((2, 3))).show()._repr_html_()      # only the target is left to draw


def test_binary_masks():
    x = torch.rand(5, 3, 9, 12, generator=torch.Generator().manual_seed(0))
    y = (x.mean(1, keepdim=True) > .5).float()
    learn = Learner(nn.Conv2d(3, 1, 1), valid_dl=(x, y), loss_fn=F.binary_cross_entropy_with_logits, display=False)
    res = learn.results()
    assert res.task() == 'classes' and int(res.confusion().counts.sum()) == y.numel()
    sample, at = res.show(1).samples[0].over, res.top_losses(1)[1].item()
    assert torch.equal(sample['target'], y[at].long()) and torch.equal(sample['predicted'], (res.pred[at] > 0).long())
    view = learn.show_batch(2, valid=True)
    assert [*view.samples[0].over] == ['y'] and view._repr_html_().count('<img') == 4

def test_a_picture_without_masks_is_drawn_alone():
    x = torch.rand(4, 1, 9, 12, generator=torch.Generator().manual_seed(0))
    learn = Learner(nn.Sequential(nn.Flatten(), nn.Linear(108, 4)), valid_dl=(x, torch.arange(4)), display=False)
    view = learn.show_batch(2, valid=True)
    assert not view.samples[0].over and view._repr_html_().count('<img') == 2

def test_headline_figures_stand_beside_ours():
    "Keras's accuracies of two optimizers, and a gain of 10 to 20 times from compiled steps"
    text = shown('howto/09_from_keras.ipynb')
    rows = re.findall(r'^(SGD|Adam) +(0\.\d{4}) +(0\.\d{4}) +(0\.\d{4})$', text, flags=re.M)
    figures = {name: [float(o) for o in values] for name, *values in rows}
    assert [figures[o][0] for o in ('SGD', 'Adam')] == [.9265, .9789]
    assert figures['SGD'][2] > .9 and figures['Adam'][2] > .95
    gains = re.findall(r'([\d.]+) ms a step, compiled +([\d.]+); pays', shown('tutorials/06_make_it_fast.ipynb'))
    assert len(gains) == 3 and all(float(raw) > float(compiled) for raw, compiled in gains)
