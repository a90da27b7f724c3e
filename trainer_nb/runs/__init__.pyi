# Written by tools/stubs.py
from .run import Run as Run
from .start import attach as attach
from .table import runs as runs
from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .sweep import Trials as Trials
from .sweep import sweep as sweep
from .engine import Ray as Ray
from .engine import Slurm as Slurm
from .shell import main as main
