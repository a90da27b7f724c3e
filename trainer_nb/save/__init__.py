"""Checkpoints, early stopping, export. These names are for other wings"""
from .states import host_copy, read_state, write_state
from .files import Folder, Lock, find, path_in
from .checkpoint import Checkpoint, load, save
from .early_stopping import EarlyStopping
from .program import pack, unpack
from .export import exported_parts, load_model, plain_config
from .rewind import find_point
from .spike_guard import SpikeGuard
from .watch import Monitor
