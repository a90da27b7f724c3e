# Written by tools/stubs.py
from typing import Any

def noted(folder: Any) -> dict[Any, Any]: ...
