"""Resumable passes over any loader, and loaders. These names are for other wings"""
from .passes import (
    RNG_STATE_KINDS, Pass, draws, each, end_workers, is_stock, is_warm, length, loader_generators, nominal_batch_size,
    open_at, rng_states, same_state, set_rng_states, skips, source, warm_up
)
from .loaders import Loaders, SeededLoader, TensorLoader, as_loader, is_shuffled, prefetch, sets_of, split, yields_new
