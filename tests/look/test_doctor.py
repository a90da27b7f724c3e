"`learn.doctor()` names planted bugs, raises no false alarm, and changes nothing"
import gc, random, re, time, weakref

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from doctor_cases import BUGS, HEALTHY, make, mlp, rows, two
from test_programs import NAMES, program
from trainer_nb.all import CancelStep, Freeze, Hook, Learner
from trainer_nb.look.doctor import CHECKS

@pytest.fixture(autouse=True)
def patient(monkeypatch):
    "On a busy machine, too, all batches are read and all steps taken"
    for name in '_READ_S', '_TRAIN_S': monkeypatch.setattr(f'trainer_nb.look.doctor.{name}', 60)

@pytest.mark.parametrize('name', BUGS)
def test_bugs(name):
    make, wanted, _ = BUGS[name]
    res = make().doctor()
    assert wanted <= {o.name for o in res.findings}, res
    assert all('\n' not in str(o) and o.remedy for o in res.findings)      # a line each, with a remedy
    if wanted == {'step_fails'}: assert len(res.findings) == 1, 'what was not measured is no finding'

@pytest.mark.parametrize('name', HEALTHY)
def test_healthy(name):
    res = HEALTHY[name]().doctor()
    assert not res.findings and ' 8 steps' in res.title(), res

@pytest.mark.soak
@pytest.mark.parametrize('name', NAMES)
def test_real_programs(name):
    random.seed(0)
    res = program(name).learner(display=False).doctor()
    assert not res.findings and ' 8 steps' in res.title(), res

def test_each_check_has_a_bug_that_it_names():
    assert {f.__name__[1:] for f in CHECKS} == {o for _, names, _ in BUGS.values() for o in names}

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
    assert not res.findings and res.notes()[0] in str(res) and res.notes()[0] in res._repr_html_()
    assert res.notes()[0].startswith('frozen: 0.weight, 0.bias, 4,160 of 4,810 numbers')
    for name in 'frozen_by_a_hook', 'classifier': assert not HEALTHY[name]().doctor().notes()

def test_errors():
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    res = Learner(torch.nn.Linear(4, 2), (x, y), loss_fn=F.cross_entropy, display=False).doctor()
    assert 'step_fails' in res and 'out of bounds' in str(res)
    with pytest.raises(ValueError, match='read only once'):
        Learner(torch.nn.Linear(4, 3), iter([(x, y)]), loss_fn=F.cross_entropy, display=False).doctor()
    with pytest.raises(ValueError, match='there is no train_dl'):
        Learner(torch.nn.Linear(4, 3), loss_fn=F.cross_entropy, display=False).doctor()
    with pytest.raises(ValueError, match='no trainable parameters'): make(mlp().requires_grad_(False)).doctor()
    with pytest.raises(ValueError, match='leaves nothing to train'): make(hooks=[Freeze('0', '2')]).doctor()
    with pytest.raises(ValueError, match='not parameters of the model'):
        make(optim=torch.optim.Adam(mlp().parameters()), lr=None).doctor()

class Skipping(Hook):
    def before_step(self, learn): raise CancelStep

def slow(x):
    time.sleep(.1)
    return x

class SlowRows(TensorDataset):
    def __getitem__(self, i): return slow(super().__getitem__(i))

@pytest.mark.filterwarnings('ignore:bs=32')
def test_what_is_slow_is_looked_at_for_a_few_seconds(monkeypatch):
    for name in '_READ_S', '_TRAIN_S': monkeypatch.setattr(f'trainer_nb.look.doctor.{name}', .15)
    res = make(two(slow), train=DataLoader(SlowRows(*rows(0, 64)), 4)).doctor()
    n_batches, _, n_steps, n_again = map(int, re.findall(r'\d+', res.title()))
    assert not res.findings and n_batches < 4 and n_steps < 4 and n_again < 4, res

def test_steps_that_are_skipped():
    res = make(hooks=[Skipping()]).doctor()
    assert not res.findings and 'and 0 on one batch' in res.title(), res       # no loss was seen

def test_an_error_in_validation_is_told():
    res = make(eval_step=lambda batch, learn: {'pred': learn.missing}).doctor()
    assert [o.name for o in res.findings] == ['step_fails'] and 'missing' in str(res), res

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
