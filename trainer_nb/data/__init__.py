"""Resumable passes over any loader, and loaders. These names are for other wings"""
from .adapters import (
    RNG_STATE_KINDS, Adapter, StockAdapter, adapter_of, each, end_workers, is_stock, is_warm, length, loader_generators,
    rng_states, same_state, set_rng_states, warm_up
)
from .passes import Pass, first_batch
from .rows import RANDOM_SAMPLERS
from .several import Loaders, sets_of
from .loaders import TensorLoader, as_loader, is_shuffled
from .seeded import SeededAdapter, SeededLoader
from .prepare import Images, Table, TableNet, Texts, split
