# Written by tools/stubs.py
from .checkpoint import Checkpoint as Checkpoint
from .early_stopping import EarlyStopping as EarlyStopping
from .export import load_model as load_model
