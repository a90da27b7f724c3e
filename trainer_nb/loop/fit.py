"""A pass over data, and a fit that runs passes epoch by epoch"""

import math, os, re, signal, threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from itertools import chain, takewhile
from time import perf_counter
from types import GeneratorType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ..base import (
    check_kinds, described, drop_locals, format_bytes, is_oom, memory_in_use, note_place, to_device
)
from ..data import Pass, RNG_STATE_KINDS, each, end_workers, is_warm, length, rng_states, set_rng_states, warm_up
from .columns import COLUMNS_KINDS, Accumulator
from .hooks import STEPS, Calls, Cancel, CancelEpoch, CancelFit, CancelStep, GoBack
from .metrics import check_sets
from .mistakes import check_first, check_untrained
from .optim import check_names, check_shared, lr_names, named_parts, set_lr, trained
from .plan import RESUMABLE, Plan, StepState
from .snapshot import get_modes, load_object_states, object_states, set_buffers, set_modes, set_opt_modes, switch
from .steps import DefaultResult, check_loss, is_number, is_sum, kept, loss_weight


class TrainingInterrupted(KeyboardInterrupt):
    "Training was interrupted between two batches; `learn.resume()` continues it"
    def _render_traceback_(self): return [f'{type(self).__name__}: {self}']     # of IPython


class Interrupts:
    """Handle SIGINT in a `with` block: the first is a request to stop, unless `at_once`; further ones raise

    They raise within `open()`; elsewhere, where something is restored, only after `patience` seconds.
    """
    patience = 5.
    def __init__(self, learn: Any, at_once: bool = False):
        self.learn, self.n, self.n_asked = learn, 0, 0 if at_once else 1
        self.is_open, self.since = False, perf_counter()

    def __enter__(self) -> 'Interrupts':
        is_main = threading.current_thread() is threading.main_thread()
        self.pid, self.takes = os.getpid(), is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if self.takes: self.old = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type | None, *args: object) -> None:
        if self.takes: signal.signal(signal.SIGINT, signal.SIG_DFL if self.old is None else self.old)
        if self.n > self.n_asked == 0 and kind is None: raise KeyboardInterrupt

    def _handle(self, *args):
        if os.getpid() != self.pid: return      # a worker process
        self.n += 1
        if self.n <= self.n_asked: self.learn.requests.append('interrupt')
        elif self.is_open or perf_counter() - self.since > self.patience: self._raise()

    def _raise(self):
        self._set(False)        # cleanup starts where the exception is raised
        raise KeyboardInterrupt

    def _set(self, is_open):
        self.is_open, self.since = is_open, perf_counter()
        if is_open and self.n > self.n_asked: self._raise()

    @contextmanager
    def open(self, is_open: bool = True) -> Iterator[None]:
        "Allow an interrupt at any line of a `with` block; with False, inside such a block, at its end"
        self._set(is_open)
        try: yield
        finally: self._set(not is_open)


