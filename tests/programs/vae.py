"A variational autoencoder, whose loss is a sum (Kingma & Welling 2013; PyTorch's examples)"
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Learner

N_EPOCHS = 2

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.mu, self.logvar = nn.Linear(16, 12), nn.Linear(12, 3), nn.Linear(12, 3)
        self.decode = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.hidden(x))
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(.5*logvar)
        return self.decode(mu + torch.randn_like(std)*std), mu, logvar

def elbo(recon, x, mu, logvar):
    "Negative, summed over pixels and samples"
    bce = F.binary_cross_entropy(recon, x, reduction='sum')
    return bce - .5*torch.sum(1 + logvar - mu.pow(2) - logvar.exp())

def adam(params): return torch.optim.Adam(params, lr=1e-2)

def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(n, 1, 4, 4, generator=g), torch.zeros(n))

def loaders():
    return DataLoader(images(46, 1), batch_size=8, shuffle=True), DataLoader(images(20, 2), batch_size=8)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = VAE()
    train_dl, test_dl = loaders()
    opt = adam(model.parameters())
    losses, test_losses = [], []
    for epoch in range(N_EPOCHS):
        model.train()
        for data, _ in train_dl:
            data = data.flatten(1)
            opt.zero_grad()
            recon, mu, logvar = model(data)
            loss = elbo(recon, data, mu, logvar)
            loss.backward()
            opt.step()
            losses.append(loss.item()/len(data))
        model.eval()
        test_loss = 0
        with torch.no_grad():
            for data, _ in test_dl:
                recon, mu, logvar = model(data.flatten(1))
                test_loss += elbo(recon, data.flatten(1), mu, logvar).item()
        test_losses.append(test_loss/len(test_dl.dataset))
    return model, {'train_loss': losses, 'valid_loss': test_losses}

# With a Learner

def step(batch, learn):
    x = batch[0].flatten(1)
    recon, mu, logvar = learn.model(x)
    return {'loss': elbo(recon, x, mu, logvar), 'reduction': 'sum'}

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(VAE(), *loaders(), train_step=step, optim=adam, **kwargs)
