"Few labels and many samples without: two loaders, two augmentations, a threshold (Sohn et al. 2020)"
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from programs import points
from trainer_nb.all import Learner, Loaders

N_EPOCHS = 2

def network(): return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

def loader(bs, *tensors):
    return DataLoader(TensorDataset(*tensors), batch_size=bs, shuffle=True, drop_last=True)

def labelled(): return loader(4, *points(12, 1))

def unlabelled(): return loader(8, points(50, 2)[0])

def weak(x): return x + .02*torch.randn_like(x)

def strong(x): return x*(torch.rand_like(x) < .8) + .1*torch.randn_like(x)

def losses_of(model, x, y, u):
    "Of the labelled ones, and of the others where the model is sure"
    logits = model(torch.cat([weak(x), weak(u), strong(u)]))
    known, guess, logits_u = logits.split([len(x), len(u), len(u)])
    sure, pseudo = guess.detach().softmax(1).max(1)
    loss_u = F.cross_entropy(logits_u, pseudo, reduction='none')*(sure > .5)
    return F.cross_entropy(known, y), loss_u.mean()

def step(batch, learn):
    loss_x, loss_u = losses_of(learn.model, *batch['labelled'], *batch['unlabelled'])
    learn.record('loss_u', loss_u.detach())
    return {'loss': loss_x + loss_u}

def sgd(params): return torch.optim.SGD(params, lr=.1, momentum=.9, nesterov=True)

def learner(**kwargs):
    torch.manual_seed(0)
    model = network()
    dl = Loaders({'labelled': labelled(), 'unlabelled': unlabelled()}, 'longest')
    return Learner(model, dl, train_step=step, optim=sgd, **kwargs)
