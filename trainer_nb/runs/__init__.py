"""Training in the background: a run is a folder. These names are for other wings"""
from .run import Run, attach
from .trace import Fingerprint
from .diff import diff
from .command import main
from .table import runs
from .compare import Comparison, compare
from .sweep import Trials, sweep
from .engine import Ray, Slurm
