# Written by tools/stubs.py
from .display import Display as Display
from .controls import Controls as Controls
from .lr_find import LRCurve as LRCurve
from .loggers import CSVLogger as CSVLogger
from .loggers import JSONLLogger as JSONLLogger
from .loggers import MLflowLogger as MLflowLogger
from .loggers import TensorBoardLogger as TensorBoardLogger
from .loggers import TrackioLogger as TrackioLogger
from .loggers import WandbLogger as WandbLogger
