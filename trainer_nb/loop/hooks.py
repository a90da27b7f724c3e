"""Add to the training loop: hooks, their events, and their order"""

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from inspect import signature
from time import perf_counter
from typing import Any

from torch import nn

from ..base import check_kinds, did_you_mean, with_comments
from .mistakes import EVENT_NAMES

STEPS = ('do_step', 'do_backward', 'do_opt_step', 'do_zero_grad')
LIFECYCLE = ('before_fit', 'before_epoch', 'before_step', 'do_step', 'after_pred', 'after_loss',
             'do_backward', 'after_backward', 'do_opt_step', 'do_zero_grad', 'after_step',
             'before_valid', 'after_valid', 'after_epoch', 'after_cancel', 'after_fit')
EVENTS = tuple(o for o in LIFECYCLE if o not in STEPS)

class Cancel(Exception):
    "Base class of the exceptions that end a block of the loop early; not an error"

class CancelStep(Cancel):
    "Raise it to skip the rest of the batch"

class CancelEpoch(Cancel):
    "Raise it to skip the rest of the epoch, including its validation"

class CancelFit(Cancel):
    "Raise it to end `fit`"

class GoBack(Cancel):
    "Raise it in training to restore an earlier point by its argument, `f(learn)`, and continue there"

def _check_names(names, owner):
    "Refuse names that look like events or steps but are not; `owner` defines them"
    for name in names:
        if name in LIFECYCLE: continue
        if name in EVENT_NAMES: near = f' Here it is {EVENT_NAMES[name]}.'
        elif re.match(r'(before|after|do)_|on_\w+_(begin|start|end)$', name):
            near = did_you_mean(name.replace('batch', 'step').replace('train', 'fit'), LIFECYCLE)
        else: continue
        raise TypeError(f'{owner} defines `{name}`, which the loop never calls.{near} '
                        f'Events: {", ".join(EVENTS)}. Steps: {", ".join(STEPS)}.')

