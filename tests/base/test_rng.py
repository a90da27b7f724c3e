"The states of all generators are restored, whichever one numpy draws from."
import random

import numpy as np, pytest, torch

from trainer_nb.base import rng_state, set_rng_state
from trainer_nb.data import same_state

def draw(): return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()

@pytest.mark.parametrize('bits', [np.random.Philox, np.random.MT19937])
def test_states_are_restored(bits):
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(bits(5))
        before = rng_state()
        first = draw()      # one of a pair of normal numbers waits now
        between = rng_state()
        second = draw()
        assert not same_state(between, before)
        for state, drawn in (between, second), (before, first):
            set_rng_state(state)
            assert same_state(rng_state(), state) and draw() == drawn
    finally: np.random.set_bit_generator(kept)
