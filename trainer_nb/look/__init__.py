"""Batches, results and models, drawn and described. These names are for other wings"""
from .batch import BatchView
