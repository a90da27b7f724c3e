# Written by tools/stubs.py
from typing import Any
from trainer_nb.loop.history import History
from trainer_nb.loop.hook_table import Hooked
from trainer_nb.loop.plan import StepState
from trainer_nb.loop.world import World
from trainer_nb.show.display import Display

INNER: Any

class Components(Hooked):
    device: Any
    fitting: Any
    stopped: Any
    running: Any
    training: Any
    stepped: Any
    opts_train: Any
    cancelled: Any
    n_batches: Any
    requests: Any
    on_gradients: Any
    on_losses: Any
    generator: Any
    loss_params: Any
    batch: Any
    pred: Any
    loss: Any
    result: Any
    has_pred: Any
    closes: Any
    metrics: Any
    objects: Any
    display: Display
    state: StepState
    history: History
    world: World
    opt_name: Any
    opt_names: Any
    model: Any
    loss_fn: Any
    bs: Any
    seed: Any
    config: Any
    train_step: Any
    eval_step: Any
    train_dl: Any
    valid_dl: Any
    @property
    def lr(self) -> Any: ...
    @lr.setter
    def lr(self, value: Any) -> None: ...
    @property
    def epochs(self) -> Any: ...
    @epochs.setter
    def epochs(self, value: Any) -> None: ...
    def __init__(self, model: Any, train_dl: Any = None, valid_dl: Any = None, *, loss_fn: Any = None, train_step: Any = None, eval_step: Any = None, optim: Any = None, lr: Any = None, metrics: Any = ..., hooks: Any = ..., bs: Any = 64, device: Any = None, display: Any = True, seed: Any = None, config: Any = None, state: Any = ...) -> None: ...
    def is_own(self, name: Any) -> bool: ...
    def clear_batch(self) -> None: ...
    @property
    def opts(self) -> dict[Any, Any]: ...
    @opts.setter
    def opts(self, value: Any) -> None: ...
    @property
    def opt(self) -> Any: ...
    @opt.setter
    def opt(self, value: Any) -> None: ...
    def check_use(self) -> None: ...
    def check_thread(self) -> None: ...
    def check_parts(self) -> None: ...
    @property
    def is_fitting(self) -> bool: ...
    @property
    def position(self) -> str: ...
    @property
    def bounds(self) -> dict[Any, Any]: ...
    @property
    def valid_idx(self) -> int: ...
    @property
    def is_last_batch(self) -> bool: ...
    def cancel(self, what: Any) -> None: ...
def move(learn: Any, device: Any) -> None: ...
def check_shapes(learn: Any, what: Any) -> Any: ...
def refuse_script(model: Any, what: Any) -> Any: ...
def unsaved_buffers(module: Any) -> dict[Any, Any]: ...
def set_buffers(module: Any, values: Any) -> list[Any]: ...
def is_expanded(t: Any) -> bool: ...
