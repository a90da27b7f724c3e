# Written by tools/stubs.py
from typing import Any
from contextlib import AbstractContextManager

LEAVES: Any
BUSY: Any
DATA: int
STEP: int

class _Tensor:
    place: Any
    t: Any
    value: Any
    is_leaf: Any
    grad: Any
    requires_grad: Any
    def __init__(self, t: Any) -> None: ...
    def put_back(self) -> None: ...
def unchanged(learn: Any) -> AbstractContextManager[Any]: ...
INSIDE: Any
def takes_part(hook: Any) -> bool: ...

class DryRun:
    learn: Any
    interrupts: Any
    pass_: Any
    n_passes: Any
    losses: Any
    n: Any
    def __init__(self, learn: Any, interrupts: Any) -> None: ...
    def add(self, losses: Any, result: Any, n: Any, lrs: Any) -> None: ...
    def record(self, name: Any, value: Any, mean: Any = False) -> None: ...
    def forget(self) -> None: ...
    def train_batch(self) -> Any: ...
    @property
    def is_over(self) -> bool: ...
def dry_run(learn: Any) -> AbstractContextManager[Any]: ...
