"""Hooks that change how a model is trained. These names are for other subpackages"""
from .gradients import AMP, GradAccum, GradClip, GradNorm, NaNGuard
from .weights import EMA, SWA, Freeze, FreezeBN
from .schedules import LRScheduler, OneCycle, Schedule, WarmupCosine, combine, cosine, exponential, linear, warmup
from .speed import Compile, Profile
from .activations import Activations
