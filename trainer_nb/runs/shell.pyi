# Written by tools/stubs.py
from typing import Any

def main(args: Any = None) -> int: ...
