"`learn.doctor()` names planted bugs, raises no false alarm, and changes nothing"
import gc, random, weakref

import pytest, torch, torch.nn.functional as F
from torch import nn

from doctor_cases import BUGS, HEALTHY, make, mlp
from test_programs import NAMES, program
from trainer_nb.all import Learner
from trainer_nb.look.doctor import CHECKS

@pytest.mark.parametrize('name', BUGS)
def test_bugs(name):
    make, wanted, _ = BUGS[name]
    res = make().doctor()
    assert wanted <= {o.name for o in res.findings}, res
    assert all('\n' not in str(o) and o.remedy for o in res.findings)      # a line each, with a remedy

@pytest.mark.parametrize('name', HEALTHY)
def test_healthy(name):
    res = HEALTHY[name]().doctor()
    assert not res.findings and len(res.checked) > 10, res

@pytest.mark.soak
@pytest.mark.parametrize('name', NAMES)
def test_real_programs(name):
    random.seed(0)
    res = program(name).learner(display=False).doctor()
    assert not res.findings and len(res.checked) > 5, res

def test_each_check_has_a_bug_that_it_names():
    assert CHECKS.keys() == {o for _, names, _ in BUGS.values() for o in names}

@pytest.mark.parametrize('name', ['accumulation_and_bf16', 'stream'])
def test_a_fit_after_a_look_is_the_fit_without(name):
    "What a look leaves as it is, tests/show/test_lr_find.py compares"
    histories = []
    for has_looked in False, True:
        torch.manual_seed(0)
        learn = HEALTHY[name]()
        torch.manual_seed(3)
        if has_looked: learn.doctor()
        histories.append(learn.fit(2).steps['train_loss'])
    assert histories[0] == histories[1]

def test_what_is_frozen_by_hand_is_told_and_is_no_mistake():
    res = HEALTHY['fine_tuning']().doctor()
    assert not res.findings and len(res.notes) == 1 and res.notes[0] in str(res) and res.notes[0] in res._repr_html_()
    assert res.notes[0].startswith('frozen: 0.weight, 0.bias, 4,160 of 4,810 numbers')
    for name in 'frozen_by_a_hook', 'classifier': assert not HEALTHY[name]().doctor().notes

def test_errors():
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    res = Learner(torch.nn.Linear(4, 2), (x, y), loss_fn=F.cross_entropy, display=False).doctor()
    assert 'step_fails' in res and 'out of bounds' in str(res)
    with pytest.raises(ValueError, match='read only once'):
        Learner(torch.nn.Linear(4, 3), iter([(x, y)]), loss_fn=F.cross_entropy, display=False).doctor()
    with pytest.raises(ValueError, match='there is no train_dl'):
        Learner(torch.nn.Linear(4, 3), loss_fn=F.cross_entropy, display=False).doctor()
    with pytest.raises(ValueError, match='no trainable parameters'): make(mlp().requires_grad_(False)).doctor()


# Nothing is kept

def test_no_tool_keeps_the_model_or_a_graph():
    class Pred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()
        def forward(self, x):
            res = self.layers(x)
            refs.append(weakref.ref(res))
            return res
    for tool in 'doctor', 'show_batch', 'summary', 'results', 'lr_find', 'find_batch_size':
        refs, learn = [], make(Pred)
        res = getattr(learn, tool)(**{'most': 64} if tool == 'find_batch_size' else {})
        refs.append(weakref.ref(learn.model))
        if tool == 'results': res = None        # it has the learner's predictions
        del learn
        gc.collect()
        assert not [o for o in refs if o() is not None], tool
