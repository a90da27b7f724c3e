# Written by tools/stubs.py
from typing import Any
from torch.utils._python_dispatch import TorchDispatchMode

class Constant(TorchDispatchMode):
    OFF: Any
    ENTRY: Any
    def value(self, name: Any, given: Any, res: Any) -> Any: ...
LIKELY: Any
def refuse(learn: Any, reason: Any, found: Any, error: Any = '') -> Any: ...
def first_step(learn: Any, dl: Any, i: Any, average: Any, precision: Any) -> set[Any]: ...
