"""Checkpoints, early stopping, export. These names are for other subpackages"""
from .files import BadCheckpoint, Folder, Lock, host_copy, read_checkpoint, read_state, write_state
from .checkpoint import Checkpoint, load, save
from .program import load_packed, pack
from .export import load_learner, load_model
from .watch import EarlyStopping, Monitor, SpikeGuard
