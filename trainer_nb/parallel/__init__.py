"""Training in several processes. These names are for other wings"""
from .accelerate import Accelerate
from .launch import ProcessFailed
