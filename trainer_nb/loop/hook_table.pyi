# Written by tools/stubs.py
from typing import Any
from contextlib import AbstractContextManager
from trainer_nb.loop.hooks import Calls
from trainer_nb.loop.hooks import Hook
from typing import NamedTuple

class HookRow(NamedTuple):
    point: Any
    hook: Any
    ord: Any
    why: Any
    calls: Any
    time_s: Any

class HookTable:
    rows: Any
    def __init__(self, calls: Any, skip: Any = ...) -> None: ...
def as_hooks(hooks: Any) -> tuple[Any, ...]: ...

class Hooked:
    calls: Calls
    hooks: Any
    is_main: Any
    def __init__(self) -> None: ...
    def add_hook(self, hook: Any) -> Any: ...
    def remove_hook(self, hook: Any) -> Any: ...
    def replace_hooks(self, stand_ins: Any) -> None: ...
    def get_hook(self, cls: Any, default: Any = ...) -> Hook: ...
    def added_hooks(self, *hooks: Any) -> AbstractContextManager[Any]: ...
    def describe_hooks(self) -> HookTable: ...
