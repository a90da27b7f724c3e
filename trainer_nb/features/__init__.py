"""Hooks that change how a model is trained. These names are for other wings"""
from .gradients import GradAccum, GradClip, GradNorm
from .amp import AMP
from .weights import EMA, SWA, Freeze, FreezeBN
from .nan_guard import NaNGuard
from .schedules import LRScheduler, OneCycle, Schedule, WarmupCosine, combine, cosine, exponential, linear, warmup
from .speed import Compile, Profile
from .activations import Activations
