"""Batches, results and models, drawn and described. These names are for other wings"""
from .batch import BatchView
from .results import Results, SampleView
from .confusion import Confusion
from .report import Report
from .summary import Summary
from .doctor import Diagnosis
from .album import Samples
