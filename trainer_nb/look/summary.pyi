# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook

class Layer:
    name: Any
    kind: Any
    n_params: Any
    n_trained: Any
    memory: Any
    lrs: Any
    decays: Any
    n_calls: Any
    shape_in: Any
    shape: Any
    out_bytes: Any
    flops: Any
    is_leaf: Any
    is_failed: Any
    @property
    def depth(self) -> int: ...
    def __init__(self, name: Any, kind: Any, n_params: Any, n_trained: Any, memory: Any, lrs: Any = ..., decays: Any = ..., n_calls: Any = 0, shape_in: Any = '', shape: Any = '', out_bytes: Any = 0, flops: Any = 0, is_leaf: Any = True, is_failed: Any = False) -> None: ...
def shapes(x: Any, most: Any = 4) -> str: ...

class Tracer:
    layers: Any
    flops: Any
    open: Any
    ran: Any
    handles: Any
    batch: Any
    def __init__(self, model: Any, opts: Any, flops: Any) -> None: ...
    def enter(self, m: Any, args: Any, kwargs: Any) -> None: ...
    def leave(self, m: Any, args: Any, kwargs: Any, out: Any) -> None: ...
    def close(self) -> None: ...

class _AfterLoss(Hook):
    tracer: Any
    flops: Any
    in_dry_run: Any
    ord: Any
    def __init__(self, flops: Any) -> None: ...
    def before_step(self, learn: Any) -> None: ...
    def after_loss(self, learn: Any) -> None: ...
    def after_step(self, learn: Any) -> Any: ...
ROWS: int

class Summary:
    layers: Any
    idle: Any
    batch: Any
    error: Any
    depth: Any
    @property
    def root(self) -> Layer: ...
    @property
    def n_params(self) -> Any: ...
    @property
    def n_trained(self) -> Any: ...
    @property
    def flops(self) -> Any: ...
    def shown(self) -> list[Layer]: ...
    def lines(self) -> list[Any]: ...
    def notes(self) -> list[str]: ...
    @property
    def message(self) -> str: ...
    def __init__(self, layers: Any, batch: Any = '', error: Any = None, depth: Any = None, idle: Any = ...) -> None: ...
