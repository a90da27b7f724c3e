"""Checkpoints, early stopping, export. These names are for other wings"""
from .files import Folder, Lock, path_in, read_state, write_state
from .snapshot import host_copy
from .checkpoint import Checkpoint, find, load, save
from .early_stopping import EarlyStopping
from .export import load_model
from .rewind import find_point
