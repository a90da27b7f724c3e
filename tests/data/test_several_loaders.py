"Several loaders as one: the numbers are those of plain loops, and a pass goes on from any batch"
import random
from itertools import product

import pytest, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from common import (
    Noisy, Unsized, check_resume, digest, make_learner, make_model, plain_loop, problem, same, stop_at,
    weights
)
from trainer_nb.data import Loaders, TensorLoader, adapter_of, length
from trainer_nb.loop.hooks import LambdaHook


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
    for _ in range(max(map(len, dls.values()))):
        batch = {}
        for k in dls:
            try: batch[k] = next(its[k])
            except StopIteration:
                its[k] = iter(dls[k])
                batch[k] = next(its[k])
        yield batch

N = {'shortest': 4, 'longest': 6}      # batches in a pass

def loss_of(model, batch):
    return sum((1 if k == 'a' else .5)*F.cross_entropy(model(x), y) for k, (x, y) in batch.items())

def make():
    torch.manual_seed(0)
    return make_model()

def by_hand(dls, mode, n_epochs=2):
    model = make()
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    torch.manual_seed(7)
    losses = plain_loop(model, opt, lambda epoch: plain(dls, mode), n_epochs, loss_of)
    return weights(model), losses

def step(batch, learn): return {'loss': loss_of(learn.model, batch)}

def start(dls, mode, **kwargs):
    model = make()
    random.seed(1)
    return make_learner(model, Loaders(dls, mode) if mode else dls, train_step=step,
                        optim=torch.optim.SGD(model.parameters(), lr=.1),
                        **{'seed': 7, **kwargs})

SOME = [('stock', 'longest'), ('shorter first', 'longest'), ('own generators', 'shortest'),
        ('one generator', 'longest'), ('tensors', 'shortest'), ('workers', 'longest')]
@pytest.mark.parametrize('kind, mode', SOME)
def test_the_numbers_are_those_of_a_plain_loop(kind, mode):
    expected, losses = by_hand(KINDS[kind](), mode)
    learn = start(KINDS[kind](), mode)
    learn.fit(2)
    assert learn.history.steps['train_loss'] == pytest.approx(losses) and same(weights(learn.model), expected)
    assert len(losses) == 2*len(learn.train_dl) == 2*N[mode]

@pytest.mark.parametrize('kind, mode', [pytest.param(*o, marks=[pytest.mark.soak]*(o not in SOME))
                                        for o in product(KINDS, N)])
def test_a_pass_goes_on_from_any_batch(kind, mode, tmp_path):
    n = N[mode]
    stops = [n + 2, 2*n - 1] if kind == 'workers' else [3, n, 2*n - 1]
    check_resume(lambda: start(KINDS[kind](), mode), tmp_path, *map(stop_at, stops), n_epochs=2)

@pytest.mark.filterwarnings('ignore:resume. train_dl')
def test_loaders_without_a_length(tmp_path):
    "`is_last` reads one batch ahead, which is not lost"
    def dls():
        return {k: Unsized(stock(n, 4, 1, TensorDataset, generator=torch.Generator().manual_seed(n)))
                for k, n in (('a', 24), ('b', 14))}
    _, losses = by_hand({k: o.dl for k, o in dls().items()}, 'longest', 1)
    last = []
    def look(learn): last.append(learn.phase.is_last)
    def learner(): return start(dls(), 'longest', hooks=[LambdaHook(before_step=look)])
    whole, *_ = check_resume(learner, tmp_path, stop_at(3), n_epochs=1)
    assert length(whole.train_dl) is None and last[:len(losses)] == [False]*(len(losses) - 1) + [True]
    assert whole.history.steps['train_loss'] == pytest.approx(losses)

def test_a_search_leaves_a_pass_in_the_middle_and_no_trace():
    learn, plain = (start(KINDS['one generator'](), 'longest') for _ in range(2))
    learn.lr_find(n_steps=15)
    for o in learn, plain: o.fit(1)
    assert digest(learn) == digest(plain)

def test_loaders_without_a_length_that_began_again_end_with_the_longest():
    def dl(): return Loaders({'a': Unsized([1, 2, 3, 4, 5]), 'b': Unsized('xyz')}, 'longest')
    passes = iter(dl())
    for _ in range(4): next(passes)
    assert list(adapter_of(dl()).open(state=passes.state_dict())) == list(passes) == [{'a': 5, 'b': 'y'}]
