# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook
from typing import NamedTuple

class ProfileRow(NamedTuple):
    point: Any
    what: Any
    calls: Any
    time_s: Any

class ProfileTable:
    rows: Any
    n_steps: Any
    def __init__(self, rows: Any, n_steps: Any) -> None: ...
    @property
    def time_s(self) -> float: ...
    def share(self, point: Any) -> Any: ...

class Profile(Hook):
    table: Any
    n_seen: Any
    n: Any
    n_open: Any
    mark: Any
    pass_: Any
    n_steps: Any
    skip: Any
    trace: Any
    n_traced: Any
    profiler: Any
    is_tracing: Any
    spent: Any
    sums: Any
    ord: Any
    unique: Any
    in_dry_run: Any
    only_looks: Any
    def __init__(self, n_steps: Any = 50, skip: Any = 10, trace: Any = None, n_traced: Any = 5) -> None: ...
    def before_fit(self, learn: Any) -> None: ...
    def before_epoch(self, learn: Any) -> None: ...
    def before_step(self, learn: Any) -> None: ...
    def do_step(self, learn: Any, nxt: Any) -> Any: ...
    def do_backward(self, learn: Any, nxt: Any) -> Any: ...
    def do_opt_step(self, learn: Any, nxt: Any) -> Any: ...
    def do_zero_grad(self, learn: Any, nxt: Any) -> Any: ...
    def before_valid(self, learn: Any) -> None: ...
    def after_epoch(self, learn: Any) -> None: ...
    def after_cancel(self, learn: Any) -> Any: ...
    def after_fit(self, learn: Any) -> None: ...