class Hook:
    """Base class of all hooks. Define the methods that you need:

    `before_fit`      the model is on its device; state may be restored here; also when a stopped fit is resumed
    `before_epoch`    the training pass opens, `learn.training` is True
    `before_step`     `learn.batch` is on the device; in training and validation, like the next two
    `after_pred`      `learn.pred` exists; the default step computes the loss from it afterwards
    `after_loss`      `learn.loss` exists, a 0-d tensor
    `after_backward`  gradients exist; training only
    `after_step`      the batch is done and counted; `learn.stepped` tells whether the optimizer stepped
    `before_valid`    the validation pass opens, `learn.training` is False
    `after_valid`     the validation pass of a fit is done; its values are the newest row of `learn.history.valids`
    `after_epoch`     both passes are done, the newest row of `learn.history` is complete
    `after_cancel`    a batch, an epoch or the fit was cancelled or interrupted; `learn.cancelled` tells which
    `after_fit`       always the last event, after success, cancel and error

    Each is called as `f(learn)`. These methods wrap the step of that name:

    `do_step(learn, nxt)`             forward: from `learn.batch` to `learn.loss` and `learn.result`
    `do_backward(learn, nxt, loss)`   compute the gradients of `loss`; training only, like the next two
    `do_opt_step(learn, nxt)`         step `learn.opt`; return whether it stepped
    `do_zero_grad(learn, nxt)`        clear its gradients

    Call `nxt()` once to run the next wrapper or the step, and return its result. In `do_backward`,
    `nxt(loss/4)` passes another loss to the inner wrappers and the step, `learn.loss` stays; the
    parameter `loss` may be left out.

    A pass trains or validates the model that `model_for` chooses as it opens.
    """
    ord: float = 0                      # lower runs earlier; outermost, for steps
    runs_before: tuple[str, ...] = ()   # names of hook classes that run later than this one; wins over `ord`
    runs_after: tuple[str, ...] = ()    # names of hook classes that run earlier
    unique = False                      # refuse a second hook of this class
    in_dry_run: bool | None = None      # take part in dry runs, such as `lr_find`? None: each hook of a class of yours
    is_own = False                      # each rank has its own state; a checkpoint holds them all
    together: tuple[str, ...] = ()      # methods that every rank must run when `learn.request` asks for one of them
    provides: tuple[str, ...] = ()      # what other hooks find it by, such as 'accumulation': see `learn.provider`
    state_kinds: dict = {}              # what a checkpoint saves: attribute → kind, as for `check_kinds`

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        _check_names(dir(cls), cls.__name__)
        for side in 'runs_before', 'runs_after', 'provides':
            if isinstance(getattr(cls, side), str): setattr(cls, side, (getattr(cls, side),))
        if '__init__' in vars(cls): with_comments(cls.__init__)

    @property
    def name(self) -> str:
        "The name in tables and messages"
        return type(self).__name__

    def model_for(self,
        learn: Any,         # `learn.training` tells which pass opens
        model: nn.Module,   # `learn.own_model`, or what a hook before this one chose
    ) -> nn.Module:
        "Return the model of the pass that opens, in a fit or outside: an average, a wrapped or compiled one"
        return model

    def loss_for(self, learn: Any, loss_fn: Callable | None) -> Callable | None:
        "Return the loss function of the pass that opens"
        return loss_fn

    def state_dict(self) -> dict:
        "Return the state that a checkpoint saves"
        return {k: getattr(self, k) for k in (o.removesuffix('?') for o in self.state_kinds)}

    def load_state_dict(self, state: dict) -> None:
        "Restore what `state_dict` returned; raises ValueError if it does not match `state_kinds`"
        self.take_state(check_kinds(state, self.state_kinds, f'the state of {self.name}'))

    def take_state(self, state: dict) -> None:
        "Assign a state that has been checked"
        for k, v in state.items(): setattr(self, k, v)

    def around_fit(self, learn: Any) -> AbstractContextManager:
        "Wrap a whole fit, from its first event to its last, for example to start a process group"
        return nullcontext()

    def html_below_plot(self) -> str:  # HTML; '' for nothing
        "Return what a notebook shows under the live plot, at each update; may wait for the device"
        return ''

    def __repr__(self): return f'{self.name}({", ".join(points(self))})'

def points(hook: Hook) -> list[str]:  # in the loop's order
    "Return the events and steps for which a hook has methods"
    return [o for o in LIFECYCLE if callable(getattr(hook, o, None))]

class MainProcessHook(Hook):
    "A hook that runs only in the main process"

class LambdaHook(Hook):
    "A hook made of functions: `LambdaHook(after_step=f, ord=5)`"
    def __init__(self,
        *, ord: float = 0,        # low values run first
        name: str | None = None,  # name in tables and messages; None: made of the functions' names
        **functions: Callable,    # event → `f(learn)`, or step → `f(learn, nxt)`, as in `Hook`
    ):
        _check_names(functions, 'LambdaHook')
        for o, f in functions.items():
            if o not in LIFECYCLE:
                raise TypeError(f'LambdaHook got `{o}`, which is not an event or a step.{did_you_mean(o, LIFECYCLE)}')
            if not callable(f): raise TypeError(f'LambdaHook got `{o}={f!r}`: expected a function')
            setattr(self, o, f)
        self.ord = ord
        called = [getattr(f, '__name__', type(f).__name__) for f in functions.values()]
        self._name = name or f'LambdaHook({", ".join(called)})'

    @property
    def name(self) -> str: return self._name

def is_custom(hook: Hook) -> bool:
    "Return whether a hook does what the user wrote: it is of a class of theirs, or a `LambdaHook`"
    return isinstance(hook, LambdaHook) or not type(hook).__module__.startswith('trainer_nb.')

