# Written by tools/stubs.py
from typing import Any

class Finding:
    name: Any
    seen: Any
    remedy: Any
    def __init__(self, name: Any, seen: Any, remedy: Any) -> None: ...

class Diagnosis:
    findings: Any
    checked: Any
    left_out: Any
    notes: Any
    time_s: Any
    def __contains__(self, name: Any) -> Any: ...
    def __len__(self) -> Any: ...
    @property
    def summary(self) -> str: ...
    def __init__(self, findings: Any, checked: Any, left_out: Any = ..., time_s: Any = 0.0, notes: Any = ...) -> None: ...
