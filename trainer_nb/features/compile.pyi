# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook

def fresh(f: Any) -> Any: ...
def bare_step(opt: Any) -> Any: ...

class Number:
    value: Any
    is_positive: Any
    def __init__(self, value: Any, is_positive: Any = False) -> None: ...

class Compile(Hook):
    reasons: Any
    time_s: Any
    full_sizes: Any
    mode: Any
    what: Any
    backend: Any
    dynamic: Any
    unique: Any
    ord: Any
    in_dry_run: Any
    runs_after: Any
    def __init__(self, mode: Any = None, what: Any = 'model', backend: Any = 'inductor', dynamic: Any = None) -> None: ...
    def before_fit(self, learn: Any) -> Any: ...
    def after_fit(self, learn: Any) -> None: ...
    def do_step(self, learn: Any, nxt: Any, model: Any, loss_fn: Any) -> Any: ...
    def do_backward(self, learn: Any, nxt: Any, loss: Any) -> None: ...
    def do_opt_step(self, learn: Any, nxt: Any) -> Any: ...
