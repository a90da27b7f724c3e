"Sequences backwards: teacher forcing by chance, padding, a loss by token (PyTorch's tutorials)"
import random

import torch, torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

from trainer_nb.all import GradClip, Learner

N_EPOCHS, N_WORDS, PAD, START = 2, 12, 0, 1

class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(N_WORDS, 8, padding_idx=PAD)
        self.encoder, self.decoder = nn.GRU(8, 10, batch_first=True), nn.GRUCell(8, 10)
        self.out = nn.Linear(10, N_WORDS)

    def forward(self, source, target, forcing):
        lengths = (source != PAD).sum(1)
        words = pack_padded_sequence(self.words(source), lengths, True, enforce_sorted=False)
        hidden = self.encoder(words)[1][0]
        word, logits = torch.full_like(source[:, 0], START), []
        for i in range(target.size(1)):
            hidden = self.decoder(self.words(word), hidden)
            logits.append(self.out(hidden))
            word = target[:, i] if forcing else logits[-1].argmax(-1)
        return torch.stack(logits, 1)

def pairs(n, seed):
    rand = random.Random(seed)
    lengths = [rand.randrange(2, 7) for _ in range(n)]
    words = [torch.tensor(rand.choices(range(2, N_WORDS), k=k)) for k in lengths]
    return [(o, o.flip(0)) for o in words]

def collate(samples): return tuple(pad_sequence(o, True, padding_value=PAD) for o in zip(*samples))

def loaders():
    return (DataLoader(pairs(44, 1), 8, shuffle=True, collate_fn=collate),
            DataLoader(pairs(20, 2), 8, collate_fn=collate))

def token_loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)

def adam(params): return torch.optim.Adam(params, lr=1e-2)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = Seq2Seq()
    train_dl, valid_dl = loaders()
    opt = adam(model.parameters())
    losses, valid_losses = [], []
    for epoch in range(N_EPOCHS):
        model.train()
        for source, target in train_dl:
            loss = token_loss(model(source, target, random.random() < .5), target)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.)
            opt.step()
            losses.append(loss.item())
        model.eval()
        total = n = 0
        with torch.no_grad():
            for source, target in valid_dl:
                tokens = (target != PAD).sum().item()
                total += tokens*token_loss(model(source, target, False), target).item()
                n += tokens
        valid_losses.append(total/n)
    return model, {'train_loss': losses, 'valid_loss': valid_losses}

# With a Learner

def step(batch, learn):
    source, target = batch
    logits = learn.model(source, target, learn.training and random.random() < .5)
    return {'loss': token_loss(logits, target), 'n': (target != PAD).sum()}

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(Seq2Seq(), *loaders(), train_step=step, optim=adam, hooks=[GradClip(1.)], **kwargs)
