# Written by tools/stubs.py
from typing import Any

def find_point(folder: Any, epoch: Any = None, step: Any = None, run: Any = None) -> Any: ...
