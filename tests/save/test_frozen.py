"Checkpoints without frozen weights: their size, what they restore, and what they refuse"
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

def test_another_frozen_rest_is_refused(tmp_path):
    make(Checkpoint(tmp_path, what='trainable')).fit(1)
    other = make(seed=1)
    before = {k: v.clone() for k, v in other.model.state_dict().items()}
    for load in other.load, other.load_best:
        with pytest.raises(ValueError, match='14 of the 14 weights that were frozen differ in this model, such as ids'):
            load(tmp_path)
    assert all(torch.equal(v, before[k]) for k, v in other.model.state_dict().items())
    with torch.no_grad(): (near := make()).model.body[3].bias[5] *= 1 + 2**-23     # a bit
    with pytest.raises(ValueError, match='1 of the 14 .*such as body.3.bias'): near.load(tmp_path)
    with torch.no_grad(): (swapped := make()).model.body[2].weight.copy_(swapped.model.body[2].weight.flip(0))
    with pytest.raises(ValueError, match='such as body.2.weight'): swapped.load(tmp_path)
    with pytest.raises(ValueError, match="expected 'all' or 'trainable'"): Checkpoint(tmp_path, what='adapter')

def test_a_weight_that_trained_and_was_frozen_later_is_refused(tmp_path):
    def freeze(learn):
        if learn.state.epoch == 1: learn.model.adapters[0].requires_grad_(False)
    make(LambdaHook(before_epoch=freeze), Checkpoint(tmp_path, what='trainable')).fit(2)
    with pytest.raises(ValueError, match='such as adapters.0.0.weight'): make().load(tmp_path)
