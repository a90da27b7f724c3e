# Written by tools/stubs.py
from .accelerate import Accelerate as Accelerate
from .launch import ProcessFailed as ProcessFailed
