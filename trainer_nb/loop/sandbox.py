"""Train a few batches, and leave everything as it was"""

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from itertools import chain
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..base import forget_iterator, listed
from ..data import Pass, each, end_workers
from .fit import Fit, Interrupts, Phase, Training
from .history import History
from .hooks import STEPS, Calls, CancelEpoch, Hook, MainProcessHook, points
from .optim import parameters, trained
from .snapshot import snapshot

_OWN = vars(nn.Module()).keys()     # attributes that torch gives each module

def _is_library(f): return (f.__module__ or '').partition('.')[0] in ('torch', 'trainer_nb')
def _modules(learn): return dict.fromkeys(chain.from_iterable(o.modules() for o in trained(learn)))

def _data(dls):
    "Return loaders and their data sets, and the data sets inside those"
    found = [*chain.from_iterable(map(each, dls))]
    for o in found:
        inner = getattr(o, 'dataset', None)
        if all(inner is not other for other in (None, *found)): found.append(inner)
    return found

def _owners(learn, data):
    "Return the objects whose attributes are restored: the learner, modules, data, steps and the user's hooks"
    steps = (f.__self__ if isinstance(f, MethodType) else f
             for f in (learn.train_step, learn.eval_step, learn.own_loss_fn))
    hooks = (h for h in learn.hooks if not _is_library(type(h)))
    found = learn, *_modules(learn), *data, *steps, *hooks
    return [o for o in {id(o): o for o in found}.values()
            if not isinstance(o, FunctionType) and type(getattr(o, '__dict__', None)) is dict]

def _collections(learn):
    "Return what the lists, dicts and sets of the user's modules hold, by name"
    return {(f'{type(m).__name__}.{k}', id(o)): [*o, *(o.values() if isinstance(o, dict) else ())]
            for m in _modules(learn) if not _is_library(type(m))
            for k, o in vars(m).items() if k not in _OWN and isinstance(o, (list, dict, set))}

def _snapshot_of(learn, has_loaders=True):
    "Capture a learner with all that it owns; without loaders if their passes may be open"
    dls = (learn.train_dl, learn.valid_dl) if has_loaders else ()
    data = _data(dls)
    owners, ids = _owners(learn, data), {*map(id, data)}     # of those whose tensors are not copied
    places = [*map(vars, _optimizers(learn)), *(vars(o) for o in owners if id(o) not in ids)]
    for m in _modules(learn): places += [o for k, o in vars(m).items() if k in _OWN and isinstance(o, dict)]
    places += [dict(enumerate([*o.parameters(), *o.buffers()])) for o in trained(learn)]    # of scripted modules, too
    before = snapshot(places, [vars(o) for o in owners if id(o) in ids], learn.objects.values(), *dls)
    for dl in dls: before.callback(end_workers, dl)         # the first to run
    return before

@contextmanager
def unchanged(learn: Any) -> Iterator[None]:
    "Restore a learner and what it owns, however the block ends; warn of collections of modules that changed"
    before, held = _snapshot_of(learn), _collections(learn)
    try: yield
    finally:
        before.close()
        now = _collections(learn)
        names = [name for (name, i), old in held.items() if [*map(id, now.get((name, i), old))] != [*map(id, old)]]
        if names: warnings.warn(
            f'{listed(names, 5)} changed in a dry run and is not put back: keep what steps change in numbers, '
            'buffers or tensors of the module, or in an object in Learner(state=...)', stacklevel=3)

_INSIDE = {*STEPS, 'before_step', 'after_pred', 'after_loss', 'after_backward'}

def _takes_part(hook):
    "Return whether a hook takes part in dry runs: it says so, is the user's, or acts in a step"
    if hook.in_dry_run is not None: return hook.in_dry_run
    if isinstance(hook, MainProcessHook): return False
    return next(filter(_is_library, type(hook).__mro__)) is Hook or bool(_INSIDE & set(points(hook)))

def _copied_hooks(learn):
    "Copy each hook that takes part; a copy shares the learner's parts with its original"
    own = [learn, learn.history, *learn.opts.values(), *_modules(learn), *_data((learn.train_dl, learn.valid_dl)),
           *learn.own_model.parameters(), *learn.own_model.buffers()]
    memo, copies = {id(o): o for o in own}, {}
    for h in filter(_takes_part, learn.hooks):
        try: copies[id(h)] = deepcopy(h, memo)
        except Exception as e:
            warnings.warn(f'{h.name} stays out of the dry run: it cannot be copied '
                          f'({type(e).__name__}: {e}). Set `in_dry_run = False` in its class if '
                          'steps do not need it', stacklevel=4)
    return copies

