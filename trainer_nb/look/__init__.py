"""Batches, results and models, drawn and described. These names are for other subpackages"""
from .samples import BatchView, Samples, SampleView
from .results import Confusion, Report, Results
from .data_map import DataMap, Review, TrackSamples
from .summary import Summary
from .doctor import Diagnosis
