"""Hooks that change how a model is trained. These names are for other wings"""
from .gradients import GradAccum, GradClip, GradNorm
from .amp import AMP
from .ema import EMA, SWA
from .nan_guard import NaNGuard
from .freeze import Freeze, FreezeBN, Unfreeze
from .schedules import LRScheduler, OneCycle, Schedule, WarmupCosine, combine, cosine, exponential, linear, warmup
from .compile import Compile
from .profile import Profile
from .activations import Activations
