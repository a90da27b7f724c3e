# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook

class BatchView:
    batch: Any
    title: Any
    look: Any
    n: Any
    @property
    def rows(self) -> list[dict[Any, Any]]: ...
    def samples(self) -> Any: ...
    def __init__(self, batch: Any, title: Any, n: Any = 9, look: Any = ...) -> None: ...

class Seen(Exception):
    ...

class _Grab(Hook):
    batch: Any
    in_dry_run: Any
    ord: Any
    def __init__(self) -> None: ...
    def before_step(self, learn: Any) -> None: ...
def run_once(learn: Any, hook: Any, training: Any = True) -> None: ...
