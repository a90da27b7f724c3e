# Written by tools/stubs.py
from typing import Any
from trainer_nb.show.loggers import JSONLLogger

class RunRecord(JSONLLogger):
    good: Any
    file: Any
    n: Any
    n_valid: Any
    n_epoch: Any
    problem: Any
    def tick(self, learn: Any) -> None: ...
    def open(self, learn: Any) -> None: ...
    def sync(self, learn: Any) -> None: ...
    def careful(self, f: Any, *args: Any, **kwargs: Any) -> None: ...

class Tail:
    path: Any
    at: Any
    history: Any
    id: Any
    def __init__(self, path: Any) -> None: ...
    def update(self) -> bool: ...
