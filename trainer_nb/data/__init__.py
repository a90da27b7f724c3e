"""Resumable passes over any loader, and loaders. These names are for other wings"""
from .passes import (
    STREAM_KINDS, Cursor, draws, each, end_workers, is_stock, is_warm, length, loader_generators, open_at, said_size,
    same_state, set_streams, skips, source, streams, warm_up
)
from .loaders import Loaders, SeededLoader, TensorLoader, as_loader, prefetch, sets_of, yields_new
