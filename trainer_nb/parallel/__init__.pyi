# Written by tools/stubs.py
from .accelerate import Accelerate as Accelerate
from .accelerate import accelerate_hook as accelerate_hook
from .group import is_lost as is_lost
from .launch import ProcessFailed as ProcessFailed
from .launch import as_rank as as_rank
