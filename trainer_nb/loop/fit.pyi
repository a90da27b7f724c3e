# Written by tools/stubs.py
from typing import Any
from contextlib import AbstractContextManager
from trainer_nb.loop.hooks import CancelFit
from trainer_nb.loop.interrupts import Interrupts
from trainer_nb.loop.plan import Plan

class Bound:
    has_own: Any
    is_default: Any
    keeps_targets: Any
    is_new: Any
    one_rate: Any
    do: Any
    step_fns: Any
    step_fn: Any
    passed: Any
    accumulator: Any
    is_opening: Any
    last_loss: Any
    def bind(self, learn: Any) -> None: ...
    def release(self) -> None: ...
OPEN: Any
FIT_KINDS: Any

class FitState(Plan):
    warm: Any
    valid_values: Any
    train: Any
    valid: Any
    train_metrics: Any
    valid_metrics: Any
    validated_at: Any
    is_trained: Any
    time_s: Any
    opened: Any
    rng_states: Any
    is_running: Any
    modes: Any
    kept: Any
    row: Any
    model: Any
    loaders: Any
    def is_open(self, state: Any) -> bool: ...
    def state_dict(self, learn: Any) -> dict[Any, Any]: ...
    def load_state_dict(self, learn: Any, state: Any, plan: Any = False) -> None: ...
    def rank_state(self, learn: Any) -> dict[Any, Any]: ...
    def load_rank_state(self, learn: Any, state: Any) -> None: ...
    def __init__(self, n_epochs: Any = None, max_steps: Any = None, valid_every: Any = None, valid_first: Any = False, hooks: Any = ..., resume: Any = False, on_interrupt: Any = 'raise', end_epoch: Any = None, end_step: Any = None, first_row: Any = 0, first_batch: Any = 0, next_valid: Any = None, next_due: Any = ..., stepped_at: Any = -1, idle: Any = 0, train: Any = None, valid: Any = None, train_metrics: Any = None, valid_metrics: Any = None, valid_values: Any = ..., validated_at: Any = -1, is_trained: Any = False, time_s: Any = 0.0, opened: Any = 0.0, rng_states: Any = None, is_running: Any = False, warm: Any = ..., modes: Any = ..., kept: Any = None, row: Any = None, model: Any = None, loaders: Any = ...) -> None: ...

class Stop(CancelFit):
    ...

class Fit(FitState, Bound):
    learn: Any
    is_resumable: Any
    def __enter__(self) -> Interrupts: ...
    def __exit__(self, *error: Any) -> Any: ...
    def fire_first(self, learn: Any) -> None: ...
    def put_back(self, learn: Any) -> None: ...
    def match_loaders(self, learn: Any) -> None: ...
    def __init__(self, n_epochs: Any = None, max_steps: Any = None, valid_every: Any = None, valid_first: Any = False, hooks: Any = ..., resume: Any = False, on_interrupt: Any = 'raise', end_epoch: Any = None, end_step: Any = None, first_row: Any = 0, first_batch: Any = 0, next_valid: Any = None, next_due: Any = ..., stepped_at: Any = -1, idle: Any = 0, train: Any = None, valid: Any = None, train_metrics: Any = None, valid_metrics: Any = None, valid_values: Any = ..., validated_at: Any = -1, is_trained: Any = False, time_s: Any = 0.0, opened: Any = 0.0, rng_states: Any = None, is_running: Any = False, warm: Any = ..., modes: Any = ..., kept: Any = None, row: Any = None, model: Any = None, loaders: Any = ..., learn: Any = None, is_resumable: Any = False) -> None: ...
def aside(learn: Any, pass_: Any) -> AbstractContextManager[Any]: ...
