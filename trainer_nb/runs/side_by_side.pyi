# Written by tools/stubs.py
from typing import Any
from trainer_nb.runs.comparison import Comparison

class CompareView:
    drawn_at: Any
    drawing: Any
    widget: Any
    comparison: Any
    budget: Any
    handles: Any
    thread: Any
    over: Any
    error: Any
    token: Any
    cell: Any
    in_marimo: Any
    tick_s: Any
    idle_s: Any
    def __init__(self, comparison: Any) -> None: ...
    def show(self) -> None: ...
    def drawn(self, is_stored: Any = False) -> str: ...
    def finish(self) -> None: ...
def compare(*what: Any, metric: Any = None, x: Any = 'step', mode: Any = None) -> Comparison: ...
