"`learn.doctor()` names planted bugs, and raises no false alarm; that it changes nothing, see show/test_lr_find.py"
import gc, random, re, time, weakref

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from doctor_cases import BUGS, HEALTHY, make, mlp, rows, two
from test_programs import NAMES, program
from trainer_nb.all import CancelStep, Freeze, LambdaHook, Learner

@pytest.fixture(autouse=True)
def patient(monkeypatch):
    "On a busy machine, too, all batches are read and all steps taken"
    for name in '_READ_S', '_TRAIN_S': monkeypatch.setattr(f'trainer_nb.look.doctor.{name}', 60)

@pytest.mark.parametrize('name', BUGS)
def test_bugs(name):
    make, wanted, _ = BUGS[name]
    res = make().doctor()
    assert wanted in res, res
    assert all('\n' not in str(o) and o.remedy for o in res.findings)      # a line each, with a remedy
    if wanted == 'step_fails': assert len(res.findings) == 1, 'what was not measured is no finding'

@pytest.mark.parametrize('name', HEALTHY)
def test_healthy(name):
    res = HEALTHY[name]().doctor()
    assert not res.findings and ' 8 steps' in res.title(), res
    notes = res.notes()         # what is frozen by hand is told, and is no mistake
    assert bool(notes) == (name in ('fine_tuning', 'adapter'))
    assert all(o in str(res) and o in res._repr_html_() and o.startswith('frozen: ') for o in notes)

SOME = 'dcgan', 'distillation', 'nano_gpt'

@pytest.mark.parametrize('name', [pytest.param(o, marks=[pytest.mark.soak]*(o not in SOME)) for o in NAMES])
def test_real_programs(name):
    random.seed(0)
    res = program(name).learner(display=False).doctor()
    assert not res.findings and ' 8 steps' in res.title(), res

def test_errors():
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    res = Learner(nn.Linear(4, 2), (x, y), loss_fn=F.cross_entropy, display=False).doctor()
    assert 'step_fails' in res and 'out of bounds' in str(res)
    res = make(eval_step=lambda batch, learn: {'pred': learn.missing}).doctor()
    assert [o.name for o in res.findings] == ['step_fails'] and 'missing' in str(res), res
    for learn, words in [
            (Learner(nn.Linear(4, 3), iter([(x, y)]), loss_fn=F.cross_entropy, display=False), 'read only once'),
            (Learner(nn.Linear(4, 3), loss_fn=F.cross_entropy, display=False), 'no train_dl'),
            (make(mlp().requires_grad_(False)), 'no trainable parameters'),
            (make(hooks=[Freeze('0', '2')]), 'leaves nothing to train')]:
        with pytest.raises(ValueError, match=words): learn.doctor()

def slow(x):
    time.sleep(.1)
    return x

class SlowRows(TensorDataset):
    def __getitem__(self, i): return slow(super().__getitem__(i))

@pytest.mark.filterwarnings('ignore:bs=32')
def test_what_is_slow_or_skipped(monkeypatch):
    "It is looked at for a few seconds; of skipped steps, no loss is seen"
    def skip(learn): raise CancelStep
    res = make(hooks=[LambdaHook(before_step=skip)]).doctor()
    assert not res.findings and 'and 0 on one batch' in res.title(), res
    for name in '_READ_S', '_TRAIN_S': monkeypatch.setattr(f'trainer_nb.look.doctor.{name}', .15)
    res = make(two(slow), train=DataLoader(SlowRows(*rows(0, 64)), 4)).doctor()
    n_batches, _, n_steps, n_again = map(int, re.findall(r'\d+', res.title()))
    assert not res.findings and n_batches < 4 and n_steps < 4 and n_again < 4, res

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
