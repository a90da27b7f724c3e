"`Recompute` beside other hooks: the gradients of plain training, bit for bit, and nothing left behind"
from copy import deepcopy

import pytest, torch
from torch import nn

from common import batches, make_learner, same, shuffled, weights
from trainer_nb.all import AMP, EMA, GradAccum, LambdaHook, Offload, Recompute

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

@pytest.mark.parametrize('others', [[EMA, lambda: GradAccum(2)], [AMP]], ids=['accumulation', 'bf16'])
def test_the_same_gradients(others):
    def more(): return [f() for f in others]
    plain, learn = trained(*more()), trained(Recompute('blocks.*'), *more())
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

def test_wrong_names_fail_at_once():
    with pytest.raises(ValueError, match='by another hook, .*keep only one'):
        trained(Recompute('blocks'), Offload('blocks.1'))

NORMS = {'batch': nn.BatchNorm1d(8), 'cumulative': nn.BatchNorm1d(8, momentum=None), 'instance': nn.Sequential(
    nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten())}

@pytest.mark.parametrize('norm', NORMS.values(), ids=NORMS)
def test_running_statistics_count_a_batch_once(norm):
    def fit(*hooks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(deepcopy(norm), nn.Tanh()), nn.Linear(8, 3))
        learn = make_learner(model, batches(), batches(seed=2), hooks=hooks)
        learn.fit(2)
        return learn
    plain, learn = fit(), fit(Recompute('1'))
    assert same(weights(plain.model), weights(learn.model))
    assert plain.history.epochs['valid_loss'] == learn.history.epochs['valid_loss']

def test_a_copy_made_during_a_fit_has_its_own_weights():
    x, seen = torch.ones(2, 4), []
    def look(learn):
        if not seen: learn.config = deepcopy(learn.model).eval()
        seen.append(learn.config(x))
    learn = make_learner(Net(), batches(), hooks=[Recompute('blocks.*'), LambdaHook(before_step=look)])
    learn.fit(2)
    assert len(seen) == 10 and same(seen, seen[:1]*10) and not torch.equal(seen[0], learn.model.eval()(x))

def test_a_model_saved_or_copied_during_a_fit_can_be_used_and_fitted(tmp_path):
    found = []
    def keep(learn):
        if found: return
        torch.save(learn.model, tmp_path/'model.pt')
        found.extend([deepcopy(learn.model), torch.load(tmp_path/'model.pt', weights_only=False)])
    make_learner(Net(), batches(), hooks=[Recompute('blocks.*'), LambdaHook(before_step=keep)]).fit(1)
    for m in found:
        plain = Net()
        plain.load_state_dict(m.state_dict())
        learns = make_learner(m, batches(), hooks=[Recompute('blocks.*')]), make_learner(plain, batches())
        for o in learns:
            torch.manual_seed(0)
            o.fit(1)
        assert same(weights(m), weights(plain))
        with pytest.raises(ValueError, match='already has a forward'):
            make_learner(m, batches(), hooks=[Recompute('blocks.*'), Offload('blocks.*')]).fit(1)
