"A language model: text in columns (time first), a hidden state that goes on (PyTorch's examples)"
import torch, torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trainer_nb.all import GradClip, Hook, Learner, LRScheduler

N_EPOCHS, N_WORDS, BPTT = 4, 11, 5

class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(.2), nn.Embedding(N_WORDS, 8)
        self.rnn, self.decoder = nn.LSTM(8, 8, 2, dropout=.2), nn.Linear(8, N_WORDS)

    def forward(self, words, hidden):       # words: (time, columns)
        out, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return F.log_softmax(self.decoder(self.drop(out)).flatten(0, 1), dim=1), hidden

    def init_hidden(self, n): return torch.zeros(2, n, 8), torch.zeros(2, n, 8)

def text(n, seed, columns):
    "Words in columns: (time, columns)"
    words = torch.randint(N_WORDS, (n,), generator=torch.Generator().manual_seed(seed))
    return words[:n // columns*columns].view(columns, -1).t().contiguous()

def chunks(source):
    "Pairs (words, next words, flat), as they follow one another"
    starts = range(0, len(source) - 1, BPTT)
    return [(source[i:-1][:BPTT], source[i + 1:][:BPTT].flatten()) for i in starts]

def repackaged(hidden): return tuple(o.detach() for o in hidden)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model, lr = RNNModel(), 20.
    train, valid = chunks(text(130, 1, 4)), chunks(text(60, 2, 3))
    told = {'train_loss': [], 'valid_loss': [], 'lr': []}
    for epoch in range(N_EPOCHS):
        model.train()
        hidden = model.init_hidden(4)
        for data, targets in train:
            hidden = repackaged(hidden)
            model.zero_grad()
            output, hidden = model(data, hidden)
            loss = F.nll_loss(output, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), .25)
            with torch.no_grad():
                for p in model.parameters(): p.add_(p.grad, alpha=-lr)
            told['train_loss'].append(loss.item())
            told['lr'].append(lr)
        model.eval()
        hidden, total = model.init_hidden(3), 0.
        with torch.no_grad():
            for data, targets in valid:
                output, hidden = model(data, hidden)
                total += len(data)*F.nll_loss(output, targets).item()
        told['valid_loss'].append(total/sum(len(data) for data, _ in valid))
        if told['valid_loss'][-1] > min(told['valid_loss']): lr /= 4
    return model, told

# With a Learner

class Carry(Hook):
    "Takes the hidden state from batch to batch, in a search of the learning rate, too"
    in_dry_run = True
    def before_epoch(self, learn): self.hidden = learn.model.init_hidden(4)
    def before_valid(self, learn): self.hidden = learn.model.init_hidden(3)
    def state_dict(self): return {'hidden': self.hidden}
    def load_state_dict(self, state): self.hidden = tuple(state['hidden'])

def step(batch, learn):
    data, targets = batch
    carry = learn.get_hook(Carry)
    output, hidden = learn.model(data, carry.hidden)
    carry.hidden = repackaged(hidden)
    return {'loss': F.nll_loss(output, targets), 'n': len(targets)}

def learner(**kwargs):
    torch.manual_seed(0)
    def plateau(opt): return ReduceLROnPlateau(opt, factor=.25, patience=0, threshold=0.)
    hooks = [Carry(), GradClip(.25), LRScheduler(plateau, step='metric')]
    return Learner(RNNModel(), chunks(text(130, 1, 4)), chunks(text(60, 2, 3)), train_step=step,
                   optim=lambda p: torch.optim.SGD(p, lr=20.), hooks=hooks, **kwargs)
