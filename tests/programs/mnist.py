"Digits: a convolutional network, Adadelta, a rate that falls each epoch (PyTorch's examples)"
import torch, torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Learner, LRScheduler, accuracy

N_EPOCHS = 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout1, self.dropout2 = nn.Dropout(.25), nn.Dropout(.5)
        self.fc1, self.fc2 = nn.Linear(8*2*2, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)

def digits(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=g)
    return TensorDataset(torch.rand(n, 1, 8, 8, generator=g) + y.view(-1, 1, 1, 1)/10, y)

def loaders():
    return DataLoader(digits(44, 1), batch_size=8, shuffle=True), DataLoader(digits(20, 2), batch_size=8)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = Net()
    train_dl, test_dl = loaders()
    opt = torch.optim.Adadelta(model.parameters(), lr=1.)
    sched = StepLR(opt, step_size=1, gamma=.7)
    train_losses, test_losses, accuracies = [], [], []
    for epoch in range(N_EPOCHS):
        model.train()
        for data, target in train_dl:
            opt.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            opt.step()
            train_losses.append(loss.item())
        model.eval()
        test_loss = correct = 0
        with torch.no_grad():
            for data, target in test_dl:
                output = model(data)
                test_loss += F.nll_loss(output, target, reduction='sum').item()
                correct += (output.argmax(1) == target).sum().item()
        test_losses.append(test_loss/len(test_dl.dataset))
        accuracies.append(correct/len(test_dl.dataset))
        sched.step()
    said = {'train_loss': train_losses, 'valid_loss': test_losses, 'valid_accuracy': accuracies}
    return model, said

# With a Learner

def learner(**kwargs):
    torch.manual_seed(0)
    sched = LRScheduler(lambda opt: StepLR(opt, step_size=1, gamma=.7), step='epoch')
    return Learner(Net(), *loaders(), loss_fn=F.nll_loss, optim=torch.optim.Adadelta, lr=1.,
                   metrics=[accuracy], hooks=[sched], **kwargs)
