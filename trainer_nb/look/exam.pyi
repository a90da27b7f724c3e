# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook

def batch_tensors(batch: Any) -> Any: ...

class _Watch(Hook):
    names: Any
    refusal: Any
    reached: Any
    opened: Any
    losses: Any
    grads: Any
    times: Any
    pred: Any
    has_targ: Any
    made_by: Any
    in_dry_run: Any
    ord: Any
    def __init__(self, model: Any) -> None: ...
    def before_step(self, learn: Any) -> None: ...
    def after_loss(self, learn: Any) -> None: ...
    def after_backward(self, learn: Any) -> None: ...

class Exam:
    is_own: Any
    was_eval: Any
    watch: Any
    preds: Any
    alone: Any
    own: Any
    twin: Any
    error: Any
    batches: Any
    load_s: Any
    valid: Any
    is_same: Any
    learn: Any
    kind: Any
    modes: Any
    flat: Any
    order: Any
    inside: Any
    n_steps: Any
    max_s: Any
    equal_rows: Any
    x: Any
    y: Any
    vx: Any
    vy: Any
    def __init__(self, learn: Any, n_batches: Any = 64, n_steps: Any = 60, max_s: Any = 20.0) -> None: ...
    @property
    def left_out(self) -> str: ...
    def read(self, n: Any) -> None: ...
    def train(self) -> None: ...
    def evaluate(self) -> None: ...
    def repeat(self) -> None: ...