class Call:
    "One method of one hook; counts its calls and the seconds spent in it"
    __slots__ = 'hook', 'point', 'f', 'n', 'time_s'
    def __init__(self, hook: Hook, point: str):
        self.hook, self.point, self.f = hook, point, getattr(hook, point)
        self.n, self.time_s = 0, 0.

    def note(self, e: Exception) -> None:
        "Name the hook in an error"
        e.add_note(f'raised in hook {self.hook.name}, `{self.point}`')

    def __call__(self, learn):
        self.n += 1
        start = perf_counter()
        try: self.f(learn)
        except Cancel: raise
        except Exception as e:
            self.note(e)
            raise
        finally: self.time_s += perf_counter() - start

    def around(self, learn: Any, step: Callable) -> Callable:
        "Wrap the hook's method around a step or the next wrapper"
        f, takes_loss = self.f, self.point == 'do_backward' and _takes_loss(self.f)
        def wrapped(*loss):
            self.n += 1
            nxt, start = _Next(self, step, loss), perf_counter()
            try: return f(learn, nxt, *loss) if takes_loss else f(learn, nxt)
            except Cancel: raise
            except Exception as e:
                if e is not nxt.error: self.note(e)
                raise
            finally:
                self.time_s += perf_counter() - start - nxt.time_s
                nxt.error = nxt.loss = None     # neither an error nor a graph outlives the call
        return wrapped

def _takes_loss(f):
    "Return whether the wrapper of `do_backward` has a parameter for the loss"
    try: return 'loss' in signature(f).parameters
    except (TypeError, ValueError): return False        # some built-in functions have no signature

class _Next:
    "What a wrapper calls as `nxt()`: the next wrapper or the step, with the loss that this one got"
    __slots__ = 'call', 'step', 'loss', 'error', 'time_s'
    def __init__(self, call, step, loss):
        self.call, self.step, self.loss = call, step, loss      # loss: () or a tuple of one
        self.error, self.time_s = None, 0.

    def __call__(self, *other):
        if len(other) > len(self.loss):
            expected = 'nxt() or nxt(loss)' if self.loss else 'nxt()'
            raise TypeError(f'nxt got {len(other)} value{"s" if other[1:] else ""}: expected {expected}')
        if other == (None,): raise TypeError('nxt got None as the loss: pass one, or call nxt() to pass on the same')
        start = perf_counter()
        try: return self.step(*(other or self.loss))
        except Exception as e:
            self.error = e
            if other and isinstance(e, (TypeError, ValueError)):
                e.add_note(f'with the loss that hook {self.call.hook.name} passed on')
            raise
        finally: self.time_s += perf_counter() - start

class Calls:
    "The `Call`s of all hooks by event and step, in the order in which they run"
    def __init__(self, hooks: Iterable[Hook] = (), is_main: bool = True, old: 'Calls | None' = None):
        self.is_main = is_main
        known = {} if old is None else {(id(o.hook), o.point): o for here in old.at.values() for o in here}
        self.hooks = [h for h in hooks if is_main or not isinstance(h, MainProcessHook)]
        self.at: dict[str, tuple[Call, ...]] = dict.fromkeys(LIFECYCLE, ())
        for hook in self.hooks:
            for p in points(hook): self.at[p] += (known.get((id(hook), p)) or Call(hook, p),)

    def fire(self, event: str, learn: Any) -> None:
        "Call every hook that listens to `event`"
        for call in self.at[event]: call(learn)

    def close(self, event: str, learn: Any) -> None:
        "Call every hook that listens to `event` even if some fail, then raise the first error"
        errors = []
        for call in self.at[event]:
            try: call(learn)
            except BaseException as e: errors.append(e)
        if errors: raise errors[0]

    def wrap(self, name: str, step: Callable, learn: Any) -> Callable:
        "Wrap the function `step` in the hooks that wrap the step `name`, the first hook outermost"
        for call in reversed(self.at[name]): step = call.around(learn, step)
        return step

class HookOrderError(ValueError):
    "The relations between hooks form a cycle"

def _is_named(hook, names):
    "Return whether the class of `hook`, or one of its base classes, has one of these names"
    return any(o.__name__ in names for o in type(hook).__mro__)

