# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import MainProcessHook

def find_layers(model: Any, patterns: Any = ...) -> dict[Any, Any]: ...
N_BINS: int
EDGE: float
SAMPLE: int
def dead_share(x: Any, dim: Any) -> Any: ...
def portrait(x: Any, dim: Any) -> Any: ...
CHANNELS_FIRST: Any
def unit_dim(m: Any, before: Any) -> Any: ...
def first_float(x: Any) -> Any: ...
MOST: int

class Activations(MainProcessHook):
    patterns: Any
    layers: Any
    thinned: Any
    is_waiting: Any
    modules: Any
    is_blind: Any
    rows: Any
    kept: Any
    every: Any
    live: Any
    at: Any
    handles: Any
    now: Any
    dim: Any
    unique: Any
    in_dry_run: Any
    state_kinds: Any
    def __init__(self, every: Any = 25, layers: Any = ..., *, live: Any = False) -> None: ...
    def before_fit(self, learn: Any) -> None: ...
    def before_step(self, learn: Any) -> None: ...
    def after_step(self, learn: Any) -> None: ...
    def after_cancel(self, learn: Any) -> None: ...
    def after_fit(self, learn: Any) -> None: ...
    def state_dict(self) -> Any: ...
    def take_state(self, state: Any) -> None: ...
    @property
    def values(self) -> dict[Any, Any]: ...
    def plot(self) -> Any: ...
    def under_plot(self, most: Any = 8) -> Any: ...
TURNS: Any
def strip_png(bins: Any) -> bytes: ...
def spread(n: Any, most: Any) -> list[Any]: ...

class Picture:
    shown: Any
    width: Any
    height: Any
    lims: Any
    reach: Any
    v: Any
    at: Any
    layers: Any
    left: Any
    strip: Any
    side: Any
    gap: Any
    row: Any
    top: Any
    bottom: Any
    def __init__(self, watched: Any, most: Any = 12) -> None: ...
    def figure(self) -> Any: ...
BLOCKS: str
