"""Real training programs in a small size, each as its authors write it and with `Learner`

A module has `learner(**kwargs)`, a `Learner` that trains in `N_EPOCHS` epochs; where more than `learn.model` counts,
`result(learn)`, the modules to compare; and unless a page of `nbs` has it, `plain()`, the loop by hand, which
returns what was trained (a module, or several) and what it told (dict: column of the history → values).
"""
import torch
from torch.utils.data import DataLoader, TensorDataset

def points(n, seed):
    "Three classes of points: (n, 5) float32, (n,) int64"
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)

def loaders(n):
    "Of `n` points for training, and of 20 for validation"
    train, valid = TensorDataset(*points(n, 1)), TensorDataset(*points(20, 2))
    return DataLoader(train, batch_size=8, shuffle=True), DataLoader(valid, batch_size=8)

def evaluated(model, dl, f):
    "What `f` returns of each batch, in evaluation mode"
    model.eval()
    with torch.no_grad(): return [f(batch) for batch in dl]

def mean(model, dl, f):
    "Of the sums over batches that `f` returns"
    return sum(evaluated(model, dl, f))/len(dl.dataset)

def loop(model, train_dl, opt, loss_of, sched=None, clip=None, after=dict, n_epochs=2):
    "The loop by hand of most programs, which yields (name, value); `after` returns those of an epoch by name"
    for epoch in range(n_epochs):
        model.train()
        for batch in train_dl:
            opt.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            if clip: torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            if sched: sched.step()
            yield 'train_loss', loss.item()
        yield from after().items()

def said(values):
    "dict: name → list of its values"
    res = {}
    for name, value in values: res.setdefault(name, []).append(value)
    return res
