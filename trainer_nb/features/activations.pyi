# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.hooks import MainProcessHook

def find_layers(model: Any, patterns: Any = ...) -> dict[Any, Any]: ...
N_BINS: int
EDGE: float
SAMPLE: int
def glance(x: Any, dim: Any) -> Any: ...
def portraits(glances: Any) -> Any: ...
CHANNELS_FIRST: Any
def unit_dim(m: Any) -> Any: ...
def own_names(m: Any) -> list[str]: ...
def first_float(x: Any) -> Any: ...
MOST: int

class Activations(MainProcessHook):
    patterns: Any
    layers: Any
    thinned: Any
    is_waiting: Any
    own: Any
    dims: Any
    is_blind: Any
    rows: Any
    every: Any
    live: Any
    at: Any
    on_host: Any
    drawn: Any
    modules: Any
    handles: Any
    dim: Any
    now: Any
    kept: Any
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
def reach(bins: Any) -> int: ...
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
