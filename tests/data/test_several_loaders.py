"Several loaders as one: the numbers are those of plain loops, and a pass goes on from any batch"
import random

import pytest, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


from common import Noisy, Unsized, digest, make_learner, problem, same, weights
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.data import adapter_of, end_workers, length
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.data import Loaders, TensorLoader


def stock(n, bs, seed, cls=Noisy, **kwargs): return DataLoader(cls(*problem(n, seed)), bs, shuffle=True, **kwargs)

KINDS = {
    'stock': lambda: {'a': stock(24, 4, 1), 'b': stock(14, 4, 2)},
    'shorter first': lambda: {'b': stock(14, 4, 2), 'a': stock(24, 4, 1)},
    'own generators': lambda: {k: stock(n, 4, 1, generator=torch.Generator().manual_seed(n))
                               for k, n in (('a', 24), ('b', 14))},
    'one generator': lambda: (lambda g: {k: stock(n, 4, 1, generator=g)
                                         for k, n in (('a', 24), ('b', 14))})(torch.Generator().manual_seed(3)),
    'tensors': lambda: {'a': TensorLoader(*problem(24, 1), bs=4, shuffle=True),
                        'b': TensorLoader(*problem(14, 2), bs=4, shuffle=True)},
    'workers': lambda: {'a': stock(24, 4, 1, TensorDataset, num_workers=1), 'b': stock(14, 4, 2)},
}

def plain(dls, mode):
    "One pass, as one writes it"
    if mode == 'shortest':
        for batches in zip(*dls.values()): yield dict(zip(dls, batches))
        return
    its = {k: iter(dl) for k, dl in dls.items()}
    if mode == 'longest':
        for _ in range(max(map(len, dls.values()))):
            batch = {}
            for k in dls:
                try: batch[k] = next(its[k])
                except StopIteration:
                    its[k] = iter(dls[k])
                    batch[k] = next(its[k])
            yield batch
        return
    while its:
        for k in list(its):
            try: batch = {k: next(its[k])}
            except StopIteration: del its[k]
            else: yield batch

N = {'shortest': 4, 'longest': 6, 'alternate': 10}      # batches in a pass
MODES = [*N]

def loss_of(model, batch):
    return sum((1 if k == 'a' else .5)*F.cross_entropy(model(x), y) for k, (x, y) in batch.items())

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(.3), torch.nn.Linear(8, 3))

def by_hand(dls, mode, n_epochs=2):
    model, losses = make(), []
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    torch.manual_seed(7)
    for _ in range(n_epochs):
        for batch in plain(dls, mode):
            loss = loss_of(model, batch)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    return weights(model), losses

def step(batch, learn): return {'loss': loss_of(learn.model, batch)}

def start(dls, mode, **kwargs):
    model = make()
    random.seed(1)
    return make_learner(model, Loaders(dls, mode) if mode else dls, train_step=step,
                        optim=torch.optim.SGD(model.parameters(), lr=.1),
                        **{'seed': 7, **kwargs})

def stop_at(n):
    return LambdaHook(name='Stop', after_step=lambda learn: learn.stop() if learn.state.optimizer_step == n else None)

ALL = [(kind, mode) for kind in KINDS for mode in MODES]
SOME = [('stock', 'alternate'), ('shorter first', 'longest'), ('own generators', 'alternate'),
        ('one generator', 'longest'), ('tensors', 'shortest')]
cases = pytest.mark.parametrize('kind, mode',
                                [o if o in SOME else pytest.param(*o, marks=pytest.mark.soak) for o in ALL])

@pytest.mark.parametrize('kind, mode', [*SOME, ('workers', 'longest')])
def test_the_numbers_are_those_of_a_plain_loop(kind, mode):
    expected, losses = by_hand(KINDS[kind](), mode)
    learn = start(KINDS[kind](), mode)
    learn.fit(2)
    assert learn.history.steps['train_loss'] == pytest.approx(losses) and same(weights(learn.model), expected)
    assert len(losses) == 2*len(learn.train_dl) == 2*N[mode]

def check_resume(kind, mode, folder, ats):
    "In the same process, and in another learner after other random numbers"
    whole = start(KINDS[kind](), mode)
    whole.fit(2)
    for at in ats:
        here = start(KINDS[kind](), mode)
        here.fit(2, hooks=[stop_at(at), Checkpoint(folder/str(at))])
        there = start(KINDS[kind](), mode)
        torch.rand(3)
        there.fit(2, hooks=[Checkpoint(folder/str(at))], resume=True)
        assert here.cancelled == 'stop'
        here.resume()
        assert digest(here) == digest(whole) == digest(there), (kind, mode, at)

@cases
def test_a_pass_goes_on_from_any_batch(kind, mode, tmp_path):
    n = N[mode]
    check_resume(kind, mode, tmp_path, (n + 2, 2*n - 1) if kind == 'workers' else (3, n, 2*n - 1))

def test_a_pass_with_workers_goes_on(tmp_path): check_resume('workers', 'longest', tmp_path, [11])

@pytest.mark.filterwarnings('ignore:resume. train_dl')
@pytest.mark.parametrize('mode', ['longest', 'alternate'])
def test_loaders_without_a_length(mode, tmp_path):
    "`is_last_batch` reads one batch ahead, which is not lost"
    def dls():
        return {k: Unsized(stock(n, 4, 1, TensorDataset, generator=torch.Generator().manual_seed(n)))
                for k, n in (('a', 24), ('b', 14))}
    _, losses = by_hand({k: o.dl for k, o in dls().items()}, mode, 1)
    last = []
    def look(learn): last.append(learn.is_last_batch)
    def learner(): return start(dls(), mode, hooks=[LambdaHook(before_step=look)])
    whole, here, there = learner(), learner(), learner()
    whole.fit(1)
    assert length(whole.train_dl) is None and last == [False]*(len(losses) - 1) + [True]
    assert whole.history.steps['train_loss'] == pytest.approx(losses)
    here.fit(1, hooks=[stop_at(3), Checkpoint(tmp_path)])
    there.fit(1, hooks=[Checkpoint(tmp_path)], resume=True)
    here.resume()
    assert digest(here) == digest(whole) == digest(there)

def test_lr_find_leaves_no_trace(mode='alternate'):
    learn, plain = start(KINDS['one generator'](), mode), start(KINDS['one generator'](), mode)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    learn.lr_find(n_steps=15)
    assert torch.equal(torch.get_rng_state(), before)
    for o in learn, plain: o.fit(1)
    assert digest(learn) == digest(plain)

def test_max_steps_ends_a_pass_whose_loaders_keep_their_workers():
    learn = start({'a': stock(24, 4, 1, num_workers=1, persistent_workers=True), 'b': stock(14, 4, 2)}, None)
    learn.fit(max_steps=2)
    end_workers(learn.train_dl)
    assert learn.state.optimizer_step == 2

def test_loaders_without_a_length_that_began_again_end_with_the_longest():
    def dl(): return Loaders({'a': Unsized([1, 2, 3, 4, 5]), 'b': Unsized('xyz')}, 'longest')
    passes = iter(dl())
    for _ in range(4): next(passes)
    assert list(adapter_of(dl()).open(state=passes.state_dict(4))) == list(passes) == [{'a': 5, 'b': 'y'}]
