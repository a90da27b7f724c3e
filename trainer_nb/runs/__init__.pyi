# Written by tools/stubs.py
from .run import Run as Run
from .start import attach as attach
from .table import runs as runs
from .comparison import Comparison as Comparison
from .side_by_side import compare as compare
from .sweep import Trials as Trials
from .sweep import sweep as sweep
from .slurm import Slurm as Slurm
from .on_ray import Ray as Ray
from .shell import main as main