class _Trial(Training):
    "The phase of a dry run, which is one long epoch: it keeps only the latest losses"
    is_last = False
    def __init__(self, pass_: Pass | None = None):
        super().__init__(pass_)
        self.latest: tuple = None, 0        # losses and their weight

    def add(self, losses: Mapping) -> None:
        loss = losses if losses.keys() - {'loss'} else losses.get('loss')
        self.latest, self.recorded = (loss, self.weight), {}

    def place(self) -> str: return f'in a dry run, in batch {self.learn.state.batch_idx}; nothing has changed'

class DryRun:
    "Training batches, one by one, by a twin of the learner"
    def __init__(self, learn: Any, phase: _Trial, interrupts: Interrupts):
        self.learn, self.phase, self.interrupts, self.n_passes = learn, phase, interrupts, 0

    def train_batch(self) -> tuple:   # (loss, weight): number or 0-d tensor, dict of them, or None; number
        "Train on the next batch; `learn.stepped` of the twin says whether an optimizer stepped"
        phase = self.phase
        with self.interrupts.open():
            while True:
                if is_new := phase.pass_ is None: self._open_pass()
                phase.latest = None, 0
                try:
                    for batch in phase.pass_:
                        phase.run([batch])
                        return phase.latest
                except CancelEpoch:
                    self.learn.clear_grads()
                    phase.clear()
                    phase.pass_, self.n_passes = None, 0
                    return phase.latest
                if is_new: raise ValueError('train_dl yielded no batch: is it empty?')
                phase.pass_ = None

    def _open_pass(self):
        self.phase.pass_, self.n_passes = Pass(self.learn.train_dl), self.n_passes + 1
        if self.n_passes > 1: return          # one long epoch: a window stays open
        self.learn.state.reset_epoch()
        self.learn.calls.fire('before_epoch', self.learn)

    @property
    def is_over(self) -> bool:
        "Whether an interrupt or `learn.stop()` has asked to end the dry run"
        return bool(self.learn.requests)

def _optimizers(learn):
    "Return the optimizers, and those inside them"
    found = list(learn.opts.values())
    for o in found: found += [v for v in vars(o).values() if isinstance(v, Optimizer) and v not in found]
    return found

def _copy_optimizers(learn):
    "Let the optimizers work with copies of what they hold"
    found = _optimizers(learn)
    memo = {id(o): o for o in (*learn.own_model.parameters(), *chain.from_iterable(map(parameters, found)), *found)}
    for o in found: vars(o).update(deepcopy(vars(o), memo))

def _twin(learn, copies, asked):
    "Return a learner with the same parts, whose counters, history, requests and hooks are its own"
    twin = copy(learn)
    twin.phase, twin.fitting, twin.hooks = Phase(), Fit(), learn.hooks.replaced(copies)
    twin.fitting.state, twin.fitting.learn = 'running', twin
    twin.hooks.calls = Calls([o for o in twin.hooks if o in copies.values()], learn.is_main)
    twin.state, twin.world, twin.history = replace(learn.state), copy(learn.world), History()
    twin.requests, twin.cancelled, twin.stopped = asked, None, None
    return twin

@contextmanager
def without_hooks(learn: Any) -> Iterator[Any]:
    "Compute training steps of a twin without hooks in the phase that runs; restore all but the loaders"
    before, twin = _snapshot_of(learn, has_loaders=False), _twin(learn, {}, deque())
    twin.world = learn.world        # of its ranks
    try:
        with _Trial().opened(twin): yield twin
    finally: before.close()

@contextmanager
def dry_run(learn: Any) -> Iterator[DryRun]:
    "Train some batches, and restore everything afterwards; see `Learner.dry_run`"
    learn.check()
    if hasattr(learn.train_dl, '__next__'): raise ValueError(
        f'train_dl is a {type(learn.train_dl).__name__}, which can be read only once: its batches '
        'would be lost. Pass something that can be read again.')
    copies, asked = _copied_hooks(learn), deque()
    with Interrupts(SimpleNamespace(requests=asked)) as interrupts, unchanged(learn):
        _copy_optimizers(learn)
        for dl in (*each(learn.train_dl), *each(learn.valid_dl)): forget_iterator(dl)
        twin, phase = _twin(learn, copies, asked), _Trial()
        twin.fitting.train = phase
        try:
            with interrupts.open(): twin.fitting.fire_first()
            with phase.opened(twin): yield DryRun(twin, phase, interrupts)
        finally:
            twin.calls.close('after_fit', twin)
            if phase.pass_ is not None: phase.pass_.close()
    if interrupts.n > 1: raise KeyboardInterrupt
