"""The display, controls, the learning-rate finder, loggers. These names are for other subpackages"""
from .display import (
    STATES, Budget, Display, Log, Notebook, Status, format_pace, front_end, planned, progress
)
from .controls import ButtonRow, Controls, pause, scale_lr, unpause
from .lr_find import LRCurve
from .batch_size import BatchSizes
from .loggers import (
    CSVLogger, JSONLLogger, MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger, flatten
)
