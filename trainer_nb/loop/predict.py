"""What `predict` takes, and the outputs of many batches as one"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..base import map_tensors
from .mistakes import float_dtype

def as_inputs(x: object, dtype: torch.dtype | None) -> Any:
    "Make tensors of the arrays in a nesting; those of float64 get `dtype`, unless that is None"
    if isinstance(x, Mapping): return {k: as_inputs(v, dtype) for k, v in x.items()}
    if type(x) in (list, tuple): return type(x)(as_inputs(o, dtype) for o in x)
    if isinstance(x, Tensor) or not hasattr(x, '__array__'): return x
    res = torch.as_tensor(x)
    return res.to(dtype) if res.dtype == torch.float64 and dtype is not None else res

class _InBatches:
    "Batches of inputs that `prepare` makes of rows, texts or paths when they are read"
    def __init__(self, prepare, data, bs): self.prepare, self.data, self.bs = prepare, data, bs
    def __len__(self): return -(-len(self.data)//self.bs)
    def __iter__(self):
        for i in range(0, len(self.data), self.bs): yield self.prepare(self.data[i:i + self.bs])

def prepared(learn: Any, data: tuple) -> tuple:
    "Return a loader of what `predict` got; 'bare' if its batches (x,) were made of one `x`, or 'inputs'"
    dtype = float_dtype(learn.own_model)
    if len(data) > 1:
        inputs = as_inputs(data, dtype)
        if not all(isinstance(o, Tensor) for o in inputs): raise TypeError(
            f'predict got ({", ".join(type(o).__name__ for o in inputs)}): expected one tensor or array for each '
            'input of the model, or data alone')
        return learn.loader_for(inputs), 'inputs'
    [x] = data
    if isinstance(x, (str, PathLike)): raise TypeError(f'predict got the text {str(x)[:40]!r}: pass a list of texts')
    is_frame, has_own = hasattr(x, 'iloc'), learn.is_own('predict_step')
    is_listed = isinstance(x, (list, tuple)) and bool(x) and isinstance(x[0], (str, PathLike))
    if (is_frame or is_listed) and not has_own:
        found = (getattr(o, 'inputs', None) for o in learn.objects.values())
        prepare = next(filter(callable, found), None)
        if prepare is not None: return _InBatches(prepare, x, learn.bs), 'inputs'
    if is_listed or is_frame and has_own: return _InBatches(lambda rows: (rows,), x, learn.bs), 'bare'
    if isinstance(x, Mapping):       # copied, as a step may write to it in place
        return [map_tensors(Tensor.clone, as_inputs(x, dtype) if type(x) is dict else x)], ''
    is_bare = isinstance(x, Tensor) or hasattr(x, '__array__')
    return learn.loader_for((x,) if is_bare else x), 'bare' if is_bare else ''

def about_step(batch: object, how: str) -> str:
    "Say what `predict` runs where it failed in a step of the user's own, and show a `predict_step`"
    inputs = '*batch' if isinstance(batch, (list, tuple)) and how != 'bare' else 'batch'
    if isinstance(batch, Mapping): inputs = ', '.join(f'batch[{k!r}]' for k in batch)
    return ('predict ran your own step: pass whole batches, as in training, or write\n'
            f'    def predict_step(batch, learn): return learn.model({inputs})\n'
            'and pass it to the learner, Learner(..., predict_step=predict_step)')

def _named(x):
    "Return the values of a mapping, named tuple, dataclass or tuple by name; None for anything else"
    if isinstance(x, Mapping): return dict(x.items())
    if hasattr(x, '_fields'): return dict(zip(x.__match_args__, x))
    if is_dataclass(x) and not isinstance(x, type): return {o.name: getattr(x, o.name) for o in fields(x) if o.init}
    return dict(enumerate(x)) if isinstance(x, (list, tuple)) else None

def _made(kind, values):
    "Make a mapping, sequence or dataclass like those of the batches"
    if hasattr(kind, '_fields'): return kind(*values.values())
    if issubclass(kind, (list, tuple)): return kind(values.values())
    if not issubclass(kind, Mapping): return kind(**values)
    try: return kind(values)
    except TypeError: return values

def _copy(t): return t.detach().to('cpu', copy=True)

def _shown(x):
    if isinstance(x, Tensor): return f'tensor of shape {tuple(x.shape)}'
    return f'{type(x).__name__} of {len(x)}' if isinstance(x, (list, tuple)) else type(x).__name__

def _kind_of(x, sizes, name):
    "Say how to read the output of a batch of one of `sizes` samples"
    if isinstance(x, Tensor):
        if x.ndim and (not sizes or len(x) in sizes) or not x.ndim and sizes == {1}: return 'rows'
        if not x.ndim and name.endswith("['loss']"): return 'rows'      # of a model that returns its own loss
    else:
        # a detector's targets are often a tuple of dicts
        is_listed = isinstance(x, list) or type(x) is tuple and bool(x) and isinstance(x[0], Mapping)
        if is_listed and (not sizes or len(x) in sizes): return 'samples'
        if not is_listed and _named(x) is not None or isinstance(x, list): return 'fields'
        if not isinstance(x, (str, bytes)): return 'objects'
    size = ' or '.join(map(str, sorted(sizes))) or 'unknown size'
    raise ValueError(
        f'{name} of a batch of {size} are a {_shown(x)}: expected one row or one entry of a list for each sample. '
        "If the batch holds another number of samples, or the outputs have other rows, return that number as 'n' "
        'from the step')

class Joined:
    "Outputs of several batches as one, on the host: rows of tensors, entries of lists, fields of nestings"
    def __init__(self, name: str):
        self.name = name
        self.kind, self.type, self.parts = None, None, None     # of the first batch; the outputs

    def add(self, x: object, sizes: set[int]) -> None:
        "Add a copy of the output of a batch of one of `sizes` samples; refuse what does not join"
        if isinstance(x, (int, float)) or hasattr(x, '__array__') and not isinstance(x, Tensor): x = torch.as_tensor(x)
        kind = _kind_of(x, sizes, self.name)
        if self.kind is None: self.kind, self.type, self.parts = kind, type(x), {} if kind == 'fields' else []
        if kind != self.kind: raise ValueError(
            f'{self.name} are a {_shown(x)} here, which is read as {kind}, but were a '
            f'{self.type.__name__} before, which was read as {self.kind}')
        if kind == 'samples': self.parts += [map_tensors(_copy, o) for o in x]
        elif kind == 'objects': self.parts.append(x)
        elif kind == 'fields': self._add_fields(x, sizes)
        else:
            x = x if x.ndim else x[None]
            if self.parts and x.shape[1:] != self.parts[0].shape[1:]: raise ValueError(
                f'{self.name} have rows of shape {tuple(x.shape[1:])} in one batch and '
                f'{tuple(self.parts[0].shape[1:])} in another: pad them, or return a list of one tensor for each sample')
            self.parts.append(_copy(x))

    def _add_fields(self, x, sizes):
        named = {k: o for k, o in _named(x).items() if not hasattr(o, 'get_seq_length')}    # large caches
        if self.parts and self.parts.keys() != named.keys(): raise ValueError(
            f'{self.name} have the entries {list(named)} here, but had {list(self.parts)} before')
        for k, o in named.items():
            if k not in self.parts: self.parts[k] = Joined(f'{self.name}[{k!r}]')
            self.parts[k].add(o, sizes)

    def result(self) -> Any:    # of the type of the outputs
        "Join all outputs"
        if self.kind == 'fields': return _made(self.type, {k: o.result() for k, o in self.parts.items()})
        if self.kind == 'rows': return torch.cat(self.parts)
        return None if all(o is None for o in self.parts) else self.parts
