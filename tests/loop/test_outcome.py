"How a fit ended: in trouble it names what is wrong and `learn.doctor()`; a healthy one is done"
import math, re

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import healthy_fits
from trainer_nb.all import Hook, Learner

pytestmark = pytest.mark.filterwarnings('ignore')

def ended(n_epochs=4, loss_fn=F.cross_entropy, lr=.1):
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > 0).long()
    learn = Learner(nn.Linear(4, 2), data, loss_fn=loss_fn, optim=torch.optim.SGD, lr=lr, display=False, seed=0)
    learn.fit(n_epochs)
    return learn

@pytest.mark.parametrize('kwargs, words', [
    (dict(lr=1e-12), 'not fallen'), (dict(loss_fn=F.nll_loss, lr=3.), 'without bound, to -'),
    (dict(loss_fn=lambda pred, y: F.mse_loss(pred[:, 0], 100.*y), lr=300.), 'nan since batch'),
], ids=['flat', 'unbounded', 'nan'])
def test_a_fit_that_ends_badly_names_the_doctor(kwargs, words):
    learn = ended(**kwargs)
    text = learn.history.outcome()
    assert text.startswith('4 epochs, but ') and words in text and 'learn.doctor()' in text
    if 'nan' not in words: assert learn.history.marked() is None

def test_a_healthy_fit_is_done():
    for learn in ended(), ended(1), ended(lr=1e-3): assert learn.history.outcome().startswith('done: ')
    learn.fit(3, lr=1e-12)      # flat: it has learned before
    assert learn.history.outcome().startswith('done: 3 epochs')

@pytest.mark.soak
def test_no_healthy_fit_is_in_trouble():
    for i in range(100):
        learn = healthy_fits.fit(i, Hook())
        assert not learn.history.trouble, learn.about

def test_nan_in_the_data_is_named_before_the_rate():
    "By the numbers of the sample and of the first batch that has it"
    x = torch.randn(500, 4)
    x[450] = math.inf
    learn = Learner(nn.Linear(4, 1), DataLoader(TensorDataset(x, x[:, :1]), 5), loss_fn=F.mse_loss, display=False)
    learn.fit(1)
    assert re.search('nan since batch 91 .*inputs of train_dl.* sample 450:', learn.history.outcome())
