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
RESUMABLE: Any

class TrainPass(Pass):
    state: Any
    def __init__(self, dl: Any, state: Any) -> None: ...
    @property
    def n(self) -> Any: ...
    @n.setter
    def n(self, value: Any) -> None: ...

class Plan:
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
    stepped_at: Any
    idle: Any
    def begin(self, state: Any, history: Any = None) -> None: ...
    def plan_valid(self, state: Any) -> None: ...
    def set_due(self) -> None: ...
    def is_ahead(self, state: Any) -> bool: ...
    def check_progress(self, state: Any) -> Any: ...
    def __init__(self, n_epochs: Any = None, max_steps: Any = None, valid_every: Any = None, valid_first: Any = False, hooks: Any = ..., resume: Any = False, on_interrupt: Any = 'raise', end_epoch: Any = None, end_step: Any = None, first_row: Any = 0, first_batch: Any = 0, next_valid: Any = None, next_due: Any = ..., stepped_at: Any = -1, idle: Any = 0) -> None: ...
