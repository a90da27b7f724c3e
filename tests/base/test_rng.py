"States of the generators are those of their public functions, though an unchanged one is not copied again."
import random, threading

import numpy as np, pytest, torch

import trainer_nb.base.rng as rng
from trainer_nb.base import rng_state, set_rng_state
from trainer_nb.base import torch_private
from trainer_nb.data import same_state

def plain():
    return {'python': random.getstate(), 'torch': torch.get_rng_state(), 'numpy': np.random.get_state(legacy=False)}

def draws():
    kept = [plain()]
    def keep(): kept[:] = [plain()]
    return [random.random, lambda: random.gauss(0, 1), lambda: random.shuffle([1, 2, 3]), lambda: random.seed(3),
            lambda: random.setstate(kept[0]['python']), lambda: setattr(random._inst, 'gauss_next', .5),
            np.random.rand, np.random.randn, lambda: np.random.binomial(9, .3), lambda: np.random.seed(3),
            lambda: np.random.set_state(kept[0]['numpy']), lambda: np.random.permutation(5),
            lambda: torch.rand(1), lambda: torch.manual_seed(3), lambda: set_rng_state(kept[0]), keep, lambda: None]

@pytest.fixture(params=[False, True], ids=['memory', 'public'])
def is_public(request, monkeypatch):
    monkeypatch.setattr(torch_private, 'ONLY_PUBLIC', request.param)
    rng._last.clear()
    return request.param

def test_any_order_of_draws(is_public):
    choose, fs = random.Random(7), draws()
    for _ in range(3000):
        f = choose.choice(fs)
        f()
        assert same_state(rng_state(), plain()), f
        a, b = rng_state(), rng_state()
        assert (a['numpy'] is b['numpy']) is (a['python'] is b['python']) is not is_public

@pytest.mark.parametrize('bits', [np.random.Philox, np.random.MT19937])
def test_another_generator_inside_numpy(bits):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(bits(5))
        for f in [np.random.rand, np.random.randn, np.random.randn, lambda: None]*20:
            f()
            a = rng_state()['numpy']
            assert repr(a) == repr(np.random.get_state(legacy=False))
            assert (rng_state()['numpy'] is a) is (bits is np.random.MT19937)
    finally: np.random.set_bit_generator(before)
    assert same_state(rng_state(), plain())

def test_other_threads_draw():
    "A state that another thread changes while it is read is never taken for the newer one"
    done = threading.Event()
    def draw():
        while not done.is_set(): random.gauss(0, 1), np.random.randn()
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(300): rng_state()
    finally:
        done.set()
        thread.join()
    assert same_state(rng_state(), plain())

def test_memory_that_tells_nothing_is_not_used():
    r = random.Random(0)
    assert rng._changes(r.getstate, [r.random, lambda: r.seed(2)])
    assert not rng._changes(r.getstate, [r.random, lambda: None])
    assert not rng._changes(r.random, [r.random])
    assert not rng._changes(lambda: 1, [r.random])
