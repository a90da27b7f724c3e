"""What a fit is asked for, how far training has come, and when it ends"""

import math, operator, os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

def as_count(name: str, value: object) -> int:
    "Return `value` as an int ≥ 1; raises TypeError or ValueError about `name`"
    try: value = operator.index(None if isinstance(value, bool) else value)
    except TypeError: raise TypeError(f'{name} is {value!r}: expected a whole number') from None
    if value < 1: raise ValueError(f'{name} is {value}: expected 1 or more')
    return value

def as_rate(name: str, value: object) -> Any:
    "Return a finite number or 0-d tensor above 0; raises TypeError or ValueError"
    if isinstance(value, (bool, str)) or not hasattr(value, '__float__'):
        raise TypeError(f'{name} is {value!r}: expected a number above 0')
    if not 0 < float(value) < math.inf:
        raise ValueError(f'{name} is {value}: expected a finite number above 0')
    return value

def fit_rates(lr: Any, opts: Mapping) -> dict:
    "Return the learning rates of a fit by names of optimizers; raises TypeError or ValueError"
    if lr is None: return {}
    if callable(lr) or lr and isinstance(lr, Mapping) and '' in opts.keys() - lr.keys(): raise ValueError(
        f'lr is {lr}: expected a number above 0, the rate of the param group with the largest one, to which the '
        'others keep their ratio; rates by names of parameters make the param groups of a new learner, Learner(lr=...)')
    rates = lr if isinstance(lr, Mapping) else dict.fromkeys(opts, lr)
    if not rates or rates.keys() - opts.keys():
        raise ValueError(f'lr is {lr}: expected a number above 0, or a dict of them by optimizer ({list(opts)})')
    return {name: as_rate('lr', o) for name, o in rates.items()}

@dataclass(slots=True)
class StepState:
    "Counters of what training has done: epochs, batches, optimizer steps, samples"
    epoch: int = 0             # finished epochs
    batch_idx: int = 0         # finished training batches of this epoch
    optimizer_step: int = 0    # real optimizer steps
    samples_seen: int = 0      # training samples, in all processes
    grad_accum_steps: int = 1  # training batches in an optimizer step
    num_processes: int = 1     # processes that train together

    def is_grad_accum_boundary(self,
        is_last_batch: bool = False,  # a last window may hold fewer batches
    ) -> bool:
        "Return whether the current batch completes an accumulation window"
        return is_last_batch or (self.batch_idx + 1) % self.grad_accum_steps == 0

    def increment_batch(self,
        n_samples: int,        # size of the batch, in all processes
        stepped: bool = True,  # whether an optimizer stepped
    ) -> None:
        "Count a finished training batch"
        self.batch_idx += 1
        self.samples_seen += n_samples
        self.optimizer_step += stepped

    def reset_epoch(self) -> None:
        "Open an epoch"
        self.batch_idx = 0

RESUMABLE = 'stop', 'interrupt'     # `learn.cancelled` after a fit that can be resumed
BOUNDS = ('end_epoch', 'end_step', 'valid_every', 'valid_every_epochs', 'next_valid', 'first_row', 'first_batch')

@dataclass
class Plan:
    "What a fit was asked for, and where it validates and ends, as `StepState` counts"
    n_epochs: int | None = None         # epochs to train, or
    max_steps: int | None = None        # optimizer steps to make
    valid_every: int | None = None      # optimizer steps between validation passes
    valid_every_epochs: int | None = None   # epochs between validation passes; None: 1
    valid_first: bool = False           # a validation pass before the first step
    hooks: tuple = ()                   # hooks of this fit alone
    resume: bool | str = False          # finish what a checkpoint began: then the bounds are totals
    on_interrupt: str = 'raise'         # 'raise' or 'return'
    end_epoch: int | None = None
    end_step: int | None = None
    next_valid: int | None = None       # optimizer step of the next validation pass
    first_row: int = 0                  # epochs and training batches in the history before this fit
    first_batch: int = 0

    def check(self, valid_dl: object = None) -> None:
        "Refuse what does not fit together; raises ValueError"
        if (self.n_epochs is None) == (self.max_steps is None):
            raise ValueError('fit takes either n_epochs or max_steps')
        for name in 'n_epochs', 'max_steps', 'valid_every', 'valid_every_epochs':
            if (n := getattr(self, name)) is not None: setattr(self, name, as_count(name, n))
        for name in 'valid_every', 'valid_every_epochs', 'valid_first':
            if getattr(self, name) and valid_dl is None: raise ValueError(f'{name} needs a valid_dl')
        if self.on_interrupt not in ('raise', 'return'):
            raise ValueError(f"on_interrupt is {self.on_interrupt!r}: expected 'raise' or 'return'")
        resume = self.resume
        if resume is not None and not isinstance(resume, (bool, str, os.PathLike)) or resume == '':
            raise ValueError(f'resume is {resume!r}: expected True, False or the path of a checkpoint')

    def begin(self, state: StepState, n_rows: int = 0, n_batches: int = 0) -> None:
        "Fix the bounds, once `state` is what the fit begins with; rows and batches of the history so far"
        if not self.resume: self.first_row, self.first_batch = n_rows, n_batches
        done = StepState() if self.resume else state
        if self.n_epochs is not None: self.end_epoch = self.n_epochs + done.epoch
        if self.max_steps is not None: self.end_step = self.max_steps + done.optimizer_step
        if self.next_valid is None: self.plan_valid(state)

    def plan_valid(self, state: StepState) -> None:
        "Choose the next validation pass besides those at the epochs' ends"
        self.next_valid = None if self.valid_every is None else state.optimizer_step + self.valid_every

    @property
    def next_due(self) -> float:
        "The optimizer step at which the fit ends or validates, whichever is first"
        return min((o for o in (self.end_step, self.next_valid) if o is not None), default=math.inf)

    def wants_valid(self, state: StepState) -> bool:
        "Return whether a validation pass is due between two training batches"
        return self.next_valid is not None and state.optimizer_step >= self.next_valid

    def has_steps(self, state: StepState) -> bool:
        "Return whether the last optimizer step is still ahead"
        return self.end_step is None or state.optimizer_step < self.end_step

    def is_ahead(self, state: StepState) -> bool:
        "Return whether another epoch is due"
        return (self.end_epoch is None or state.epoch < self.end_epoch) and self.has_steps(state)

    def validates(self, state: StepState) -> bool:
        "Return whether the open epoch ends with a validation pass; the last one always does"
        epoch = state.epoch + 1
        is_due = epoch == self.end_epoch or not epoch % (self.valid_every_epochs or 1)
        return is_due or not self.has_steps(state)

    def state_dict(self) -> dict[str, int | None]:
        "Return the bounds"
        return {k: getattr(self, k) for k in BOUNDS}

    def load_state_dict(self, state: Mapping, bounds: bool = True) -> None:
        "Take over the progress of another fit, with its `bounds` or only with its next validation"
        if bounds: vars(self).update({k: state[k] for k in BOUNDS})
        elif self.valid_every == state['valid_every']: self.next_valid = state['next_valid']
