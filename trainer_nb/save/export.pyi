# Written by tools/stubs.py
from typing import Any

def load_model(folder: Any, model: Any = None, device: Any = 'cpu', trusted: Any = False) -> Any: ...
