"`diff` names the first batch and part in which two programs differ: planted differences, and none where there are none"
import random
from functools import partial

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import same, stop_when, weights
from trainer_nb.all import (
    AMP, EMA, Accelerate, Compile, Fingerprint, Freeze, GradAccum, GradClip, Hook, LambdaHook, Learner, NaNGuard,
    WarmupCosine, diff
)

class Net(nn.Module):
    def __init__(self, act=nn.ReLU, p=.2, tied=False, functional=F.relu):
        super().__init__()
        self.conv, self.bn, self.act, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), act(), nn.Dropout(p)
        self.pool, self.mid, self.mid2 = nn.AdaptiveAvgPool2d(2), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head, self.functional = nn.Linear(16, 3), functional
        if tied: self.mid2.weight = self.mid.weight
    def forward(self, x):
        x = self.drop(self.act(self.bn(self.conv(x))))
        x = self.mid(self.pool(x).flatten(1))
        return self.head(self.mid2(self.functional(x)))

def optim(cls=torch.optim.AdamW, **kwargs): return lambda model: cls(model.parameters(), **{'lr': 1e-2, **kwargs})

def make(model=Net, change=lambda x, y: (x, y), order=1, bs=4, drop_last=False, prepare=None, optim=optim(),
         hooks=lambda: [], **kwargs):
    torch.manual_seed(0)
    x, y = torch.randn(32, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3
    ds, net = TensorDataset(*change(x, y)), model()
    dl = DataLoader(ds, bs, shuffle=True, generator=torch.Generator().manual_seed(order), drop_last=drop_last)
    learn = Learner(net, dl, DataLoader(ds, 16), optim=optim(net), hooks=hooks(), display=False,
                    **{'loss_fn': F.cross_entropy, 'seed': 0, **kwargs})
    if prepare is not None: prepare(learn)
    return learn

def in_training(f, at=None):
    "An event of a hook, in training, of all batches or of one"
    def called(learn):
        if learn.training and at in (None, learn.state.batch_idx): f(learn)
    return called

def hooks(*makers): return {'hooks': lambda: [f() for f in makers]}
def named(name, **events): return partial(LambdaHook, name=name, **events)

in_place = named('InPlace', before_step=in_training(lambda learn: learn.batch[0].mul_(1.01), at=2))
adds = named('Adds', after_backward=lambda learn: learn.model.head.weight.grad.add_(.01))
scales = named('Scales', after_backward=lambda learn: learn.model.head.weight.grad.mul_(2.))

def relabelled(x, y): return x, torch.where(torch.arange(32) == 5, 0, y)
def summed(pred, targ): return F.cross_entropy(pred, targ, reduction='sum')

SGD = torch.optim.SGD
order = DataLoader(range(32), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
FIRST = next(i for i, o in enumerate(order) if 5 in o)      # the batch with sample 5

# what b does otherwise, in which batch of epoch 0, and in which part (its beginning) it shows, what the answer must
# contain besides, and what a does
QUICK = [
    ({'model': partial(Net, p=.3)}, 0, 'output of drop', 'Dropout(p=0.3'),
    ({'change': relabelled}, FIRST, 'batch[1]', ''),
    ({'optim': optim(eps=1e-6)}, 0, 'parameter ', 'group 0 eps'),
    (hooks(partial(GradClip, .4)), 0, 'gradient of conv.weight in the optimizer', 'hook GradClip.norm',
     hooks(partial(GradClip, .5))),
    ({'model': partial(Net, functional=F.gelu)}, 0, 'input of mid2', 'gelu'),
    ({'bs': 5, 'drop_last': True}, 6, 'a is in training batch 6', 'drop_last', {'bs': 5}),
    (hooks(partial(EMA, .5), Hook), (0, 'validation', 0), 'output of', 'EMA'),
    (hooks(in_place), 2, 'batch[0] after before_step', 'hook InPlace'),
    (hooks(named('Nudges', after_step=in_training(lambda learn: learn.model.head.bias.data.add_(1e-3), at=2))),
     2, 'parameter head.bias before the batch', 'hook Nudges'),
    (hooks(named('Skips', do_opt_step=lambda learn, nxt: learn.state.batch_idx != 3 and nxt())),
     3, 'gradient of conv.weight in the optimizer', 'hook Skips'),
    (hooks(partial(AMP, 'bf16')), 0, 'output of conv', 'bfloat16'),
]
MORE = [
    ({'order': 2}, 0, 'batch[0]', 'learn.train_dl.generator'),
    ({'prepare': lambda learn: learn.model.bn.running_mean.add_(.5)}, 0, 'buffer bn.running_mean', 'initialization'),
    ({'optim': optim(SGD, momentum=.8)}, 1, 'optimizer state momentum_buffer', 'group 0 momentum',
     {'optim': optim(SGD, momentum=.9)}),
    ({'seed': 1}, 0, 'output of drop', 'seed'),
    ({'prepare': lambda learn: learn.model.mid.requires_grad_(False)}, 0, 'gradient of mid', 'frozen parameters'),
    ({'loss_fn': summed}, 0, 'loss', 'summed'),
    (hooks(scales, adds), 0, 'gradient of head.weight in the optimizer', 'hooks', hooks(adds, scales)),
    (hooks(named('InEval', before_epoch=lambda learn: learn.model.bn.eval())), 0, 'output of bn', 'hook InEval'),
    ({'model': partial(Net, tied=True)}, 0, 'parameter mid2.weight before the batch', ''),
]

@pytest.mark.parametrize('b, batch, part, said, a', [
    pytest.param(*o, *[{}]*(5 - len(o)), marks=[pytest.mark.soak]*(o in MORE), id=f'{o[2]} {o[3]}')
    for o in QUICK + MORE])
def test_names_what_differs(b, batch, part, said, a):
    found = diff(partial(make, **a), partial(make, **b), n_batches=12)
    text = repr(found)
    assert found.batch == (batch if isinstance(batch, tuple) else (0, 'training', batch)), text
    assert found.part.startswith(part) and said in text, text

# nothing is found where nothing differs

class Draw(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, x): return self.net(x + torch.rand_like(x)*random.random() + np.random.rand())

def gan_step(batch, learn):
    x, y = batch
    yield 'conv', F.cross_entropy(learn.model(x), y)
    yield 'head', F.cross_entropy(learn.model(x), y)

HEALTHY = {
    'hooks': hooks(partial(GradClip, .5), NaNGuard, partial(GradAccum, 3), partial(AMP, 'bf16'), partial(EMA, .9),
                   WarmupCosine),
    'own random numbers': {'model': Draw, **hooks(partial(Freeze, 'net.conv'))},
    'in place': {'model': partial(Net, act=partial(nn.ReLU, inplace=True), tied=True)},
    'two optimizers': {'optim': lambda m: {k: SGD(getattr(m, k).parameters(), .1) for k in ('conv', 'head')},
                       'train_step': gan_step, 'loss_fn': None},
    'LBFGS': {'optim': optim(torch.optim.LBFGS, lr=.1, max_iter=2)},
}

@pytest.mark.parametrize('name', HEALTHY)
def test_equal_programs_are_equal(name):
    before = torch.get_rng_state()
    found = diff(*[partial(make, **HEALTHY[name])]*2, n_batches=10)
    assert found.is_equal and not found.settings and not found.rng, found
    assert torch.equal(torch.get_rng_state(), before)

def test_a_program_that_does_not_repeat_itself_is_said_to_be_one():
    shift = iter(range(1, 100))
    found = diff(lambda: make(change=lambda x, y: (x + next(shift), y)), make, n_batches=3)
    assert not found.is_equal and 'a does not repeat itself' in found.title(), found

def test_shared_parts_are_as_before():
    "Functions that return learners of one model"
    before = weights(shared := Net())
    assert diff(*[lambda: make(model=lambda: shared)]*2, n_batches=4).is_equal and same(before, weights(shared))

def test_a_validation_in_the_middle_of_a_batch_is_not_taken_for_it():
    looks = LambdaHook(after_loss=in_training(lambda learn: learn.validate()))
    fps = [Fingerprint(), Fingerprint()]
    for fp, hooks in zip(fps, ([], [looks])): make(model=partial(Net, p=0.)).fit(1, hooks=[fp, *hooks])
    assert fps[0].points.keys() == fps[1].points.keys() and diff(*fps).is_equal

def test_a_resumed_fit_continues_its_record():
    whole, parts = Fingerprint(), Fingerprint()
    make().fit(2, hooks=[whole])
    learn = make(hooks=lambda: [parts])
    learn.fit(2, hooks=[stop_when(lambda learn: learn.training and learn.state.batch_idx == 5)])
    learn.resume()
    learn.resume()
    found = diff(whole, parts)
    assert found.is_equal and not found.n_more, found

def test_folders(tmp_path):
    for name, p, every in ('a', .2, 1), ('same', .2, 1), ('b', .3, 1), ('few', .2, 3), ('fewer', .2, 2):
        make(model=partial(Net, p=p)).fit(2, hooks=[Fingerprint(folder=tmp_path/name, every=every)])
    for a, b in ('a', 'same'), ('few', 'fewer'): assert diff(tmp_path/a, tmp_path/b).is_equal
    found = diff(str(tmp_path/'a'), tmp_path/'b')
    assert found.part.startswith('output of drop') and found.batch == (0, 'training', 0)
    assert 'Dropout(p=0.3' in repr(found) and '<table' in found._repr_html_()
    file = tmp_path/'same'/'fingerprint-0.jsonl'
    file.write_bytes(file.read_bytes()[:-100])          # killed while it wrote
    assert diff(tmp_path/'a', tmp_path/'same').is_equal and '1 more' in repr(diff(tmp_path/'a', tmp_path/'same'))
    file.unlink()
    file.symlink_to(tmp_path/'a'/'fingerprint-0.jsonl')
    with pytest.raises((OSError, ValueError)): diff(tmp_path/'a', tmp_path/'same')

@pytest.mark.soak
def test_runs(tmp_path):
    "Each rank has a record, and the first difference of any is reported"
    runs = [make(model=partial(Net, p=p)).start(1, folder=tmp_path/str(i), n_procs=2,
                                                hooks=[Fingerprint(), Accelerate(cpu=True)])
            for i, p in enumerate((.2, .2, .3))]
    for run in runs: run.wait()
    assert len([*(tmp_path/'0').glob('fingerprint-*.jsonl')]) == 2
    assert diff(runs[0], runs[1]).is_equal, diff(runs[0], runs[1])
    found = diff(runs[0], tmp_path/'2')
    assert 'rank' in found.title() and found.part.startswith('output of drop'), found

# other settings of torch, and compiled code

class Chooses(nn.Module):
    "As parts of torch do, it sums in another order where determinism is asked for"
    def forward(self, x):
        x = x.flatten(1).double().exp().float()
        if torch.are_deterministic_algorithms_enabled(): return x.flip(1).cumsum(1)[:, -1:]
        return x.sum(1, keepdim=True)

def test_settings_of_torch():
    choosing = partial(make, model=lambda: nn.Sequential(Chooses(), nn.Linear(1, 3)))
    def change(learn): torch.use_deterministic_algorithms(True, warn_only=True)
    found = diff(choosing, partial(choosing, prepare=change), n_batches=2)
    assert found.batch == (0, 'training', 0) and found.part == 'output of 0 (Chooses)', found
    assert next(iter(found.settings)) == 'torch deterministic', found
    assert not torch.are_deterministic_algorithms_enabled()

def test_eager_and_compiled():
    compiled = partial(make, model=partial(Net, p=.3), **hooks(partial(Compile, backend='aot_eager')))
    found = diff(make, compiled, n_batches=2)
    assert found.batch == (0, 'training', 0) and 'Compile' in repr(found), found
    assert 'only a has outputs' in repr(found)
