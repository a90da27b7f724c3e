"Checkpoints without frozen weights: their size, and what they restore"
import pytest
from trainer_nb.all import *

class Adapted(nn.Module):
    "A frozen body with tied weights, of which low-rank adapters train"
    def __init__(self, seed=0, n=1024):
        super().__init__()
        torch.manual_seed(seed)
        self.ids = nn.Embedding(n, n)
        self.body, self.norm = nn.Sequential(*(nn.Linear(n, n) for _ in range(6))), nn.BatchNorm1d(n, affine=False)
        self.out = nn.Linear(n, n, bias=False)
        self.out.weight = self.ids.weight
        self.requires_grad_(False)
        torch.manual_seed(seed)
        adapters = (nn.Sequential(nn.Linear(n, 1), nn.Dropout(.1), nn.Linear(1, n)) for _ in range(6))
        self.adapters = nn.ModuleList(adapters)

    def forward(self, x):
        x = self.ids(x)
        for layer, adapter in zip(self.body, self.adapters): x = layer(x).tanh() + adapter(x)
        return self.out(self.norm(x))

def make(*hooks, seed=0):
    g = torch.Generator().manual_seed(1)
    x, y = torch.randint(1024, (2, 96), generator=g)
    return Learner(Adapted(seed), (x, y), (x, y), bs=32, loss_fn=F.cross_entropy, lr=.01, hooks=hooks, seed=2,
                   display=False, device='cpu')

def size(folder): return max(o.stat().st_size for o in folder.glob('*.pt'))

def test_only_what_trains_is_saved_and_resumes_bit_for_bit(tmp_path):
    whole = make(Checkpoint(tmp_path/'all'))
    whole.fit(4)
    make(Checkpoint(tmp_path/'some', every=4, what='trainable')).fit(2)
    assert size(tmp_path/'some') < .02*size(tmp_path/'all')
    again = make(Checkpoint(tmp_path/'some', what='trainable'))
    again.fit(4, resume=True)
    assert again.history.steps == whole.history.steps
    a, b = again.model.state_dict(), whole.model.state_dict()
    assert all(map(torch.equal, a.values(), b.values())) and a.keys() == b.keys()
    assert again.model.out.weight is again.model.ids.weight
    for load in Learner.load, Learner.load_best:
        load(loaded := make(), tmp_path/'some')
        assert torch.equal(loaded(torch.arange(9)), whole(torch.arange(9)))

def test_a_weight_that_trained_and_was_frozen_later_is_not_left_out(tmp_path):
    def freeze(learn):
        if learn.state.epoch == 1: learn.model.adapters[0].requires_grad_(False)
    learn = make(LambdaHook(before_epoch=freeze), Checkpoint(tmp_path, what='trainable'))
    learn.fit(2)
    make().load_best(tmp_path)
    (other := make()).load(tmp_path)
    a, b = other.model.state_dict(), learn.model.state_dict()
    assert all(map(torch.equal, a.values(), b.values())) and size(tmp_path) < 1e6
    with pytest.raises(ValueError, match="expected 'all' or 'trainable'"): Checkpoint(tmp_path, what='adapter')
