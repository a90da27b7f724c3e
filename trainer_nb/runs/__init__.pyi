# Written by tools/stubs.py
from .run import Run as Run
from .start import attach as attach
from .table import runs as runs
from .shell import main as main
