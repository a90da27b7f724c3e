"""Checkpoints, early stopping, export. These names are for other wings"""
from .checkpoint import Checkpoint
from .early_stopping import EarlyStopping
from .export import load_model
