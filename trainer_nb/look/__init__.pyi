# Written by tools/stubs.py
from .batch import BatchView as BatchView
