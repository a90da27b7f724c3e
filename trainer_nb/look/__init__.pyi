# Written by tools/stubs.py
from .batch import BatchView as BatchView
from .results import Results as Results
from .results import SampleView as SampleView
from .confusion import Confusion as Confusion
from .confusion import Report as Report
from .summary import Summary as Summary
from .doctor import Diagnosis as Diagnosis
