# Written by tools/stubs.py
from .files import Folder as Folder
from .files import Lock as Lock
from .files import path_in as path_in
from .files import read_state as read_state
from .files import write_state as write_state
from .snapshot import host_copy as host_copy
from .checkpoint import Checkpoint as Checkpoint
from .checkpoint import find as find
from .early_stopping import EarlyStopping as EarlyStopping
from .export import load_model as load_model
from .rewind import find_point as find_point
