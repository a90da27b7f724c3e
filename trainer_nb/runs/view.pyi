# Written by tools/stubs.py
from typing import Any

def status_line(name: Any, status: Any, history: Any, first: Any = 0) -> str: ...

class View:
    cell: Any
    seen: Any
    gone_at: Any
    drawn_at: Any
    advice: Any
    branch: Any
    folder: Any
    tail: Any
    look: Any
    areas: Any
    row: Any
    html: Any
    plot: Any
    thread: Any
    over: Any
    drawing: Any
    telling: Any
    asked: Any
    error: Any
    is_closed: Any
    budget: Any
    name: Any
    first_row: Any
    first_batch: Any
    has_metrics: Any
    box: Any
    tick_s: Any
    gone_s: Any
    idle_s: Any
    def __init__(self, folder: Any, tail: Any, look: Any = None) -> None: ...
    def show(self) -> Any: ...
    def line(self, status: Any) -> Any: ...
    def finish(self) -> None: ...
    def parts(self, status: Any) -> Any: ...
    def click(self, label: Any) -> Any: ...

class QuickClicks:
    n: Any
    before: Any
    lock: Any
    interval_s: Any
    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...
