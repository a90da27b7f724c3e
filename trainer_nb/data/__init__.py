"""Resumable passes over any loader, and loaders. These names are for other subpackages"""
from .passes import (
    GENERATORS, Adapter, Batch, Pass, adapter_of, data_length, each, end_workers, first_batch, is_stock, is_warm, length, made_of,
    rng_states, samplers_of, set_rng_states, warm_up
)
from .loaders import Loaders, SeededLoader, TensorLoader, as_loader, is_shuffled, sets_of
from .rows import STOCK_SAMPLERS
from .prepare import (
    Images, Prepared, Table, TableNet, Texts, apply_changes, checked_changes, read_changes, split, write_changes
)
