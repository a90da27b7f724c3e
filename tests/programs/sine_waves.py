"Waves go on: LBFGS, whose step evaluates the loss several times (PyTorch's examples)"
import torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import Learner

N_EPOCHS = 3

class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 6), nn.LSTMCell(6, 6), nn.Linear(6, 1)

    def forward(self, x):
        first = second = None
        outputs = []
        for now in x.split(1, dim=1):
            first = self.lstm1(now, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)

def waves():
    "(n, time), double"
    shift = torch.randint(-40, 40, (10, 1), generator=torch.Generator().manual_seed(1)).double()
    return torch.sin((torch.arange(12.).double() + shift)/2)

def lbfgs(params): return torch.optim.LBFGS(params, lr=.8, max_iter=4)

# The loop by hand

def plain():
    torch.manual_seed(0)
    data = waves()
    x, y, test_x, test_y = data[3:, :-1], data[3:, 1:], data[:3, :-1], data[:3, 1:]
    seq, criterion = Sequence().double(), nn.MSELoss()
    opt = lbfgs(seq.parameters())
    losses, test_losses = [], []
    for i in range(N_EPOCHS):
        seen = []
        def closure():
            opt.zero_grad()
            loss = criterion(seq(x), y)
            loss.backward()
            seen.append(loss.item())
            return loss
        opt.step(closure)
        losses.append(seen[0])
        with torch.no_grad(): test_losses.append(criterion(seq(test_x), test_y).item())
    return seq, {'train_loss': losses, 'valid_loss': test_losses}

# With a Learner

def learner(**kwargs):
    torch.manual_seed(0)
    data = waves()
    train, test = (data[3:, :-1], data[3:, 1:]), (data[:3, :-1], data[:3, 1:])
    return Learner(Sequence().double(), [train], [test], loss_fn=F.mse_loss, optim=lbfgs, **kwargs)
