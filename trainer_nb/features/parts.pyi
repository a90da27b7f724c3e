# Written by tools/stubs.py
from typing import Any

class Start:
    buffers: Any
    n: Any
    rng_state: Any
    def __init__(self, learn: Any) -> None: ...
    def put_back(self) -> None: ...

class MicroBatches:
    batches: Any
    is_sum: Any
    n: Any
    losses: Any
    weights: Any
    ns: Any
    def __init__(self, learn: Any, most: Any) -> None: ...
    def open(self, learn: Any) -> bool: ...
    def scaled(self, learn: Any, loss: Any, n: Any) -> Any: ...
    def close(self, learn: Any, n: Any) -> bool: ...
