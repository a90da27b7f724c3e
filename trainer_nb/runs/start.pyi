# Written by tools/stubs.py
from typing import Any
from trainer_nb.runs.run import Run

FIT: Any
def attach(folder: Any) -> Run: ...