class Phase:
    """One pass over one loader, and all that belongs to its current batch

    While it is open, `learn.model`, `learn.batch`, `learn.loss` ... are its own.
    """
    training = False        # whether its losses train
    is_last = False         # whether the batch is the last one of an epoch

    def __init__(self, pass_: Pass | None = None):
        self.pass_ = pass_                              # resumable; None: a phase that runs no batches
        self.learn: Any = None                          # the learner, while it is open
        self.sums: Accumulator | None = None            # of its losses and metrics
        self.of_set = ''                                # name of the validation set that the batch is of
        self.below: Phase | None = None                 # in which it was opened
        self.model: nn.Module | None = None             # that the steps call, and their loss function, as hooks
        self.loss_fn: Callable | None = None            # chose them
        self.at: dict[str, tuple] = {}                  # event → calls of hooks
        self.do: dict[str, Callable] = {}               # 'do_step' ... → the step within its hooks; 'step': the
                                                        # user's or the library's own, a function of the batch
        self.is_default = False                         # it is the library's own
        self.default: DefaultResult | None = None       # makes its result
        self.groups: list[tuple[str, dict]] = []        # column of a learning rate, its param group
        self.next_due = math.inf                        # optimizer step at which something is due
        self.recorded: dict[str, tuple] = {}            # by `learn.record` for this batch: (value, has a mean)
        self.n = self.total = 0                         # samples of the batch: on this rank, on all ranks
        self.stepped = False                            # whether an optimizer stepped
        self.in_eval: list[nn.Module] | None = None     # modules in evaluation mode when it was left, or covered
        self.clear()

    def clear(self) -> None:
        "Forget the batch, so that no tensor outlives it"
        self.batch = self.pred = None                   # on the device; what the model or the step returned
        self.loss: Tensor | None = None
        self.result: Mapping | None = None              # of the step; None also while it yields losses
        self.weight: Any = None                         # of the loss, number or 0-d tensor
        self.has_pred = False                           # whether `after_pred` was fired
        self.generator: GeneratorType | None = None     # of a step that yields losses
        self.opt_names: tuple[str, ...] = ()            # optimizers that step after the loss

    def release(self) -> None:
        "Drop what belongs to the learner; the pass and its values stay"
        self.clear()
        self.learn = self.model = self.loss_fn = self.below = self.default = None
        self.at, self.do, self.groups, self.recorded = {}, {}, [], {}

    # opened and closed

    @contextmanager
    def opened(self, learn: Any) -> Iterator['Phase']:
        "Put it on the learner's stack in a `with` block: the hooks choose its model, modules switch their modes"
        self.learn, self.below, learn.phase = learn, learn.phase, self
        found, in_eval = {}, self.in_eval
        try:
            self._bind()
            modules = dict.fromkeys([*trained(learn), *(o for o in (self.model, self.loss_fn) if isinstance(o, nn.Module))])
            found |= get_modes(*modules)
            if self.below.training: self.below.in_eval = [m for m, is_training in found.items() if not is_training]
            switch(found, self.training, *modules)
            if self.training: set_modes(dict.fromkeys(learn.fitting.kept if in_eval is None else in_eval, False))
            set_opt_modes(learn.opts.values(), self.training)
            with torch.set_grad_enabled(self.training): yield self
        except Exception as e:
            if not self.training and 'does not require grad' in str(e): e.add_note(
                'validation and prediction run without gradients; '
                'a step that needs them computes under `with torch.enable_grad():`')
            if not isinstance(e, Cancel) and not _is_placed(e):
                learn.explain(e)
                note_place(e, f'raised {self.place()}', self.batch)
            raise
        finally:
            learn.phase, self.in_eval = self.below, [m for m in found if not m.training]
            set_modes(found)
            set_opt_modes(learn.opts.values(), learn.training)
            self.release()

    def _bind(self):
        "Choose the model, and bind what the loop calls"
        learn = self.learn
        calls, self.model, self.loss_fn = learn.calls, learn.own_model, learn.own_loss_fn
        for hook in calls.hooks:
            self.model = hook.model_for(learn, self.model)
            self.loss_fn = hook.loss_for(learn, self.loss_fn)
        self.at = calls.at
        self.do = {name: calls.wrap(name, getattr(learn, name), learn) for name in STEPS}
        self.do['step'], is_own = learn.step_of(self.training)
        self.is_default, self.default = not is_own, DefaultResult(self.loss_fn)
        groups = chain.from_iterable(o.param_groups for o in learn.opts.values())
        self.groups = [*zip(lr_names(learn.opts), groups)]

    def place(self) -> str:
        "Say in words where it is"
        learn = self.learn
        fit = learn.fitting
        if fit is not None and self in (fit.train, fit.valid): return learn.position
        if self.pass_ is None: return 'after 0 batches' if fit is None else learn.position
        return f'after {self.pass_.n} of {length(self.pass_.dl) or "?"} batches'

    # the batches

    def run(self,
        batches: Iterable,          # what the loader yields
    ) -> bool:                      # whether all are done; False: something is due between two
        "Process batches: forward, backward, step and count"
        learn, at, forward = self.learn, self.at, self.do['do_step']
        for item in batches:
            losses = {}
            try:
                self.begin(item)
                for f in at['before_step']: f(learn)
                while self.result is None:          # until the step has returned; a yielded loss leaves it None
                    forward()
                    self.receive()
                    if self.loss is None: break
                    for f in at['after_loss']: f(learn)
                    losses['loss' if self.generator is None else f'loss_{self.opt_names[0]}'] = kept(self.loss)
                    if self.training:
                        self.backward()
                        self.step(self.opt_names)
                self.add(losses)
            except CancelStep: self.drop()
            except (MemoryError, RuntimeError) as e:
                if is_oom(e): self.make_room(e)
                raise
            self.count()
            for f in at['after_step']: f(learn)
            self.clear()
            if learn.requests or learn.state.optimizer_step >= self.next_due: return False
        return True

    def begin(self, item: object) -> None:
        "Move a batch to the device, and count its samples"
        learn = self.learn
        dl, self.stepped = self.pass_.dl, False
        if self.pass_.adapter.sets:
            [(self.of_set, item)] = item.items()
            dl = self.pass_.adapter.sets[self.of_set]
        self.n, self.total = learn.world.count(dl, self.pass_.n, item)
        self.batch = to_device(item, learn.device)
        self.opt_names = tuple(learn.opts)

    def take(self, res: object, opts: Mapping) -> None:
        "Take what the step returned; of a generator what it yields next: an optimizer's name and its loss"
        if type(res) is GeneratorType: self.generator = res
        if self.generator is None:
            self.result, is_mapping = res, isinstance(res, Mapping)
            self.loss = res.get('loss') if is_mapping else None
            if self.loss is None: _check_result(res, self.training)
            if not self.has_pred: self.pred = res.get('pred')
            return
        try: item = next(self.generator)
        except StopIteration as e:
            self.generator = self.loss = None
            self.result = e.value or {}
            self.pred = self.result.get('pred')
            if 'loss' in self.result: raise ValueError(
                "the step yields losses and returns a 'loss' too: leave it out of the dict") from None
        else:
            name, self.loss = _checked_yield(item, opts)
            check_loss(self.loss, self.training)
            self.opt_names = name,

    def receive(self) -> None:
        "Check what the step left, read the weight of its loss, and fire `after_pred` if that has not happened"
        learn = self.learn
        if self.generator is None:
            if self.result is None: raise TypeError(
                f'do_step of {", ".join(c.hook.name for c in self.at["do_step"]) or type(learn).__name__} left no '
                'result: call nxt(), or set learn.loss and learn.result')
            if not self.has_pred:
                for f in self.at['after_pred']: f(learn)
        self.weight = loss_weight(self.result, self.n)

    def check_any(self, name: str) -> None:
        "Raise ValueError if the loader of a name yielded no batch"
        if not self.pass_.n: raise ValueError(
            f'{name} yielded no batch: is it empty, or a generator that was used up?')

    def add(self, losses: Mapping) -> None:
        "Add the values of the batch to the columns"
        learn = self.learn
        if self.sums is None: return
        rates = {name: o.clone() if isinstance(o := g['lr'], Tensor) else o for name, g in self.groups}
        self.sums.add(losses, self.result, self.result.get('n', self.n), self.weight, self.recorded, rates, self.of_set,
                      counts=self.n > 0 or learn.world.size == 1)
        self.recorded = {}

    def count(self) -> None:
        "Count a finished batch"
        self.pass_.n += 1

    def drop(self) -> None:
        "Forget a batch that was cancelled"
        learn = self.learn
        self.recorded = {}
        learn.cancel('step')

    def make_room(self, e: BaseException) -> None:
        "Release a batch that ran out of memory, and note in the error what was in use and what helps"
        learn = self.learn
        used, limit = memory_in_use(learn.device)
        text = 'memory ran out'
        if self.batch is not None: text += f' with a batch {described(self.batch)}'
        if used: text += f'; in use {format_bytes(used)}' + (f' of {format_bytes(limit)}' if limit else '')
        smaller = 'smaller batches, whose size learn.find_batch_size() finds, with GradAccum(n) for the same steps'
        if not self.training: smaller = 'smaller batches in valid_dl' if learn.fitting is not None else 'smaller batches'
        e.add_note(f'{text}. What helps: {smaller}; AMP(), which halves most activations; '
                   'torch.utils.checkpoint in large blocks of the model')
        if self.training: learn.clear_grads()
        self.clear()
        drop_locals(e)

    # its values

    def begin_sums(self, learn: Any) -> 'Phase':
        "Make the accumulator of losses and metrics"
        sets, (_, is_own) = self.pass_.adapter.sets or ('',), learn.step_of(self.training)
        if sets != ('',): check_sets(sets, learn.metrics)
        named = tuple if is_own else lambda: learn.batch.keys() if isinstance(learn.batch, Mapping) else ()
        columns = learn.history.columns if self.training else None
        is_summed = not is_own and is_sum(learn.own_loss_fn)
        may_miss = self.training and learn.valid_dl is not None
        self.sums = Accumulator(learn.metrics, learn.device, columns, sets, is_summed, may_miss, named)
        return self

    def state_dict(self) -> dict:
        "Return how far it has come"
        return {'pass': self.pass_.state_dict(), 'sums': self.sums.state_dict()}

    def load_state_dict(self, state: Mapping, device: torch.device) -> None:
        "Restore a state"
        self.pass_.load_state_dict(state['pass'])
        self.sums.load_state_dict(to_device(state['sums'], device))

def _is_placed(e): return any(re.match('raised (after|before|in epoch|in a dry)', o) for o in getattr(e, '__notes__', ()))

def _check_result(result, training):    # raises TypeError or KeyError
    "Check that a step returned a dict, and in training a loss"
    if not isinstance(result, Mapping): raise TypeError(
        f'the step returned a {type(result).__name__}: '
        "expected a dict with at least 'loss', a 0-d tensor")
    if training: raise KeyError(
        f"the step returned a dict without 'loss'; it has {', '.join(map(repr, result)) or 'nothing'}")

def _checked_yield(item, opts):
    "Return the name of an optimizer and its loss, which a step yielded"
    if not (isinstance(item, tuple) and len(item) == 2): raise TypeError(
        f"the step yielded a {type(item).__name__}: expected (name of an optimizer, loss), as in `yield 'd', d_loss`")
    name = item[0]
    if name not in opts and '' in opts: raise ValueError(
        f'the step yielded for optimizer {name!r}, and the only one has no name: pass optim={{{name!r}: ...}}')
    check_names('the step', [name], opts)
    return item


class Training(Phase):
    "A pass over the training data"
    training = True

    @property
    def is_last(self) -> bool:
        "Whether the batch is the last one; if the length is unknown or uncertain, this reads the next one"
        pass_ = self.pass_
        if not pass_.is_sized: return pass_.at_end
        return pass_.adapter.length is not None and pass_.n + 1 >= pass_.adapter.length

    def backward(self) -> None:
        "Compute the gradients of the loss; the first batch of all is checked before and after"
        learn = self.learn
        is_first = not learn.state.samples_seen
        if is_first:
            check_first(learn)
            if self.generator is None: check_shared(learn.opts)
        self.do['do_backward'](self.loss)
        if is_first: check_untrained(learn)
        for f in self.at['after_backward']: f(learn)

    def step(self, names: Iterable[str]) -> None:
        "Step optimizers, unless a hook holds one back, and clear their gradients"
        learn = self.learn
        for name in names:
            learn.opt_name = name
            stepped = self.do['do_opt_step']()
            if stepped is None: raise TypeError(
                'do_opt_step returned None: return whether the optimizer stepped; in a hook, what nxt() returned')
            if stepped: self.stepped = True
            self.do['do_zero_grad']()

    def step_with_closure(self) -> None:
        "Step an optimizer that evaluates the loss again; raises ValueError for a step that yields"
        learn = self.learn
        opt = learn.opt
        if self.generator is not None: raise ValueError(
            f'{type(opt).__name__} evaluates the loss again, which a step that yields cannot do: return a dict')
        opt.step(self._evaluate)

    @torch.enable_grad()
    def _evaluate(self):
        "Compute loss and gradients of the batch again, with all hooks up to the step of the optimizer"
        learn = self.learn
        again = copy(self)
        again.clear()
        again.batch, again.opt_names, again.recorded, again.below = self.batch, self.opt_names, {}, self
        learn.phase = again
        try:
            again.do['do_zero_grad']()
            again.do['do_step']()
            again.receive()
            for f in again.at['after_loss']: f(learn)
            again.backward()
            learn.calls.wrap('do_opt_step', lambda: True, learn)()      # they clip, or average over ranks
            if learn.world.size == 1: return again.loss
            w = torch.as_tensor(again.weight, device=learn.device)
            total, weight = learn.world.sum(torch.stack([again.loss.detach()*w, w.to(again.loss.dtype)]))
            return total/weight.clamp(min=1e-20)    # optimizers compare losses: ranks must agree
        finally: learn.phase = self

    def count(self) -> None:
        "Count a finished batch"
        super().count()
        self.learn.state.increment_batch(self.total, self.stepped)

    def drop(self) -> None:
        "Forget a batch that was cancelled, and its gradients"
        learn = self.learn
        for name in learn.opts:
            learn.opt_name = name
            self.do['do_zero_grad']()
        super().drop()


class Validation(Phase):
    "A pass over validation data, or a prediction"
    def receive(self) -> None:
        "The same for a loss that may be a number, as no backward starts from it"
        learn = self.learn
        super().receive()
        if self.loss is None: return
        if not isinstance(self.loss, Tensor) and is_number(self.loss):
            self.loss = torch.tensor(float(self.loss), device=learn.device)
        check_loss(self.loss, training=False)


class Stop(CancelFit):
    "The end of a fit that can be resumed; its argument is the request, 'stop' or 'interrupt'"

def misplaced(e: Cancel) -> RuntimeError:
    "Make the error for a cancel that was raised where there is nothing to end"
    name = type(e).__name__
    return RuntimeError(f'{name} was raised while no {name.removeprefix("Cancel").lower()} was running: '
                        'raise it inside one')

_PHASE_KINDS = (None, {'pass': {str: object}, 'sums': {str: object}})
FIT_KINDS = {'plan': {str: (None, int)}, 'train': _PHASE_KINDS, 'valid': _PHASE_KINDS, 'is_trained': bool,
             'time_s': (int, float), 'in_eval': (None, [str]), 'warm': [str]}
_RANK_KINDS = {'rng_states': RNG_STATE_KINDS, 'train': _PHASE_KINDS, 'valid': _PHASE_KINDS, 'columns': COLUMNS_KINDS,
               'hooks': {str: object}, 'objects': {str: object}, 'buffers': [{str: Tensor}]}

class Fit:
    """One `learn.fit(...)`: a context manager around its epochs

    As it opens, hooks join and SIGINT is handled. However it ends, its exit tells the hooks and restores the
    learner. After a stop it keeps what `resume` needs.
    """
    def __init__(self, plan: Plan | None = None):
        self.plan = plan or Plan()
        self.learn: Any = None              # the learner, while it runs
        self.train: Training | None = None  # the open passes
        self.valid: Validation | None = None
        self.is_trained = False             # the training pass of this epoch is done
        self.state = 'new'                  # then 'running'; 'stopped', between two batches; or 'over'
        self.time_s = self.opened = 0.      # spent in this epoch before a stop; clock when it was opened or resumed
        self.rng_states: tuple | None = None    # RNG states at a stop; None while it runs
        self.warm: list = []                # loaders that kept worker processes then
        self.kept: list[nn.Module] = []     # modules that hooks keep in evaluation mode in training
        self.loaders: tuple = ()            # the user's own train_dl and valid_dl
        self.row: dict | None = None        # of the history, while `after_valid` or `after_epoch` is fired
        self.interrupts: Interrupts | None = None
        self.closing = ExitStack()          # what is undone at its end

    # it begins and ends

    def __enter__(self) -> 'Fit':
        learn = self.learn
        learn.check()
        if not self.loaders: self.loaders = learn.train_dl, learn.valid_dl
        learn.requests.clear()
        with ExitStack() as closing:
            self.interrupts = closing.enter_context(Interrupts(learn))
            closing.callback(self._leave, learn)        # while interrupts wait
            learn.fitting = self
            closing.enter_context(learn.added_hooks(*self.plan.hooks))
            for h in learn.hooks: closing.enter_context(h.around_fit(learn))
            learn.cancelled = learn.stopped = None
            self.state, learn.history.columns.thread = 'running', threading.get_ident()
            learn.hooks.calls = Calls(learn.hooks, learn.is_main)
            closing.callback(set_modes, get_modes(*trained(learn)))
            if self.interrupts.n and 'interrupt' not in learn.requests:
                learn.requests.append('interrupt')      # asked before a hook set other requests
            self.closing = closing.pop_all()
        return self

    def __exit__(self, kind: type | None, e: BaseException | None, tb: TracebackType | None) -> bool:
        learn, interrupts = self.learn, self.interrupts
        self.closing.callback(self._free, learn)
        self.closing.callback(self._report, learn, e)       # runs first
        if e is not None and not isinstance(e, CancelFit): return bool(self.closing.__exit__(kind, e, tb))
        self.closing.close()
        if not (learn.cancelled == 'interrupt' or 'interrupt' in learn.requests or interrupts.n): return True
        if self.plan.on_interrupt == 'return' and interrupts.n < 2: return True
        rest = 'learn.resume() continues' if learn.stopped is self and self.is_open(learn.state) else 'nothing is left to do'
        raise TrainingInterrupted(f'interrupted {learn.position}; {rest}') from None

    def _report(self, learn, e):
        "Tell the hooks how it ended; add notes to an error"
        try:
            if isinstance(e, Stop): self.state = 'stopped'
            if isinstance(e, CancelFit): learn.cancel(e.args[0] if self.state == 'stopped' else 'fit')
            elif isinstance(e, KeyboardInterrupt): learn.cancel('interrupt')
            elif e is not None: learn.cancelled = 'error'
            if isinstance(e, Cancel) and not isinstance(e, CancelFit): raise misplaced(e) from e
            if isinstance(e, Exception) and not isinstance(e, Cancel) and not _is_placed(e):
                learn.explain(e)
                note_place(e, f'raised {learn.position}', None)
        finally:
            self.time_s += perf_counter() - self.opened
            if self.state != 'stopped': set_opt_modes(learn.opts.values(), False)
            learn.calls.close('after_fit', learn)

    def _free(self, learn):
        "End worker processes; keep passes only if they can be resumed"
        self.warm = [*filter(is_warm, (*each(learn.train_dl), *each(learn.valid_dl)))]
        try:
            for phase in self.phases.values(): phase.pass_.close()
            if learn.cancelled in (*RESUMABLE, 'error'):
                for dl in self.warm: end_workers(dl)
        finally:
            if self.state == 'stopped': learn.stopped = self
            else:
                self.state, self.train, self.valid = 'over', None, None
                learn.history.columns.open()

    def _leave(self, learn): self.learn = learn.fitting = learn.history.columns.thread = self.interrupts = None

    # its epochs

    def start(self, rates: Mapping) -> None:
        "Begin with nothing to resume, at the learning rates of some optimizers"
        learn, plan, history = self.learn, self.plan, self.learn.history
        self.fire_first()
        for name, lr in rates.items(): set_lr(learn.opts[name], lr)        # after what hooks restored
        if plan.resume and not history.n_steps and learn.is_main:
            print('fit(resume=True): nothing to resume, training starts from the beginning')
        plan.begin(learn.state, len(history), history.n_steps)
        if plan.valid_first: plan.next_valid = learn.state.optimizer_step

    def restore(self) -> None:
        "Begin where it was stopped"
        self.fire_first()
        self._restore_rng()

    def fire_first(self):
        "Switch the model to training mode, and fire `before_fit`, which may switch parts back"
        learn = self.learn
        modules = trained(learn)
        modes = get_modes(*modules)
        switch(modes, True, *modules)
        learn.calls.fire('before_fit', learn)
        self.kept = [m for m in modes if not m.training]

    def _restore_rng(self):
        learn = self.learn
        for dl in self.warm: warm_up(dl)
        set_rng_states(self.rng_states, learn.train_dl, learn.valid_dl)
        self.rng_states = None

    def run(self) -> None:
        "Train and validate, epoch by epoch, until the fit is done"
        learn, plan, state = self.learn, self.plan, self.learn.state
        while self._is_due():
            is_new = self._open_epoch()
            try:
                with self.train.opened(learn) as phase:
                    if is_new: learn.calls.fire('before_epoch', learn)
                    batches = None
                    while not self.is_trained:
                        if plan.wants_valid(state): self.validate()
                        if not plan.has_steps(state):
                            phase.pass_.leave()
                            break
                        self.answer()
                        if learn.train_dl is not phase.pass_.dl: raise ValueError(
                            'a hook replaced train_dl in before_epoch, where the pass of this epoch has its loader '
                            'already: replace it in after_epoch, by a loader')
                        if batches is None: batches = iter(phase.pass_)
                        phase.next_due = plan.next_due
                        if phase.run(batches): break
                    phase.check_any('train_dl')
                    self.is_trained = True
                    if self._ends_with_valid(): self.validate()
            except CancelEpoch:
                learn.clear_grads()
                for phase in self.phases.values(): phase.pass_.leave()
                learn.cancel('epoch')
            except GoBack as e:
                self._go_back(*e.args)
                continue
            self._close_epoch()

    def validate(self) -> None:
        "Run a validation pass, or the rest of a stopped one, and record its values"
        learn = self.learn
        if self.valid is None: self.valid = Validation(Pass(learn.valid_dl)).begin_sums(learn)
        with self.valid.opened(learn) as phase:
            if not phase.pass_.n: learn.calls.fire('before_valid', learn)
            batches = iter(phase.pass_)
            while not phase.run(batches): self.answer()
            phase.check_any('valid_dl')
        self._close_valid()

    def answer(self) -> None:
        "Between two batches, carry out the requests, in the loop's own thread"
        learn = self.learn
        while learn.requests:
            what = learn.requests.popleft()
            if callable(what): what(learn)
            elif what == 'stop_epoch': self.plan.end_epoch = learn.state.epoch + (self.train is not None)
            else:
                self.rng_states = rng_states(learn.train_dl, learn.valid_dl)
                raise Stop(what)

    def is_open(self, state: StepState) -> bool:
        "Return whether anything is left to do"
        return self.train is not None or self.plan.is_ahead(state)

    def _is_due(self):
        "Between two epochs, return whether another is due; no interrupt in the last one is lost"
        learn = self.learn
        if 'stop_epoch' in learn.requests: self.answer()
        if self.is_open(learn.state): return True
        if 'interrupt' in learn.requests: self.answer()
        return False

    def _open_epoch(self):
        "Make the training phase of an epoch; return whether it is new, not a stopped one"
        learn, is_new = self.learn, self.train is None
        if is_new:
            learn.state.reset_epoch()
            learn.history.columns.open()
            self.train = Training(Pass(learn.train_dl)).begin_sums(learn)
        self.opened, self.train.pass_.epoch = perf_counter(), learn.state.epoch
        return is_new

    def _ends_with_valid(self):
        "After the training pass, return whether a validation is due, or open"
        learn, rows = self.learn, self._valid_rows()
        if learn.valid_dl is None or rows and rows[-1]['step'] == learn.state.optimizer_step: return False
        return self.valid is not None or self.plan.validates(learn.state)

    def _valid_rows(self):
        "The validation passes of this epoch"
        state, rows = self.learn.state, reversed(self.learn.history.valid_rows)
        return [*takewhile(lambda o: o['epoch'] == state.epoch, rows)][::-1]

    def _close_valid(self):
        "Record the values of a validation"
        learn, phase, self.valid = self.learn, self.valid, None
        values = {'valid_' + k: v for k, v in phase.sums.means(learn.world).items()}
        learn.history.returned |= phase.sums.returned
        learn.history.add_valid({'epoch': learn.state.epoch, 'step': learn.state.optimizer_step, **values})
        if self.plan.wants_valid(learn.state): self.plan.plan_valid(learn.state)
        self._fire_for(learn.history.valid_rows[-1], 'after_valid')

    def _close_epoch(self):
        "Record the epoch; a cancelled pass contributes what it has"
        learn, history, train = self.learn, self.learn.history, self.train
        values = {'train_' + k: v for k, v in train.sums.means(learn.world).items()}
        if learn.world.size > 1: history.columns.agree(learn.world)
        history.returned |= train.sums.returned
        for row in self._valid_rows(): values |= {k: v for k, v in row.items() if k not in ('batch', 'step')}
        if self.valid is not None: values |= {'valid_' + k: v for k, v in self.valid.sums.means(learn.world).items()}
        for name in lr_names(learn.opts) if history.n_steps else ():       # the last ones
            if latest := history.columns.fetch(name, history.n_steps - 1): values[name] = latest[0]
        row = {'epoch': learn.state.epoch, **values, 'time_s': self.time_s + perf_counter() - self.opened}
        with self.interrupts.open(False):      # what is counted is recorded
            learn.state.epoch += 1
            self.train = self.valid = None
            self.is_trained, self.time_s, self.opened = False, 0., perf_counter()
            history.add_epoch(row)          # a warning may be an error: it is counted by then
        self._fire_for(row, 'after_epoch')

    def _fire_for(self, row, event):
        "Fire an event whose hooks may add values to a row of the history"
        self.row = row
        self.learn.calls.fire(event, self.learn)
        self.row = None

    def _go_back(self, restore):
        "Leave the open phases, and let `restore(learn)` load an earlier state into this fit"
        learn = self.learn
        for phase in self.phases.values(): phase.pass_.close()
        for dl in (learn.train_dl, learn.valid_dl): end_workers(dl)
        self.train = self.valid = None
        restore(learn)
        self._restore_rng()

    # what a stop keeps, and a checkpoint holds

    @property
    def phases(self) -> dict[str, Phase]:
        "The open phases, 'train' and 'valid'"
        return {k: o for k, o in (('train', self.train), ('valid', self.valid)) if o is not None}

    def match_loaders(self, learn: Any) -> None:  # raises ValueError
        "Refuse to resume a pass in another loader; a loader without an open pass may be replaced"
        opens = None if self.is_trained else self.train, self.valid
        for i, (name, phase) in enumerate(zip(('train_dl', 'valid_dl'), opens)):
            if getattr(learn, name) is self.loaders[i]: continue
            if phase is not None: raise ValueError(
                f'{name} was replaced in the middle of a pass, after {phase.pass_.n} of '
                f'{length(phase.pass_.dl) or "?"} batches: put the first one back to resume, or '
                'call fit, which begins with the new one')
            if self.rng_states is not None: self.rng_states[1][i] = []    # of the first one's generators
        self.loaders = learn.train_dl, learn.valid_dl

    def state_dict(self, learn: Any) -> dict:
        "Return what a checkpoint holds of a fit, besides its RNG states"
        in_eval = None if self.train is None else self.train.in_eval
        if learn.phase is self.train: in_eval = [m for m in get_modes(*trained(learn)) if not m.training]
        ids = {*map(id, in_eval or ())}
        running_s = perf_counter() - self.opened if self.state == 'running' else 0.
        def had_workers(dl): return is_warm(dl) or not {*map(id, self.warm)}.isdisjoint(map(id, each(dl)))
        return {'plan': self.plan.state_dict(), **{k: self._state_of(k) for k in ('train', 'valid')},
                'is_trained': self.is_trained, 'time_s': self.time_s + running_s,
                'in_eval': None if in_eval is None else
                           [k for k, m in named_parts(learn, learn.own_model).items() if id(m) in ids],
                'warm': [o for o in ('train_dl', 'valid_dl') if had_workers(getattr(learn, o))]}

    def _state_of(self, name): return self.phases[name].state_dict() if name in self.phases else None

    def load_state_dict(self, learn: Any, state: Mapping, plan: bool = False) -> None:
        "Take over the progress of another fit of the same parts, with `plan` its bounds, too"
        is_same = self.plan.valid_every == state['plan']['valid_every']
        self.plan.load_state_dict(state['plan'], plan)
        if plan: self.loaders = learn.train_dl, learn.valid_dl
        self.is_trained, self.time_s = state['is_trained'], state['time_s']
        if state['train'] is not None:
            self.train = Training(Pass(learn.train_dl)).begin_sums(learn)
            parts = named_parts(learn, learn.own_model)
            if state['in_eval'] is not None: self.train.in_eval = [parts[k] for k in state['in_eval'] if k in parts]
        wants_valid = state['is_trained'] or plan or is_same        # by this fit, too
        if state['valid'] is not None and wants_valid and learn.valid_dl is not None:
            self.valid = Validation(Pass(learn.valid_dl)).begin_sums(learn)
        for k, phase in self.phases.items(): phase.load_state_dict(state[k], learn.device)
        self.warm = [getattr(learn, o) for o in state['warm'] if self._starts_workers(learn, o)]

    def _starts_workers(self, learn, name):
        "Return whether a loader had workers that no open pass starts again"
        phase = self.valid if name == 'valid_dl' else None if self.is_trained else self.train
        is_open = phase is not None and phase.pass_.start is not None
        return not is_open and getattr(getattr(learn, name), 'persistent_workers', False)

    def rank_state(self, learn: Any) -> dict:
        "Return the state of this rank alone, where several train together"
        at = self.rng_states
        if at is None: at = rng_states(learn.train_dl, learn.valid_dl)
        columns = learn.history.columns
        res = {'rng_states': at, **{k: self._state_of(k) for k in ('train', 'valid')},
               'columns': columns.state_dict(columns.start),
               'hooks': {h.name: h.state_dict() for h in learn.hooks if h.is_own},
               'objects': object_states(learn.objects), 'buffers': [learn.world.own_buffers(m) for m in trained(learn)]}
        return to_device(res, 'cpu')

    def load_rank_state(self, learn: Any, state: Mapping) -> None:
        "Restore the state of this rank"
        check_kinds(state, _RANK_KINDS, 'the state of a rank')
        for k, phase in self.phases.items(): phase.load_state_dict(state[k], learn.device)
        learn.history.columns.load_pass(state['columns'])
        for h in learn.hooks:
            if h.name in state['hooks']: h.load_state_dict(to_device(state['hooks'][h.name], learn.device))
        load_object_states(learn.objects, state['objects'])
        for m, buffers in zip(trained(learn), state['buffers']): set_buffers(m, buffers)
        self.rng_states = state['rng_states']
