"""Training in several processes. These names are for other subpackages"""
from .accelerate import Accelerate, accelerate_hook
from .world import is_lost
from .launch import ProcessFailed, as_rank, check_devices, end_with_parent, checked_plan
