"""Training in the background: a run is a folder. These names are for other subpackages"""
from .run import Run, attach
from .trace import Fingerprint
from .diff import diff
from .table import main, runs
from .compare import Comparison, compare
from .sweep import Trials, sweep
from .engine import Ray, Slurm
