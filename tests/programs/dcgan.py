"Images from noise: two networks, two optimizers (Radford et al. 2015; PyTorch's examples)"
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Learner

N_EPOCHS = 2

def generator():
    return nn.Sequential(nn.ConvTranspose2d(6, 8, 4, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
                         nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())

def discriminator():
    return nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1, bias=False), nn.LeakyReLU(.2, inplace=True),
                         nn.Conv2d(4, 8, 2, 2, bias=False), nn.BatchNorm2d(8),
                         nn.LeakyReLU(.2, inplace=True), nn.Conv2d(8, 1, 2, bias=False), nn.Flatten(0))

def init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)): nn.init.normal_(m.weight, 0., .02)
    elif isinstance(m, nn.BatchNorm2d): nn.init.normal_(m.weight, 1., .02)

def networks():
    return nn.ModuleDict({'d': discriminator(), 'g': generator()}).apply(init)

def loader():
    images = torch.rand(44, 1, 8, 8, generator=torch.Generator().manual_seed(1))*2 - 1
    return DataLoader(TensorDataset(images), batch_size=8, shuffle=True)

def adam(params): return torch.optim.Adam(params, lr=2e-3, betas=(.5, .999))

def step(batch, learn):
    real, net_d, net_g = batch[0], learn.model['d'], learn.model['g']
    ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
    on_real = F.binary_cross_entropy_with_logits(net_d(real), ones)
    fake = net_g(torch.randn(len(real), 6, 1, 1))
    yield 'd', on_real + F.binary_cross_entropy_with_logits(net_d(fake.detach()), zeros)
    yield 'g', F.binary_cross_entropy_with_logits(net_d(fake), ones)

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(networks(), loader(), train_step=step, optim={'d': adam, 'g': adam}, **kwargs)
