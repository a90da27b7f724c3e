"Folds are scikit-learn's, by their definition"
from collections import Counter

import pytest, torch
from torch.utils.data import Subset, TensorDataset

from trainer_nb.all import folds

def test_folds_are_even_and_follow_from_the_seed():
    "nbs/data/05_split holds that each sample is validated once, and that groups stay together"
    assert [len(valid) for _, valid in folds(torch.arange(10), 3)] in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    y = torch.tensor([0]*17 + [1]*8 + [2]*5)[torch.randperm(30, generator=torch.Generator().manual_seed(3))]
    for _, valid in folds((torch.arange(30), y), 4, stratify=True):
        counts = Counter(valid[1].tolist())
        for c, n in (0, 17), (1, 8), (2, 5): assert counts[c] in (n//4, -(-n//4))
        assert len(valid[1]) in (7, 8)
    with pytest.warns(UserWarning, match='a class has 5 samples for 6 folds'): folds((y, y), 6, stratify=True)
    groups = ['large']*20 + [f'g{i % 7}' for i in range(40)]
    assert {'large'} in [{groups[i] for i in valid} for _, valid in folds([*range(60)], 4, groups=groups)]
    def first(**kwargs): return next(iter(folds(torch.arange(20), **kwargs)))[1].tolist()
    before = torch.get_rng_state()
    assert first() == first(seed=0) != first(seed=1) and torch.equal(before, torch.get_rng_state())
    train, valid = next(folds(TensorDataset(y), 4))
    assert isinstance(train, Subset) and len(valid) == 8
    train, valid = next(folds((y, y.numpy()), 4))
    assert valid[0].tolist() == valid[1].tolist()
