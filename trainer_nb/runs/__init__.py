"""Training in the background: a run is a folder. These names are for other wings"""
from .run import Run
from .start import attach
from .table import runs
from .comparison import Comparison
from .side_by_side import compare
from .sweep import Trials, sweep
from .slurm import Slurm
from .on_ray import Ray
from .shell import main
