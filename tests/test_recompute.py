"`Recompute` and `Offload`: the gradients of plain training, bit for bit, with dropout, and nothing left behind"
import pytest, torch
from torch import nn

from common import make_learner, same, shuffled, weights
from trainer_nb.all import AMP, EMA, GradAccum, Offload, Recompute

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        def block(): return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(.5), nn.Linear(16, 8))
        self.first, self.blocks, self.head = nn.Linear(4, 8), nn.ModuleList(block() for _ in range(3)), nn.Linear(8, 3)
    def forward(self, x):
        x = self.first(x)
        for o in self.blocks: x = x + o(x)
        return self.head(x)

def trained(*hooks):
    torch.manual_seed(0)
    learn = make_learner(Net(), shuffled(), shuffled(seed=2), hooks=hooks)
    torch.manual_seed(1)
    learn.fit(3)
    return learn

@pytest.mark.parametrize('others', [[], [AMP], [EMA, lambda: GradAccum(2)]], ids=['plain', 'bf16', 'accumulation'])
@pytest.mark.parametrize('hook', [Recompute, Offload])
def test_the_same_gradients(hook, others):
    def more(): return [f() for f in others]
    plain, learn = trained(*more()), trained(hook('blocks.*'), *more())
    assert same(weights(plain.model), weights(learn.model)) and plain.history.steps == learn.history.steps
    assert not any('forward' in vars(m) for m in learn.model.modules())

def test_blocks_run_again_in_training_only():
    n = []
    learn = make_learner(Net(), shuffled(), shuffled(), hooks=[Recompute('blocks.1')])
    learn.model.blocks[1][0].register_forward_hook(lambda *_: n.append(learn.training))
    learn.model.blocks[0][0].register_forward_hook(lambda *_: n.append(None))
    learn.fit(1)
    assert (n.count(True), n.count(False), n.count(None)) == (10, 5, 10)
    before = weights(learn.model)
    learn.lr_find(n_steps=5)
    assert same(before, weights(learn.model)) and not any('forward' in vars(m) for m in learn.model.modules())

def test_after_an_error_nothing_is_wrapped():
    model = Net()
    model.head = nn.Linear(9, 3)
    learn = make_learner(model, shuffled(), hooks=[Recompute('blocks')])
    with pytest.raises(RuntimeError): learn.fit(1)
    assert not any('forward' in vars(m) for m in learn.model.modules())

def test_wrong_names_fail_at_once():
    with pytest.raises(ValueError, match=r"Recompute: 'blok.*' matches no module .*first, blocks, head"):
        make_learner(Net(), hooks=[Recompute('blok.*')]).fit(1)
    with pytest.raises(ValueError, match='by another hook, .*keep only one'):
        trained(Recompute('blocks'), Offload('blocks.1'))
    for wrong in (), (3,), ('',):
        with pytest.raises(TypeError, match='expected names'): Offload(*wrong)
