# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook

class EarlyStopping(Hook):
    restore_best: Any
    is_open: Any
    best: Any
    best_epoch: Any
    weights: Any
    average: Any
    buffers: Any
    n_waited: Any
    is_over: Any
    patience: Any
    min_delta: Any
    monitor: Any
    mode: Any
    ord: Any
    unique: Any
    state_kinds: Any
    def __init__(self, patience: Any = 5, min_delta: Any = 0.0, monitor: Any = 'valid_loss', mode: Any = None, restore_best: Any = True) -> None: ...
    def reset(self) -> None: ...
    def before_fit(self, learn: Any) -> None: ...
    def after_epoch(self, learn: Any) -> None: ...
    def after_fit(self, learn: Any) -> None: ...
