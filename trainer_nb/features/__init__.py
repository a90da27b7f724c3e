"""Hooks that change how a model is trained. These names are for other wings"""
from .gradients import AMP, GradAccum, GradClip, GradNorm, NaNGuard
from .ema import EMA, SWA
from .freeze import Freeze, FreezeBN, Unfreeze
from .schedule import OneCycle, Schedule, WarmupCosine, combine, cosine, exponential, linear, warmup
from .lr_scheduler import LRScheduler
from .compile import Compile
from .profile import Profile
from .activations import Activations
