"Several loaders as one: the numbers are those of plain loops, and a pass goes on from any batch"
from itertools import product

import pytest, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from common import (
    Noisy, Unsized, check_resume, make_learner, make_model, plain_loop, problem, same, stop_at,
    weights
)
from trainer_nb.all import LambdaHook, Loaders, TensorLoader
from trainer_nb.data import length

SIZES = {'a': 24, 'b': 14}

def stock(name, cls=Noisy, **kwargs): return DataLoader(cls(*problem(SIZES[name], 1)), 4, shuffle=True, **kwargs)

def generator(seed=3): return torch.Generator().manual_seed(seed)

def with_one_generator():
    g = generator()
    return {k: stock(k, generator=g) for k in 'ab'}

KINDS = {
    'stock': lambda: {k: stock(k) for k in 'ab'},
    'shorter first': lambda: {k: stock(k) for k in 'ba'},
    'one generator': with_one_generator,
    'tensors': lambda: {k: TensorLoader(*problem(n), bs=4, shuffle=True) for k, n in SIZES.items()},
    'workers': lambda: {'a': stock('a', TensorDataset, num_workers=1), 'b': stock('b')},
}
N = {'shortest': 4, 'longest': 6}      # batches in a pass

def plain(dls, mode):
    "One pass, as one writes it"
    if mode == 'shortest':
        for batches in zip(*dls.values()): yield dict(zip(dls, batches))
        return
    its = {k: iter(dl) for k, dl in dls.items()}
    for _ in range(N[mode]):
        batch = {}
        for k in dls:
            try: batch[k] = next(its[k])
            except StopIteration:
                its[k] = iter(dls[k])
                batch[k] = next(its[k])
        yield batch

def loss_of(model, batch):
    return sum((1 if k == 'a' else .5)*F.cross_entropy(model(x), y) for k, (x, y) in batch.items())

def start():
    torch.manual_seed(0)
    model = make_model()
    return model, torch.optim.SGD(model.parameters(), lr=.1)

def by_hand(dls, mode, n_epochs=2):
    model, opt = start()
    torch.manual_seed(7)
    losses = plain_loop(model, opt, lambda epoch: plain(dls, mode), n_epochs, loss_of)
    return weights(model), losses

def learner(dls, mode, **kwargs):
    model, opt = start()
    return make_learner(model, Loaders(dls, mode), train_step=lambda b, learn: {'loss': loss_of(learn.model, b)},
                        optim=opt, seed=7, **kwargs)

SOME = [('stock', 'longest'), ('shorter first', 'longest'), ('one generator', 'shortest'),
        ('one generator', 'longest'), ('tensors', 'shortest'), ('workers', 'longest')]

@pytest.mark.parametrize('kind, mode', [pytest.param(*o, marks=[pytest.mark.soak]*(o not in SOME))
                                        for o in product(KINDS, N)])
def test_the_numbers_are_those_of_a_plain_loop_and_a_pass_goes_on_from_any_batch(kind, mode, tmp_path):
    expected, losses = by_hand(KINDS[kind](), mode)
    whole, *_ = check_resume(lambda: learner(KINDS[kind](), mode), tmp_path,
                             *map(stop_at, (3, 2*N[mode] - 1)), n_epochs=2)
    assert whole.history.steps['train_loss'] == pytest.approx(losses) and same(weights(whole.model), expected)
    assert len(losses) == 2*len(whole.train_dl) == 2*N[mode]

@pytest.mark.filterwarnings('ignore:resume. train_dl')
def test_loaders_without_a_length(tmp_path):
    "`is_last` reads one batch ahead, which is not lost"
    def dls(wrap): return {k: wrap(stock(k, TensorDataset, generator=generator())) for k in 'ab'}
    _, losses = by_hand(dls(lambda dl: dl), 'longest', 1)
    last = []
    look = LambdaHook(before_step=lambda learn: last.append(learn.phase.is_last))
    whole, *_ = check_resume(lambda: learner(dls(Unsized), 'longest', hooks=[look]), tmp_path, stop_at(3), n_epochs=1)
    assert length(whole.train_dl) is None and last[:6] == [False]*5 + [True]
    assert whole.history.steps['train_loss'] == pytest.approx(losses)