def predecessors(hook: Hook, hooks: Iterable[Hook]) -> list[Hook]:
    "Return `hooks` that must run earlier, by `runs_after` of this one or `runs_before` of theirs"
    return [o for o in hooks if o is not hook and (
        hook.runs_after and _is_named(o, hook.runs_after) or o.runs_before and _is_named(hook, o.runs_before))]

def _sorted(hooks):
    "Order hooks by their relations, then `ord`, then registration; raises HookOrderError"
    place = {id(h): i for i, h in enumerate(hooks)}
    sorter = TopologicalSorter({i: [place[id(o)] for o in predecessors(h, hooks)] for i, h in enumerate(hooks)})
    try: sorter.prepare()
    except CycleError as e:
        names = ' after '.join(hooks[i].name for i in reversed(e.args[1]))
        raise HookOrderError(f'these hooks wait for one another: {names}. '
                             'Remove one `runs_before` or `runs_after`.') from None
    ready, res = [], []
    while sorter.is_active():
        for i in sorter.get_ready(): heappush(ready, (hooks[i].ord, i))
        _, i = heappop(ready)
        res.append(hooks[i])
        sorter.done(i)
    return res

def as_hooks(hooks: Hook | Iterable[Hook]) -> tuple[Hook, ...]:
    "Return hooks as a tuple"
    return tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)

def _check_hook(hook, others):
    "Raise an error if `hook` cannot be added to the `others`"
    if not isinstance(hook, Hook):
        if isinstance(hook, type): raise TypeError(f'{hook!r} is not a hook: pass an instance')
        how = 'LambdaHook(after_step=f) makes one of a function'
        if hasattr(hook, 'get_last_lr'):
            how = f'LRScheduler(lambda opt: {type(hook).__name__}(opt, ...)) makes one'
        raise TypeError(f'{hook!r} is not a hook; {how}')
    if isinstance(hook.ord, bool) or not isinstance(hook.ord, (int, float)) or hook.ord != hook.ord:
        raise TypeError(f'ord of {hook.name} is {hook.ord!r}: expected a number')
    for h in others:
        if h is hook or (hook.unique and h.name == hook.name):
            raise ValueError(f'this learner already has a hook {h.name}: change that one, or remove it with remove_hook')

class HookList(list):
    "The hooks of a learner, in the order in which they run"
    def __init__(self, hooks: Iterable[Hook] = ()):
        super().__init__()
        self.registered: list[Hook] = []        # in the order of registration
        self.calls = Calls()
        self.add(*hooks)

    def add(self, *hooks: Hook) -> None:
        "Add hooks; raises TypeError, ValueError or HookOrderError, and adds none then"
        for i, hook in enumerate(hooks): _check_hook(hook, [*self.registered, *hooks[:i]])
        self._set([*self.registered, *hooks])

    def remove(self, hook: Hook) -> None:
        "Remove a hook"
        self._set([h for h in self.registered if h is not hook])

    def _set(self, hooks):
        self[:], self.registered = _sorted(hooks), hooks        # the first may raise
        self.calls = Calls(self, self.calls.is_main, old=self.calls)

    def replaced(self, others: dict[int, Hook]) -> 'HookList':  # others: id of a hook → the one in its place
        "Return a list with other hooks in the same places"
        res = HookList()
        res.registered = [others.get(id(h), h) for h in self.registered]
        res[:] = [others.get(id(h), h) for h in self]
        return res

    def get(self, cls: type | str | Hook, default: object = ...) -> Any:
        "Return the first hook of a class, given by itself or by its name; raises KeyError without a default"
        for h in self:
            if h is cls or h.name == cls or isinstance(cls, type) and isinstance(h, cls): return h
        if default is not ...: return default
        names = ', '.join(h.name for h in self) or 'none'
        raise KeyError(f'no hook {getattr(cls, "__name__", cls)} here; hooks: {names}')
