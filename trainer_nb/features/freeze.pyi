# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import Hook

class Freeze(Hook):
    frozen: Any
    names: Any
    unique: Any
    in_dry_run: Any
    def __init__(self, *names: Any) -> None: ...
    def before_fit(self, learn: Any) -> None: ...
    def after_fit(self, learn: Any) -> None: ...

class FreezeBN(Hook):
    unique: Any
    in_dry_run: Any
    def before_fit(self, learn: Any) -> None: ...
    def before_epoch(self, learn: Any) -> None: ...
