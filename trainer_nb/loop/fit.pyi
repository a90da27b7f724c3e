# Written by tools/stubs.py
from typing import Any
from trainer_nb.data.passes import Pass

class StepState:
    def is_grad_accum_boundary(self, is_last_batch: Any = False) -> bool: ...
    def increment_batch(self, n_samples: Any, stepped: Any = True) -> None: ...
    def reset_epoch(self) -> None: ...
    def __init__(self, epoch: Any = 0, batch_idx: Any = 0, optimizer_step: Any = 0, samples_seen: Any = 0, grad_accum_steps: Any = 1, num_processes: Any = 1) -> None: ...
    batch_idx: Any
    epoch: Any
    grad_accum_steps: Any
    num_processes: Any
    optimizer_step: Any
    samples_seen: Any

class TrainPass(Pass):
    state: Any
    def __init__(self, dl: Any, state: Any) -> None: ...
    @property
    def n(self) -> Any: ...
    @n.setter
    def n(self, value: Any) -> None: ...

class Fit:
    valid_values: Any
    warm: Any
    n_epochs: Any
    max_steps: Any
    valid_every: Any
    valid_first: Any
    hooks: Any
    resume: Any
    on_interrupt: Any
    end_epoch: Any
    end_step: Any
    first_row: Any
    first_batch: Any
    next_valid: Any
    next_due: Any
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
    stepped_at: Any
    idle: Any
    modes: Any
    kept: Any
    model: Any
    loaders: Any
    def begin(self, state: Any, history: Any = None) -> None: ...
    def plan_valid(self, state: Any) -> None: ...
    def set_due(self) -> None: ...
    def is_open(self, state: Any) -> bool: ...
    def check_progress(self, state: Any) -> Any: ...
    def close(self) -> None: ...
    def __init__(self, n_epochs: Any = None, max_steps: Any = None, valid_every: Any = None, valid_first: Any = False, hooks: Any = ..., resume: Any = False, on_interrupt: Any = 'raise', end_epoch: Any = None, end_step: Any = None, first_row: Any = 0, first_batch: Any = 0, next_valid: Any = None, next_due: Any = ..., train: Any = None, valid: Any = None, train_metrics: Any = None, valid_metrics: Any = None, valid_values: Any = ..., validated_at: Any = -1, is_trained: Any = False, time_s: Any = 0.0, opened: Any = 0.0, rng_states: Any = None, is_running: Any = False, warm: Any = ..., stepped_at: Any = -1, idle: Any = 0, modes: Any = ..., kept: Any = None, model: Any = None, loaders: Any = ...) -> None: ...
    def state_dict(self, learn: Any) -> dict[Any, Any]: ...
    def load_state_dict(self, learn: Any, state: Any, plan: Any = False) -> None: ...
    def rank_state(self, learn: Any) -> dict[Any, Any]: ...
    def load_rank_state(self, learn: Any, state: Any) -> None: ...
def named_objects(objects: Any) -> dict[Any, Any]: ...
def object_states(objects: Any) -> dict[Any, Any]: ...
def load_object_states(objects: Any, states: Any) -> list[str]: ...
ARRAY: str
OPEN: Any
PLAN: Any
FIT_KINDS: Any
RANK_KINDS: Any
def as_count(name: Any, value: Any) -> int: ...
def as_rate(name: Any, value: Any) -> Any: ...
