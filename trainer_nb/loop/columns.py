"""The values of a pass by batch, and their means"""

import math, warnings
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain, product
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..base import check_kinds, map_tensors
from .metrics import Metric, load_object_state, object_state, reset_copy
from .steps import is_number, kept, stack_scalars
from .world import World

CHUNK = 256     # batches that are packed together

def _sent(values):
    "Return an array of numbers; or a tensor on its way to the host, and the event after which it is there"
    if not any(isinstance(o, Tensor) for o in values): return array('d', values), None
    t = stack_scalars(values)
    if not t.is_cuda: return t.to('cpu', torch.float64), None
    res = torch.empty(len(t), dtype=torch.float64, pin_memory=True).copy_(t, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return res, event

def _as_array(t):
    "Copy a tensor on the host to an array"
    res = array('d', bytes(8*len(t)))
    if len(t): torch.frombuffer(res, dtype=torch.float64).copy_(t)
    return res

def _as_tensor(values):
    return torch.frombuffer(values, dtype=torch.float64) if values else torch.zeros(0, dtype=torch.float64)

COLUMNS_KINDS = {'n': int, 'start': int, 'values': {str: Tensor}, 'weights': {str: Tensor}, 'of_pass': [str]}

class Columns:
    """Values of batches by column, with the weights of their means

    They are numbers, or 0-d tensors of a device, which wait there for at most 512 batches and are then on
    the host. Where a batch has no value there is nan, and a weight of 0. Weights, and some columns, hold only
    the pass that is open. Another thread may `fetch` at any time; it may miss the latest batches.
    """
    def __init__(self):
        self.n = self.start = 0                     # finished batches; those before the open pass
        self.values: dict[str, array] = {}          # column → doubles, from the first batch, or from `start` on
        self.weights: dict[str, array] = {}         # column with a mean → its weights, from `start` on
        self.of_pass: set[str] = set()              # columns that hold the open pass only
        self.rows: list[tuple] = []                 # (values, weights) of batches that are not packed yet
        self.arriving: list[tuple] = []             # packed, on their way to the host
        self.thread: int | None = None              # that of the fit, which alone may pack
        self.n_revised = 0                          # how often recorded values were replaced

    def open(self) -> None:
        "Begin a pass"
        self._settle()
        for name in self.of_pass: self.values.pop(name, None)
        self.start, self.weights, self.of_pass = self.n, {}, set()

    def add(self, values: Mapping, weights: Mapping, of_pass: Iterable[str] = ()) -> None:
        "Add the values of a batch, and the weights of those with a mean; columns in `of_pass` are forgotten after it"
        self.rows.append((values, weights))
        self.of_pass.update(of_pass)
        self.n += 1
        if len(self.rows) >= CHUNK: self._pack()

    def _pack(self):
        "Send the latest batches to the host, without waiting for a device"
        self._take()        # those before have arrived
        first, rows, self.rows = self.n - len(self.rows), self.rows, []
        for store, fill, found in zip((self.values, self.weights), (math.nan, 0.), zip(*rows)):
            for name in dict.fromkeys(chain.from_iterable(found)):
                self.arriving.append((store, name, first, *_sent([o.get(name, fill) for o in found])))
        if not any(event for *_, event in self.arriving): self._take()

    def _take(self):
        "Append what has arrived, or wait for it"
        for store, name, first, values, event in self.arriving:
            if event is not None: event.synchronize()
            column = store.setdefault(name, array('d'))
            column += self._gap(store, first - self._first(store, name) - len(column))
            column += values if isinstance(values, array) else _as_array(values)
        self.arriving = []

    def _first(self, store, name): return self.start if store is self.weights or name in self.of_pass else 0
    def _gap(self, store, n): return array('d', [0. if store is self.weights else math.nan])*n

    def _settle(self):
        "Bring all values to the host; waits for the device"
        if self.thread not in (None, get_ident()): return
        if self.rows: self._pack()
        self._take()

    def _slice(self, store, name, start, n):
        res = store.get(name, array('d'))[max(start - self._first(store, name), 0):]
        return res + self._gap(store, n - start - len(res))

    @property
    def n_arrived(self) -> int:
        "Number of batches whose values are on the host"
        return self.arriving[0][2] if self.arriving else self.n - len(self.rows)

    def names(self, wait: bool = True) -> list[str]:
        "Return the names of the columns that stay"
        if wait: self._settle()
        return [o for o in [*self.values] if o not in self.of_pass]

    def names_with_mean(self) -> list[str]:
        "Return the names of the columns that have a mean in the open pass"
        self._settle()
        return [*self.weights]

    def fetch(self,
        name: str,
        start: int = 0,         # first batch to return
        n: int = 0,             # fill the column up to so many batches in all
        wait: bool = True,      # for values that are still on a device
    ) -> array:                 # of double
        "Copy the values of a column"
        if wait: self._settle()
        return self._slice(self.values, name, start, n)

    def extend(self, n: int, values: Mapping[str, Iterable[float]]) -> None:
        "Add `n` batches at once"
        self._settle()
        self.arriving = [(self.values, name, self.n, array('d', o), None) for name, o in values.items()]
        self.n += n

    def replace(self, name: str, start: int, values: Iterable[float]) -> None:
        "Replace the values of a column from batch `start` on"
        first = self._first(self.values, name)
        self.values[name] = self.fetch(name, first, start)[:start - first] + array('d', values)
        self.n_revised += 1

    def pass_of(self, name: str) -> tuple[array, array]:
        "Return the values of the open pass in a column, and their weights"
        self._settle()
        return tuple(self._slice(store, name, self.start, self.n) for store in (self.values, self.weights))

    def totals(self, names: Iterable[str]) -> list[list[float]]:
        "Return [Σ weight·value, Σ weight] of columns over the open pass"
        import numpy as np
        res = []
        for name in names:
            v, w = map(np.frombuffer, self.pass_of(name))
            if not (w >= 0).all(): raise ValueError(
                "a step returned an 'n' below 0, or nan: it is the weight of the loss, such as the number of "
                'samples or mask.sum()')
            with np.errstate(all='ignore'):
                total = np.multiply(v, w, out=np.zeros(len(v)), where=w > 0).sum()     # a value may be nan
            res.append([float(total), float(w.sum())])
        return res

    def agree(self, world: World) -> None:
        "Replace the values with a mean that stay by those of the global batches of all ranks"
        mine = [o for o in self.names_with_mean() if o not in self.of_pass]
        for name in dict.fromkeys(chain.from_iterable(world.all_gather(mine))):
            v, w = map(_as_tensor, self.pass_of(name))
            total, weight, plain = world.sum(torch.stack([torch.where(w > 0, v*w, 0.), w, v]))
            mean = torch.where(weight > 0, total/weight, plain/world.size)      # a batch may weigh nothing
            self.replace(name, self.start, mean.tolist())

    def state_dict(self, start: int = 0) -> dict:
        "Return the values from batch `start` on, as tensors"
        self._settle()
        def tensors(store): return {k: _as_tensor(self._slice(store, k, start, 0)) for k in store}
        return {'n': self.n, 'start': self.start, 'values': tensors(self.values), 'weights': tensors(self.weights),
                'of_pass': sorted(self.of_pass)}

    def load_state_dict(self, state: Mapping) -> None:
        "Restore a state"
        check_kinds(state, COLUMNS_KINDS, 'columns')
        self.n, self.start, self.rows, self.arriving = state['n'], state['start'], [], []
        self.values, self.weights = ({k: _as_array(v) for k, v in state[o].items()} for o in ('values', 'weights'))
        self.of_pass = set(state['of_pass'])
        self.n_revised += 1

    def load_pass(self, state: Mapping) -> None:
        "Restore the values of the open pass, which each rank has of its own shards"
        check_kinds(state, COLUMNS_KINDS, 'columns')
        for name in self.of_pass: self.values.pop(name, None)       # of another rank
        self.weights, self.of_pass = {k: _as_array(v) for k, v in state['weights'].items()}, set(state['of_pass'])
        for name, values in state['values'].items(): self.replace(name, self.start, values.tolist())

_RESERVED = 'kind', 'batch', 'epoch', 'step', 'time_s'      # columns of tables and logs
_MEANT = {'loss', 'pred', 'targ', 'n', 'loss_n', 'ignored', 'reduction', *_RESERVED}    # keys that mean something

ACCUMULATOR_KINDS = {'columns': (None, COLUMNS_KINDS), 'metrics': [str], 'left_out': [str], 'returned': [str],
                     'losses': [str], 'objects': {str: object}}

class Accumulator:
    """The losses and metrics of one pass, by batch, and their means

    Of several validation sets there are means over all, weighted by samples, and those of each, as '<set>_loss'.
    """
    def __init__(self,
        metrics: Sequence[Metric],
        device: torch.device,               # for the state of metric objects
        columns: Columns | None = None,     # those of the history, for training; default: its own
        sets: Iterable[str] = ('',),        # names of validation sets; '': the only one
        is_sum: bool = False,               # losses are sums over samples, not means
        may_miss: bool = False,             # leave out a metric whose inputs the first batch lacks: validation has them
        inputs: Callable = tuple,           # `f()` → keys that the default step passes on from the current batch
    ):
        self.prefix = 'valid_' if columns is None else 'train_'
        self.columns = Columns() if columns is None else columns
        self.metrics, self.sets, self.inputs = [*metrics], [*sets], inputs
        self.is_sum, self.may_miss = is_sum, may_miss
        self.objects = {self._name(m.name, s): (m, s, m.call(reset_copy, m.f, device))     # a metric object for each set
                        for m, s in product(metrics, self.sets) if m.is_object}
        self.entries: dict[str, list[str]] = {}     # metric function → names of its values
        self.left_out: set[str] = set()             # metrics that have no inputs in this pass
        self.losses: dict[str, None] = {}           # columns of losses
        self.returned: dict[str, None] = {}         # names of the numbers that the step returns beside them
        self.others = _MEANT.union(*((m.name, m.pred, m.targ) for m in metrics))    # keys that are none of these
        self.others |= {self._name(o, s) for o in ['loss', *(m.name for m in metrics)] for s in self.sets}

    def _name(self, name, of_set): return f'{of_set}_{name}' if of_set else name

    def add(self,
        losses: Mapping,            # name → number or tensor, `kept`; empty: the step returned none
        result: Mapping,            # of the step
        n: Any, weight: Any,        # samples, or what the step returned as 'n'; weight of the losses
        recorded: Mapping = {},     # name → (value, whether it has a mean)
        rates: Mapping = {},        # column → learning rate
        of_set: str = '',           # name of the validation set
        counts: bool = True,        # False: the batch only keeps the ranks in step
    ) -> None:
        "Add a batch"
        values, weights, prefix = {}, {}, self.prefix
        is_sum = self.is_sum or result.get('reduction') == 'sum'
        n, weight = kept(n), kept(n if is_sum else weight)
        def put(name, v):
            if is_sum: v = v/n if isinstance(n, Tensor) or n else math.nan     # an empty shard has no samples
            values[prefix + name], weights[prefix + name] = v, weight
        for name, loss in losses.items():
            put(name, loss)
            self.losses[prefix + name] = None
        if not self.others.issuperset(result):
            for name, value in self._numbers(result).items():
                if prefix + name in values or name in recorded: self._leave_out(name)    # another value has that column
                else: put(name, value)
        values |= rates
        for name, (value, has_mean) in recorded.items():
            values[name] = value
            if has_mean: weights[name] = n
        of_pass = {f'n {of_set}': n}
        if self.metrics and counts: self._measure(result, n, of_set, of_pass, weights)
        values |= of_pass
        for column in [*weights] if of_set else ():
            own = prefix + self._name(column.removeprefix(prefix), of_set)
            values[own], weights[own] = values[column], weights[column]
            if column in self.losses: self.losses[own] = None
        self.columns.add(values, weights, of_pass)

    def _measure(self, result, n, of_set, values, weights):
        "Pass the result to the metrics, and add the values of functions"
        may_miss = self.may_miss and self.columns.n == self.columns.start
        for m in self.metrics:
            if may_miss and not {m.pred, m.targ} <= result.keys(): self.left_out.add(m.name)
            if m.name in self.left_out: continue
            pred, targ = (map_tensors(Tensor.detach, o) if type(o) is not Tensor else o.detach() for o in m.inputs(result))
            if m.is_object:
                m.call(self.objects[self._name(m.name, of_set)][2].update, pred, targ)
                continue
            value, weight = m.call(m.f, pred, targ), n
            is_single = isinstance(value, Tensor) and not value.ndim or isinstance(value, (int, float))
            entries = {m.name: value} if is_single else m.columns(value)
            before = self.entries.setdefault(m.name, [*entries])
            if [*entries] != before: raise ValueError(
                f'metric `{m.name}` returned {", ".join(entries) or "nothing"}, but {", ".join(before)} before: '
                'expected the same for each batch')
            if m.n_counted is not None and type(targ) is Tensor: weight = kept(m.n_counted(targ))   # 'n' weights the loss
            for name, o in entries.items():
                column = self.prefix + name
                if column in self.losses or column in values: raise _double(name, m)
                values[column], weights[column] = kept(o), weight

    def _numbers(self, result):
        "Return the numbers that the step returned beside its loss; a key is judged at its first value"
        res = {}
        for name, value in result.items():
            if value is None or name in self.others: continue
            if name in self.returned and not is_number(value): warnings.warn(
                f'the step returned a number as {name!r} before and now a {type(value).__name__}: '
                f'the column of {name!r} ends here; return a 0-d float tensor for each batch, or none', stacklevel=2)
            is_column = name in self.returned or isinstance(name, str) and name not in self.inputs()
            if is_number(value) and is_column: self.returned[name], res[name] = None, kept(value)
            else: self._leave_out(name)
        return res

    def _leave_out(self, name):
        "Make no column of a key"
        self.others.add(name)
        self.returned.pop(name, None)

    def means(self, world: World) -> dict[str, float]:
        "Compute the means of all ranks, 'loss' and metrics; empty if there was no batch"
        columns, found = self.columns, {}       # found: name of a value of metric objects → (it, samples) of each set
        if columns.n == columns.start: return {}
        names = [*dict.fromkeys(chain.from_iterable(world.all_gather(columns.names_with_mean())))]
        totals = columns.totals(names)
        if world.size > 1: totals = world.sum(torch.tensor(totals, dtype=torch.float64)).tolist()
        res = {k.removeprefix(self.prefix): total/w if w else math.nan for k, (total, w) in zip(names, totals)}
        last = {k: res.pop(k) for k in self.returned if k in res}
        for m, of_set, o in self.objects.values():
            if m.name in self.left_out: continue
            n = sum(world.all_gather(sum(v for v in columns.fetch(f'n {of_set}', columns.start) if v == v)))
            for name, v in m.call(lambda: m.columns(o.compute())).items():
                if name in res: raise _double(name, m)
                found.setdefault(name, []).append((float(v), n))
                if of_set: last[self._name(name, of_set)] = float(v)
        for name, pairs in found.items():
            n = sum(n for _, n in pairs)
            res[name] = pairs[0][0] if len(pairs) == 1 else sum(v*n for v, n in pairs)/n if n else math.nan
        res = {**res, **{k: v for k, v in last.items() if k not in res}}
        return dict(sorted(res.items(), key=lambda o: any(o[0].startswith(f'{s}_') for s in self.sets if s)))

    def running(self, is_alone: bool = True) -> dict[str, float]:
        "Compute the means so far of all but losses, on this rank, for a live display; large metric objects are left out"
        names = [o for o in self.columns.names_with_mean() if o not in self.losses]
        found = zip(names, self.columns.totals(names))
        res = {k.removeprefix(self.prefix): total/w for k, (total, w) in found if w}
        for m, of_set, o in self.objects.values() if is_alone and self.columns.n > self.columns.start else ():
            if m.name not in self.left_out: res |= {self._name(k, of_set): v for k, v in _computed(m, o).items()}
        return res

    def state_dict(self) -> dict:
        "Return the state; the history holds the columns of training"
        columns = self.columns.state_dict() if self.prefix == 'valid_' else None
        return {'columns': columns, 'metrics': [m.name for m in self.metrics], 'left_out': sorted(self.left_out),
                'returned': [*self.returned], 'losses': [*self.losses],
                'objects': {k: object_state(o) for k, (_, _, o) in self.objects.items()}}

    def load_state_dict(self, state: Mapping) -> None:
        "Restore a state"
        check_kinds(state, ACCUMULATOR_KINDS, 'the state of an accumulator')
        mine, theirs = [m.name for m in self.metrics], state['metrics']
        if mine != theirs or self.objects.keys() != state['objects'].keys():
            raise ValueError(f'the pass began with the metrics {theirs}, and now there are {mine}')
        for k, (_, _, o) in self.objects.items(): load_object_state(o, state['objects'][k])
        self.left_out, self.returned = set(state['left_out']), dict.fromkeys(state['returned'])
        self.losses = dict.fromkeys(state['losses'])
        if state['columns'] is not None: self.columns.load_state_dict(state['columns'])

def _double(name, metric): return ValueError(
    f'two columns are called `{name}`, the second one in metric `{metric.name}`: name one, Metric(f, name=...)')

_SMALL = 2**20      # bytes: a larger metric object is not copied for a live display

def _computed(metric, o):
    "Compute a copy of a metric object; nothing if it is large, or has too few samples as yet"
    sizes = []
    map_tensors(lambda t: sizes.append(t.nbytes), object_state(o))
    if sum(sizes) > _SMALL: return {}
    try: return {name: float(v) for name, v in metric.columns(deepcopy(o).compute()).items()}
    except Exception: return {}

def check_column(name: Any, taken: Iterable[str] = ()) -> None:
    "Refuse to record a value under a name of a column that the loop makes"
    if not isinstance(name, str): raise TypeError(f'record got the name {name!r}: expected a string')
    if name.startswith(('train_', 'valid_')): raise ValueError(
        f'`{name}` cannot be recorded: `train_` and `valid_` are prefixes of the columns that the loop makes. '
        f'record({name[6:]!r}, value, mean=True) makes train_{name[6:]} and valid_{name[6:]}, as means over samples')
    if name in taken or name in _RESERVED:
        raise ValueError(f'`{name}` is the name of a column already: choose another one')
