# Written by tools/stubs.py
from typing import Any
from trainer_nb.runs.run import Run

def attach(folder: Any) -> Run: ...
