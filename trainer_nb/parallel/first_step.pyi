# Written by tools/stubs.py
from typing import Any
from trainer_nb.base.torch_private import DispatchMode

class Constant(DispatchMode):
    OFF: Any
    ENTRY: Any
    def value(self, name: Any, given: Any, res: Any) -> Any: ...
def first_step(learn: Any, dl: Any, average: Any, precision: Any) -> set[Any]: ...
