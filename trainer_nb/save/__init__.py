"""Checkpoints, early stopping, export. These names are for other wings"""
from .states import host_copy, read_state, write_state
from .files import Folder, Lock, find, path_in
from .checkpoint import Checkpoint, load, save
from .program import pack, unpack
from .export import load_learner, load_model, plain_config
from .rewind import find_point
from .watch import EarlyStopping, Monitor, SpikeGuard
