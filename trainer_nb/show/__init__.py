"""The display, controls, the learning-rate finder, loggers. These names are for other wings"""
from .output import STATES, Area, Budget, Drawn, front_end, html_stale, progress
from .status import outcome, planned
from .display import Display, Log
from .controls import ButtonRow, Controls, pause, scale_lr, unpause
from .lr_find import LRCurve
from .batch_size import BatchSizes
from .loggers import (
    CSVLogger, JSONLLogger, MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger, flatten
)
