"""Real training programs in a small size, each as its authors write it and with `Learner`

A module has `learner(**kwargs)`, a `Learner` that trains in `N_EPOCHS` epochs; where more than `learn.model` counts,
`result(learn)`, the modules to compare; and unless a page of `nbs/examples` has it, `plain()`, the loop by hand, which
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
