"""The display, controls, the learning-rate finder, loggers. These names are for other wings"""
from .display import Display
from .controls import Controls
from .lr_find import LRCurve
from .loggers import CSVLogger, JSONLLogger, MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger
