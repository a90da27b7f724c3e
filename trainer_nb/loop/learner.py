"""The training loop: a model, its data, and the hooks around it"""

import signal, warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from os import PathLike
from threading import get_ident
from typing import TYPE_CHECKING, Any, Never

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..base import (
    backward, check_seed, default_device, folded, opt_step, rng_state, set_rng_state, set_seed, to_device,
    with_comments
)
from ..data import Pass, adapter_of, as_loader, each, is_shuffled, length, sets_of
from .columns import check_column
from .fit import Fit, Interrupts, Phase, Validation, misplaced
from .history import History
from .hook_table import HookTable
from .hooks import STEPS, Calls, Cancel, Hook, HookList, as_hooks
from .metrics import as_metrics, check_sets
from .mistakes import check_model, float_dtype, is_data, is_samples, missing_name, refuse_fit, refuse_others
from .optim import (
    check_optimizers, load_optimizer, lr_names, make_optimizers, needs_closure, parameters, trained, trained_parameters
)
from .plan import Plan, StepState, as_rate, fit_rates
from .predict import Joined, about_step, as_inputs, prepared
from .sandbox import DryRun, dry_run
from .snapshot import named_objects
from .steps import as_step, check_loss, needed_names, unpack
from .world import World


def _of_phase(name, doc):
    "Make a property that reads and sets an attribute of the innermost phase"
    def get(learn): return getattr(learn.phase, name)
    def put(learn, value): setattr(learn.phase, name, value)
    get.__name__, get.__qualname__, get.__doc__ = name, f'Learner.{name}', doc
    return property(get, put)

_ELSEWHERE = {      # what a learner of this library does not have, and what to do instead
    'lr': 'pass the rate to the next fit, learn.fit(1, lr=...); in a run, run.set_lr(...). learn.lrs() has all',
    'epochs': 'pass their number to fit, learn.fit(3)',
    **dict.fromkeys(STEPS, 'override the method in a subclass of Learner, or wrap it in a hook, '
                           'LambdaHook(do_opt_step=f) with f(learn, nxt)')}

class Learner:
    "A model, its data, its optimizer, and the loop that trains it"
    batch = _of_phase('batch', 'The current batch, on the device; None between two batches, like the next three')
    pred = _of_phase('pred', 'What the model returned for it, or the step as `pred`')
    loss = _of_phase('loss', 'Its loss, a 0-d tensor')
    result = _of_phase('result', 'What its step returned, a mapping')
    stepped = _of_phase('stepped', 'Whether an optimizer stepped in this batch; bool')

    @with_comments
    def __init__(self,
        model: nn.Module,           # moved to `device`
        train_dl: object = None,    # iterable of batches; or a tuple of tensors or arrays (x, y),
                                    # shuffled and cut into batches of `bs`; or a dict of names to
                                    # these; or a `Table`, `Images` or `Texts`, with its validation
                                    # data, which is saved like what is in `state`
        valid_dl: object = None,    # the same for validation, in order; those of a dict in turn,
                                    # with columns `valid_<name>_loss` etc. None: no validation
        *,
        loss_fn: Callable | None = None,    # `loss_fn(pred, targ)` → 0-d tensor; None: the model's output
                                    # has a `loss` of its own
        train_step: Callable | None = None, # `train_step(batch, learn)` → dict with 'loss', or a generator
                                    # of (optimizer's name, loss); other numbers: history columns
        eval_step: Callable | None = None,  # the same for validation; default: `train_step`
        predict_step: Callable | None = None,   # `predict_step(batch, learn)` → predictions, for `predict`,
                                    # where batches may lack the target; default: the step above
        optim: object = None,       # an optimizer; a class or factory called with the parameters
                                    # (and `lr`); or a dict of names to either. Default AdamW
        lr: float | Mapping | None = None,  # learning rate > 0 of an optimizer step; None: the optimizer's
                                    # own. By names of parameters, {'body': 1e-4, 'head': 1e-3}, it
                                    # makes param groups; where `optim` is a dict, a dict by its
                                    # names. A number is the largest group's; others keep their ratio
        metrics: object = (),       # `f(pred, targ)`, objects with update/compute/reset, `Metric`s
        hooks: Hook | Iterable[Hook] = (),  # `Hook`s, or a single one
        bs: int = 64,               # samples in a batch, where the data is a tuple of tensors
        device: torch.device | str | None = None,   # where to train; default: the model's device, or the accelerator if that is the CPU
        display: bool | str = True, # False, or what the hook `Display` takes
        seed: int | None = None,    # for `set_seed` when the first fit starts
        config: Any = None,         # anything that should be kept with the learner
        state: object = (),         # objects with `state_dict` and `load_state_dict` that steps or
                                    # hooks change, or dict: name → one; or a dict of numbers,
                                    # tensors and lists. All are saved and restored with the rest
        **others: Never,            # none; a name from another library raises an error that gives the name here
    ):
        with folded():
            if others: refuse_others('Learner', Learner.__init__, others)
            check_model(model, loss_fn)
            if lr is not None and not isinstance(lr, Mapping): as_rate('lr', lr)
            if seed is not None: check_seed(seed)
            self.phase = Phase()                # the innermost one; this one runs nothing
            self.own_model, self.own_loss_fn = model, loss_fn
            self.bs, self.seed, self.config = bs, seed, config
            self.device = _place(model, loss_fn, device)
            if valid_dl is None and all(hasattr(train_dl, o) for o in ('train', 'valid', 'inputs', 'state_dict')):
                state = {type(train_dl).__name__: train_dl, **named_objects(state)}      # a `Table`, `Images`, `Texts`
                train_dl, valid_dl = train_dl.train, train_dl.valid
            if train_step is not None: self.train_step = train_step
            if eval_step is not None: self.eval_step = eval_step
            if predict_step is not None: self.predict_step = predict_step
            self.state, self.history, self.world = StepState(), History(), World()
            self.fitting: Fit | None = None     # the fit that runs
            self.stopped: Fit | None = None     # the one that `resume` continues
            self.cancelled: str | None = None   # it ended early: 'step', 'epoch', 'fit', 'stop', 'interrupt', 'error'
            self.requests: deque = deque()      # what a running fit was asked for and has not done yet
            self.is_main = True                 # this process writes and shows
            self.train_dl, self.valid_dl = self.loader_for(train_dl, True, True), self.loader_for(valid_dl, tell=True)
            if self.train_dl is train_dl and isinstance(train_dl, DataLoader) and bs not in (64, train_dl.batch_size):
                warnings.warn(f'bs={bs} changes nothing in train_dl, a DataLoader with '
                              f'batch_size={train_dl.batch_size}', stacklevel=3)
            self._set_opts(make_optimizers(model, optim, lr, loss_fn))
            self.metrics: list = as_metrics(metrics)
            check_sets(sets_of(self.valid_dl), self.metrics)
            self.objects: dict = named_objects(state)      # what checkpoints hold besides
            self.display: Hook | None = self._make_display(display) if display else None
            self.hooks = HookList([*as_hooks(hooks), *filter(None, [self.display])])

    # the steps of a batch: override one in a subclass, or wrap it by a hook

    @with_comments
    def train_step(self,
        batch: object,  # what the loader yielded, on the device
    ) -> Any:           # dict: 'loss' (0-d tensor), 'pred', 'targ', and what named batches and outputs hold
        "The step of a model and a loss function; override it, or pass `train_step(batch, learn)`"
        phase = self.phase
        if type(batch) in (tuple, list) and len(batch) == 2 and phase.loss_fn is not None:  # the usual one, quickly
            phase.pred, targ, named = phase.model(batch[0]), batch[1], None
        else:
            args, named, targ = unpack(batch, phase.loss_fn)
            phase.pred = phase.model(*args, **named)
        phase.has_pred = True
        for f in phase.at['after_pred']: f(self)
        return phase.default(phase.pred, targ, named)

    @with_comments
    def eval_step(self,
        batch: object,  # what the loader yielded, on the device
    ) -> Any:           # dict as `train_step` returns it; 'loss' may be missing
        "The step of validation; default: `train_step`"
        return self.train_step(batch)

    @with_comments
    def predict_step(self,
        batch: object,  # what `predict` was passed, on the device: batches of tensors or lists; of
                        # a loader what it yields
    ) -> Any:           # predictions, or a dict with 'pred', and 'targ' for `with_targs=True`
        "The step of `predict`; default: call the model, or the step of validation if that is your own"
        if isinstance(batch, Tensor): batch = (batch,)
        n = len(batch) if isinstance(batch, (list, tuple)) else 0
        if n and (n == 1 or n <= len(needed_names(self.model.forward))): return self._predicted(batch)
        if n or not isinstance(batch, Mapping) or {'labels', 'targ'} & batch.keys():
            return self._predicted(*unpack(batch, self.loss_fn))
        return self._predicted((), batch)

    def _predicted(self, args, named=None, targ=None):
        phase = self.phase
        phase.pred, phase.has_pred = phase.model(*args, **(named or {})), True
        for f in phase.at['after_pred']: f(self)
        return {'pred': phase.pred, 'targ': targ}

    def do_step(self) -> None:
        "Forward: from `batch` to `loss` and `result`. Wrapped by hooks, overridden by subclasses"
        phase = self.phase
        phase.take(phase.do['step'](phase.batch) if phase.generator is None else None, self._opts)

    def do_backward(self,
        loss: Tensor,   # 0-d
    ) -> None:
        "Compute the gradients of the loss; of a yielded one those of its optimizer's parameters"
        phase, inputs = self.phase, None
        if phase.generator is not None:
            inputs = [p for p in parameters(self._opts[phase.opt_names[0]]) if p.requires_grad]
        try: backward(loss, inputs)
        except (AttributeError, RuntimeError):
            check_loss(loss)       # most errors here come from a step that returns no loss
            raise

    def do_opt_step(self) -> bool:  # whether the optimizer stepped
        "Step `opt`"
        opt = self._opts[self.opt_name]
        if self.closes: self.phase.step_with_closure()
        else: opt_step(opt)
        return True

    def do_zero_grad(self) -> None:
        "Clear the gradients of `opt`"
        opt = self._opts[self.opt_name]
        if type(opt).zero_grad is not torch.optim.Optimizer.zero_grad: return opt.zero_grad()
        for group in opt.param_groups:      # torch's own adds a label for the profiler that costs ten times as much
            for p in group['params']: p.grad = None

    def step_of(self, training: bool) -> tuple[Callable, bool]:
        "Return the step of a pass, a function of the batch, and whether it is the user's own"
        train, valid = self.is_own('train_step'), not training and self.is_own('eval_step')
        f = self.eval_step if valid else self.train_step
        return as_step(f, self) if train or valid else f, train or valid

    def is_own(self, name: str) -> bool:
        "Return whether the step of a name is the user's own, passed or overridden"
        return name in vars(self) or getattr(type(self), name) is not getattr(Learner, name)

    # fit, stop, resume

    @with_comments
    def fit(self,
        n_epochs: int | None = None,    # ≥ 1: further epochs to train; or
        *data: Never,                   # none; data belongs to the learner, and the error shows the call
        max_steps: int | None = None,   # ≥ 1: further optimizer steps to take
        valid_every: int | None = None, # ≥ 1: optimizer steps between validations, besides those at epochs' ends
        valid_every_epochs: int | None = None,  # ≥ 1: epochs between validations, where they are slow; the last epoch
                                                # always has one. None: each epoch
        valid_first: bool = False,      # validate before the first step, too
        lr: float | Mapping | None = None,  # learning rate > 0 from here on, of the group with the
                                        # largest; others keep their ratio. For several optimizers a
                                        # dict by name. Unused if a checkpoint is resumed
        hooks: Hook | Iterable[Hook] = (),  # hooks for this fit alone
        keep_best: bool | str = False,  # True: end with the weights of the lowest valid_loss; or by
                                        # another epoch column, such as 'valid_accuracy'
        resume: bool | str | PathLike = False,  # True or a path: finish what a checkpoint began, `n_epochs` in all
        on_interrupt: str = 'raise',    # 'raise' `TrainingInterrupted` after an interrupt, or 'return'
        **others: Never,                # none; a name from another library raises an error that gives the name here
    ) -> History:
        """Train for some epochs or optimizer steps, and validate at each epoch's end

        Raises ValueError or TypeError if something does not fit together, before anything changes,
        and `TrainingInterrupted` after an interrupt. An error in a step or a hook keeps its type,
        with notes on where it happened.

        The whole model trains in training mode, except what a hook switches to evaluation mode,
        such as `FreezeBN`. Afterwards each module is in the mode from before: `learn.model(x)` may
        use dropout, `learn.predict(x)` never does.
        """
        with folded():
            if data or others or is_data(n_epochs): refuse_fit(Learner.fit, (n_epochs, *data), others)
            hooks = as_hooks(hooks)
            if keep_best: hooks = tuple(self._keep_best([*self.hooks, *hooks], keep_best)[len(self.hooks):])
            plan = Plan(n_epochs, max_steps, valid_every, valid_every_epochs, valid_first, hooks, resume, on_interrupt)
            plan.check(self.valid_dl)
            fit, rates, stopped = Fit(plan), fit_rates(lr, self.opts), self.stopped
            is_left = stopped is not None and stopped.train is not None and not stopped.is_trained
            if is_left and not resume: warnings.warn(
                'fit begins a new epoch, without the rest of the one that was stopped '
                f'{self.position}: learn.resume() would have continued it', stacklevel=2)
            fit.learn = self
            with fit, fit.interrupts.open():
                self.clear_grads()
                if resume and self._resume_from(resume):
                    plan.begin(self.state)
                    fit.restore()
                else:
                    if self.seed is not None and not self.history.n_steps: set_seed(self.seed)
                    fit.start(rates)
                fit.run()
        return self.history

    @with_comments
    def resume(self) -> History:    # raises RuntimeError if there is nothing to resume
        "Continue a fit that was stopped or interrupted, as if nothing had happened"
        with folded():
            self.check_thread()
            fit = self.stopped
            if fit is None: raise RuntimeError(
                'nothing to resume: no fit was stopped between two batches, or another fit has '
                'begun or its optimizer was replaced since')
            fit.match_loaders(self)
            fit.learn = self
            with fit, fit.interrupts.open():
                fit.restore()
                fit.run()
        return self.history

    @with_comments
    def request(self,
        what: str | Callable,       # 'stop', 'stop_epoch', or a function of the learner, called in the loop's thread
        everywhere: bool = False,   # True: all ranks make this request in the same batch, so none needs to tell others
    ) -> None:
        "Ask a running fit, from any thread, to do something between two batches"
        if what not in ('stop', 'stop_epoch') and not callable(what): raise ValueError(
            f"request got {what!r}: expected 'stop', 'stop_epoch' or a function of the learner")
        (self.requests.give if everywhere and self.world.size > 1 else self.requests.append)(what)

    def stop(self) -> None:
        "End a running fit between two batches, from a hook, a widget or another thread; `resume` continues it"
        self.request('stop')

    def cancel(self, what: str) -> None:
        "Note in `cancelled` what ended early, tell the hooks, and forget the batch"
        self.cancelled = what
        self.calls.close('after_cancel', self)
        self.phase.clear()

    def dry_run(self) -> AbstractContextManager[DryRun]:
        """Train some batches, and restore everything afterwards: `with learn.dry_run() as r: r.train_batch()`

        Raises ValueError if there is nothing to train, or the loader can be read only once. The
        first interrupt sets `is_over`, the second raises. `r.learn` trains, with own counters.
        """
        return dry_run(self)

    # validate and predict

    @with_comments
    def validate(self,
        dl: object = None,  # loader, tuple of tensors, or dict of these by name; default `valid_dl`
    ) -> dict[str, float]:  # 'valid_loss', 'valid_<metric>'; with several sets, also 'valid_<set>_<metric>'
        "Compute loss and metrics on `dl`, weighted by samples, without recording them in `history`"
        with folded():
            self.check_thread()
            dl = self.loader_for(self.valid_dl if dl is None else dl)
            if dl is None: raise ValueError('there is no valid_dl: pass a loader')
            if self.batch is not None and not self.training: raise RuntimeError(
                'learn.validate was called in a batch of validation, where its own batches would '
                'call it again: check learn.training first')
            self.metrics = as_metrics(self.metrics)
            phase = Validation(Pass(dl)).begin_sums(self)
            with self.apart(phase):
                if not self.is_fitting and phase.below.below is None: self.calls.fire('before_valid', self)
                batches = iter(phase.pass_)
                while not phase.run(batches): pass
                phase.check_any('valid_dl')
            return {'valid_' + k: v for k, v in phase.sums.means(self.world).items()}

    @with_comments
    def predict(self,
        *data: object,              # inputs, with or without targets: a loader; a tensor, array or
                                    # tuple of them; a mapping, one batch by name; a list of texts
                                    # or paths, or a data frame, for a `predict_step`, or for a
                                    # `Table`, `Images` or `Texts` in `state`. Or several tensors or
                                    # arrays: all are inputs of the model
        with_targs: bool = False,   # return targets too, None where the batches have none
    ) -> Any:                   # all predictions on the host, as the model returns them: tensors
                                # and nestings of them (with `AMP` in bfloat16: NumPy needs
                                # .float()), or a list; or (predictions, targets)
        """Return predictions, in evaluation mode and without gradients

        Of a tuple, the last entry is the target if the model can be called without it. A step of your
        own needs whole batches, or a `predict_step` beside it.
        """
        with folded():
            self.check_thread()
            if not data: raise TypeError('predict got nothing: pass inputs, or a loader such as learn.valid_dl')
            dl, how = prepared(self, data)
            if is_shuffled(dl) and not with_targs: warnings.warn(
                'predict got a loader that shuffles: the predictions are in its random order. Pass '
                'with_targs=True for their targets, or a loader with shuffle=False', stacklevel=2)
            phase, preds, targs = Validation(Pass(dl)), Joined('predictions'), Joined('targets')
            with self.apart(phase):
                phase.do['step'] = self._prediction_step(phase, how)
                for batch in phase.pass_:
                    phase.begin(batch)
                    try:
                        while phase.result is None: phase.do['do_step']()
                        if phase.pred is None: raise KeyError("the step returned no 'pred'")
                    except (AttributeError, LookupError, TypeError, ValueError) as e:
                        is_own = not (phase.is_default or self.is_own('predict_step'))
                        if is_own: e.add_note(about_step(phase.batch, how))
                        raise
                    sizes = {phase.n, int(phase.result.get('n', phase.n))}
                    preds.add(phase.pred, sizes)
                    if with_targs: targs.add(phase.result.get('targ'), sizes)
                    phase.count()
                    phase.clear()
            if not phase.pass_.n: raise ValueError('there is nothing to predict: no batch')
            return (preds.result(), targs.result()) if with_targs else preds.result()

    def _prediction_step(self, phase, how):
        "Return the step for what `prepared` returned, which says `how`"
        if not self.is_own('predict_step'):
            if not phase.is_default: return phase.do['step']
            return self._predicted if how else self.predict_step
        step = as_step(self.predict_step, self)
        def own(batch):
            res = step(batch[0] if how == 'bare' else batch)
            phase.has_pred = False      # that of the default step, which it may have called
            return res if isinstance(res, Mapping) and 'pred' in res else {'pred': res}
        return own

    @with_comments
    def __call__(self,
        *inputs: object,    # what the model takes: tensors, arrays, nestings of them; moved to `device`
        **named: object,    # the same by name
    ) -> Any:           # what the model returns, on `device`
        "Call the model, or its average, in evaluation mode and without gradients; `predict` reads a whole loader"
        with folded():
            self.check_thread()
            dtype = float_dtype(self.own_model)
            batch = [to_device(as_inputs(o, dtype), self.device) for o in (inputs, named)]
            phase = Validation(Pass([batch]))
            with self.apart(phase):
                phase.batch = batch
                phase.do['step'] = lambda batch: {'pred': phase.model(*batch[0], **batch[1])}
                phase.do['do_step']()
                return phase.pred

    @contextmanager
    def apart(self, phase: Validation) -> Iterator[None]:
        "Open a validation or prediction that is none of a fit, in the middle of one or outside"
        is_inside, state = self.is_fitting, rng_state() if self.is_fitting else None
        is_free = not is_inside and signal.getsignal(signal.SIGINT) is signal.default_int_handler    # nobody handles it
        with Interrupts(self, at_once=True) if is_free else nullcontext() as interrupts:
            try:
                with phase.opened(self), interrupts.open() if is_free else nullcontext(): yield
            except BaseException as e:
                phase.pass_.close()
                if isinstance(e, Cancel) and not is_inside: raise misplaced(e) from e
                raise
            finally:
                if is_inside: set_rng_state(state)      # a stock loader draws a seed even in order

    # parts

    @property
    def model(self) -> nn.Module:
        "The model; while a pass is open, the one that hooks chose for it. `own_model` is yours"
        return self.own_model if self.phase.below is None else self.phase.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self.fitting is not None or self.phase.below is not None: raise RuntimeError(
            'learn.model cannot be set in a fit or a pass: a hook chooses the model of a pass, '
            'def model_for(self, learn, model): return ...')
        self.own_model = model

    @property
    def loss_fn(self) -> Callable | None:
        "The loss function, or None; while a pass is open, the one that hooks chose for it"
        return self.own_loss_fn if self.phase.below is None else self.phase.loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: Callable | None) -> None:
        if self.phase.below is not None: raise RuntimeError(
            'learn.loss_fn cannot be set while a pass is open: set it in after_epoch, or let a hook choose it, '
            'def loss_for(self, learn, loss_fn): return ...')
        self.own_loss_fn = loss_fn

    @property
    def opts(self) -> dict:   # name → optimizer; the name of a single one is ''
        "The optimizers; between two fits, assign whatever `optim` takes. New optimizers keep their own rates"
        return self._opts

    @opts.setter
    def opts(self, optim: object) -> None:
        if self.is_fitting: raise RuntimeError(
            'an optimizer cannot be replaced in a fit: set learn.opt or learn.opts between two fits')
        self._set_opts(make_optimizers(self.own_model, optim, loss_fn=self.own_loss_fn))
        if self.stopped is not None and self.stopped.train is not None: self.stopped = None     # it was of the old one

    @property
    def opt(self) -> Any:   # optimizer, or None if there is none
        "The optimizer that steps, or stepped last; assigning a single one sets `opts`"
        return self._opts.get(self.opt_name)

    @opt.setter
    def opt(self, optim: object) -> None:
        if len(self._opts) > 1: raise ValueError(
            f'there are several optimizers, {", ".join(map(repr, self._opts))}: '
            'set all of them, learn.opts = {name: optimizer}')
        if self.opt_name and not isinstance(optim, Mapping): optim = {self.opt_name: optim}
        self.opts = optim

    def _set_opts(self, opts):
        check_optimizers(opts, *trained(self))
        self.closes = any(map(needs_closure, opts.values()))        # a step of the optimizer evaluates the loss again
        if self.closes and len(opts) > 1: raise ValueError(
            f'optim is {", ".join(type(o).__name__ for o in opts.values())}: an optimizer whose step evaluates '
            'the loss again must be the only one')
        self._opts = opts
        if vars(self).get('opt_name') not in opts: self.opt_name = next(iter(opts), '')

    def clear_grads(self) -> None:
        "Clear the gradients of all optimizers"
        for opt in self._opts.values(): opt.zero_grad()

    def lrs(self) -> list:     # numbers or 0-d tensors
        "Return the current learning rates of all param groups"
        groups = chain.from_iterable(o.param_groups for o in self._opts.values())
        return [o.clone() if isinstance(o := g['lr'], Tensor) else o for g in groups]

    def loader_for(self, data: object, shuffle: bool = False, tell: bool = False) -> Any:
        "Make a loader of what was passed as one"
        is_default = self.own_loss_fn is not None and not self.is_own('train_step')
        if is_default and is_samples(data): data = DataLoader(data, batch_size=self.bs, shuffle=shuffle)
        dl = as_loader(data, self.bs, shuffle, self.device, float_dtype(self.own_model))
        if tell and isinstance(data, tuple) and getattr(dl, 'dtype', None): print(
            f'float64 arrays are cast to {str(dl.dtype).removeprefix("torch.")}, the dtype of the model')
        return dl

    def move(self, device: torch.device) -> None:
        "Move model, loss function and the states of optimizers to a device"
        self.device = device
        for o in trained(self): o.to(device)
        for opt in self._opts.values():
            if opt.state: load_optimizer(opt, opt.state_dict())     # puts each state beside its parameter

    def check(self) -> None:  # raises ValueError or TypeError
        "Check before a fit that the parts fit together"
        self.check_thread()
        if self.is_fitting: raise RuntimeError('this learner is in a fit already')
        if self.train_dl is None: raise ValueError(
            'there is no train_dl: pass one to Learner, or set learn.train_dl')
        check_model(self.own_model, self.own_loss_fn)
        self.train_dl, self.valid_dl = self._checked('train_dl', True), self._checked('valid_dl')
        if not any(p.requires_grad for p in trained_parameters(self)): raise ValueError(
            f'{type(self.own_model).__name__} has no trainable parameters: nothing to fit; unfreeze some')
        if not self._opts: raise ValueError(
            'there is no optimizer: the model had no parameters when the learner was made; set learn.opt')
        self.metrics = as_metrics(self.metrics)
        check_sets(sets_of(self.valid_dl), self.metrics)
        self._set_opts(self._opts)

    def _checked(self, name, shuffle=False):
        "Make a loader of what was assigned since, and refuse an empty one"
        dl = self.loader_for(getattr(self, name), shuffle)
        is_own = self.is_own('train_step') or not shuffle and self.is_own('eval_step')
        loaders = {f'{name}[{k!r}]': o for k, o in sets_of(dl).items()} if sets_of(dl) else {name: dl}
        for name, o in loaders.items():
            if adapter_of(o).parts and not is_own: raise TypeError(
                f'{name} is {o}, whose batches are dicts by loader, which the default step cannot '
                'take: pass train_step=f(batch, learn), with batch[name] for each')
            if o is not None and length(o) == 0:
                raise ValueError(f'{name} is empty: no data, or drop_last with less than one batch?')
        return dl

    # hooks

    @property
    def calls(self) -> Calls:
        "The calls of the hooks, by event and step"
        return self.hooks.calls

    def add_hook(self, hook: Hook) -> Hook:  # the same
        "Add a hook; raises ValueError for a second one of a class with `unique = True`"
        self.check_thread()
        if self.is_fitting and callable(getattr(hook, 'before_fit', None)): raise RuntimeError(
            f'{hook.name} cannot be added while a fit runs, whose before_fit is over: add it before or after')
        self.hooks.add(hook)
        return hook

    def remove_hook(self, hook: Hook | type | str) -> Hook:
        "Remove a hook, by itself, its class or its name"
        self.check_thread()
        hook = self.hooks.get(hook)
        self.hooks.remove(hook)
        return hook

    def get_hook(self,
        cls: type | str,     # class of a hook, or the name of one
        default: object = ...,  # what to return if there is none
    ) -> Any:                # `Hook`; raises KeyError if there is none and no default
        "Return the first hook of a class"
        return self.hooks.get(cls, default)

    def provider(self, name: str) -> Hook | None:
        "Return the first hook whose class has `name`, such as 'accumulation', in `provides`"
        return next((h for h in self.hooks if name in h.provides), None)

    @contextmanager
    def added_hooks(self, *hooks: Hook) -> Iterator['Learner']:
        "Add hooks within a `with` block: `with learn.added_hooks(h): ...`"
        self.hooks.add(*hooks)
        try: yield self
        finally:
            for h in hooks:
                if h in self.hooks: self.hooks.remove(h)

    @with_comments
    def describe_hooks(self,
        all: bool = False,  # list events and steps without a hook, too, with what happens there; as
                            # text, hooks one by one with the reasons
    ) -> HookTable:
        """Return a table of what runs when, in which order and why; after a fit, also how often and for how long

        It has a line for each event or step. A notebook displays it; a click on a line shows its
        hooks one by one, with the reasons. In a script: `print(learn.describe_hooks())`.
        """
        calls = Calls(self.hooks, self.is_main, old=self.calls)
        return HookTable(calls, skip=('before_valid', 'after_valid') if self.valid_dl is None else (), all=all)

    # where it is

    @property
    def training(self) -> bool:
        "Whether the pass that runs trains; in a fit also between two passes"
        return self.phase.training if self.phase.below is not None else self.is_fitting

    @property
    def is_fitting(self) -> bool:
        "Whether batches of a fit run; False in `around_fit`, before and after them"
        return self.fitting is not None and self.fitting.state == 'running'

    @property
    def n_batches(self) -> int | None:
        "Number of batches of the pass that runs; None if unknown"
        return None if self.phase.pass_ is None else self.phase.pass_.adapter.length

    @property
    def position(self) -> str:
        "Where the loop is, in words"
        fit, epoch = self.fitting or self.stopped, self.state.epoch
        if fit is None or fit.train is None: return f'after epoch {epoch - 1}' if epoch else 'before the first epoch'
        name, dl, n = 'training', self.train_dl, self.state.batch_idx
        if fit.valid is not None and fit.valid.pass_.start is not None:     # not so in `before_valid`
            name, dl, n = 'validation', self.valid_dl, fit.valid.pass_.n
        return f'in epoch {epoch}, after {n} of {length(dl) or "?"} {name} batches'

    @property
    def bounds(self) -> dict:     # 'epoch', 'step' → its end in `state`, None: unbounded;
                                            # 'row', 'batch' → number in `history` before it;
                                            # 'valid_every'
        "Where the running or stopped fit began, and where it ends"
        fit = self.fitting or self.stopped
        plan = Plan() if fit is None else fit.plan
        return {'epoch': plan.end_epoch, 'step': plan.end_step, 'row': plan.first_row,
                'batch': plan.first_batch, 'valid_every': plan.valid_every}

    @property
    def valid_idx(self) -> int:
        "Finished batches of the fit's open validation pass; 0 if there is none"
        fit = self.fitting or self.stopped
        return fit.valid.pass_.n if fit is not None and fit.valid is not None else 0

    @property
    def is_last_batch(self) -> bool:
        "Whether this is the epoch's last training batch; if the length is unknown or uncertain, reads the next one"
        return self.phase.is_last

    @with_comments
    def record(self,
        name: str,          # column in `history.steps`
        value: float | Tensor,  # number or 0-d tensor, which is copied, not read from the device
        mean: bool = False, # True: its mean over samples, too, is a column of the epoch,
                            # `train_<name>` or `valid_<name>`
    ) -> None:
        """Record a value beside the loss of the batch, before `after_step`; in validation the mean

        In `after_valid` it becomes a value of the validation pass and its epoch; in `after_epoch`
        one of the epoch.
        """
        fit = self.fitting
        is_valid = isinstance(self.phase, Validation)
        if fit is not None and fit.row is not None and not is_valid:
            check_column(name, lr_names(self._opts))
            fit.row[name] = float(value)
            return
        phase = self.phase
        if phase.pass_ is None and fit is not None and fit.train is not None: phase = fit.train
        if phase.sums is not None and (mean or not is_valid):
            taken = ['loss', *(m.name for m in self.metrics)] if mean else []
            check_column(name, lr_names(self._opts) + taken)
            phase.recorded[name] = value.detach().clone() if isinstance(value, Tensor) else value, mean

    # what the façade above all wings fills in

    def explain(self, e: BaseException) -> None:
        "Add a note to an error on what to do: none here, which knows no advice"

    def _make_display(self, display: bool | str) -> Hook | None:
        "Make the hook that `Learner(display=...)` adds: none here, which draws nothing"

    def _keep_best(self, hooks: list[Hook], keep_best: bool | str) -> list[Hook]:
        "Return the hooks of `fit(keep_best=...)`: none here, which keeps no weights"
        raise RuntimeError('fit(keep_best=...) keeps weights: use the Learner of trainer_nb.all')

    def _resume_from(self, source: bool | str | PathLike) -> bool:
        "Restore a checkpoint: none here, which reads no files"
        raise RuntimeError('fit(resume=...) reads a checkpoint: use the Learner of trainer_nb.all')

    # checks

    def check_thread(self) -> None:     # raises RuntimeError
        "Refuse a call in another thread than that of a running fit"
        if self.history.columns.thread not in (None, get_ident()): raise RuntimeError(
            'this learner is in a fit, in another thread: learn.request(f) asks the fit to call '
            'f(learn) between two batches, for example '
            'learn.request(lambda learn: print(learn.validate()))')

    def __setattr__(self, name, value):
        if name in _ELSEWHERE and type(self).__module__.startswith('trainer_nb.'):
            raise AttributeError(f'learn.{name} would have no effect: {_ELSEWHERE[name]}')
        object.__setattr__(self, name, value)

    if not TYPE_CHECKING:       # to a type checker, such a class has every attribute
        def __getattr__(self, name):
            if name in _ELSEWHERE: raise AttributeError(f'a learner has no {name}: {_ELSEWHERE[name]}')
            try: return object.__getattribute__(self, name)  # raises again, and as a property did
            except AttributeError as e: raise missing_name(self, name, e) from None

    def __repr__(self):
        parts, params = trained(self), trained_parameters(self)
        is_known = not any(map(nn.parameter.is_lazy, params))  # lazy layers have no shapes before their first batch
        n = f'{sum(p.numel() for p in params):,}' if is_known else 'unknown'
        opts = ', '.join(type(o).__name__ for o in self._opts.values()) or 'no optimizer'
        return (f'Learner({" with ".join(type(o).__name__ for o in parts)}, {n} parameters on {self.device}, {opts}, '
                f'{self.state.epoch} epochs done)')

def _place(model, loss_fn, device):
    "Move the modules to `device` or the default one; a model on several devices stays there"
    chosen = default_device(model) if device is None else torch.empty(0, device=device).device
    if device is not None or len({p.device for p in model.parameters()}) <= 1: model.to(chosen)
    if isinstance(loss_fn, nn.Module): loss_fn.to(chosen)
    return chosen

def class_names(learn: Learner, dl: object = None) -> Sequence | Mapping | None:
    "Return the attribute `classes` of a dataset, an object in `state`, or the model"
    loaders = chain.from_iterable(map(each, (dl, learn.train_dl, learn.valid_dl)))
    for o in (*loaders, *learn.objects.values(), learn.own_model):
        while o is not None:
            names = getattr(o, 'classes', None)
            if isinstance(names, (list, tuple, Mapping)): return names
            o = getattr(o, 'dataset', None)
    return None
