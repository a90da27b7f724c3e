"""The default step: unpack a batch, compute the loss and its weight"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import common_device

def as_step(f: Callable, learn: Any) -> Callable:
    "Make a step a function of the batch alone, as the loop calls it"
    params = [p for p in signature(f).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = [p for p in params if p.default is Parameter.empty or p.name == 'learn']
    return partial(f, **{needed[1].name: learn}) if len(needed) > 1 else f

def needed_names(f: object) -> list[str]:
    "Return the names of the arguments that a call must give by place; none where nobody knows"
    try: params = signature(f).parameters.values()
    except (TypeError, ValueError): return []
    return [p.name for p in params if p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty]

def unpack(batch: object, loss_fn: Callable | None) -> tuple:
    "Return positional and named inputs of the model, and the target"
    if isinstance(batch, Mapping):
        key = next((o for o in ('labels', 'targ') if o in batch), None)
        if loss_fn is None: return (), dict(batch), batch.get(key)
        if key is None: raise KeyError(
            f'the batch has no `labels` for loss_fn; it has {", ".join(map(repr, batch))}: '
            'call the target so, or write a train_step, f(batch, learn)')
        return (), {k: v for k, v in batch.items() if k != key}, batch[key]
    is_list = isinstance(batch, (list, tuple))
    if type(batch) in (list, tuple) and len(batch) > 1:
        return batch if loss_fn is None else batch[:-1], {}, batch[-1]
    if loss_fn is None: return batch if is_list else (batch,), {}, None
    kind = type(batch).__name__ + (f' of {len(batch)}' if is_list else '')
    raise TypeError(f'the loader yielded a {kind}; with a loss_fn the default step takes '
                    '(inputs..., target) or a mapping. Write a train_step for other batches.')

def stack_scalars(values: Sequence[Tensor | float]) -> Tensor:
    "Pack 0-d tensors and numbers into a 1-d tensor on their `common_device`, without reading them"
    if set(map(type, values)) <= {float, int}: return torch.tensor(values, dtype=torch.float64)
    try: return torch.stack(values).reshape(len(values))
    except (TypeError, RuntimeError):
        device = common_device(values)
        def as_scalar(o):
            t = torch.as_tensor(o, dtype=torch.float32).detach().reshape(())
            return t.to(device, non_blocking=True)
        return torch.stack([as_scalar(o) for o in values])

def on_host(t: Tensor) -> bool:
    "Return whether a tensor can be read without waiting for a device"
    return t.is_cpu

def kept(value: object) -> Any:
    "Read a single value on the host; copy that of a device, without its graph"
    if not isinstance(value, Tensor): return value
    return value.item() if on_host(value) and value.numel() == 1 else value.detach().clone()

_COUNTING = F.cross_entropy, F.nll_loss, nn.CrossEntropyLoss.forward, nn.NLLLoss.forward

def loss_option(loss_fn: object, name: str, default: object = None) -> Any:
    "Return an option that a loss function was made with"
    keywords = loss_fn.keywords if isinstance(loss_fn, partial) else {}
    return getattr(loss_fn, name, keywords.get(name, default))

def maker_of(loss_fn: object) -> Callable:
    "Return the function that a loss is, or that a `partial` calls; of an object its class"
    f = getattr(loss_fn, 'func', loss_fn)
    return f if hasattr(f, '__name__') else type(f)

def ignored_id(loss_fn: object) -> int:
    "Return the target that a loss of class ids does not count"
    if loss_fn is None or loss_fn in _COUNTING: return -100
    return loss_option(loss_fn, 'ignore_index', -100)

def is_sum(loss_fn: object) -> bool:
    "Return whether the loss is a sum, as in `nn.MSELoss(reduction='sum')` or a `partial`"
    return loss_option(loss_fn, 'reduction') == 'sum'

def _divides(loss_fn):
    "Return whether this is torch's mean over class ids, or the loss of a model's own output"
    if loss_fn is None or loss_fn in _COUNTING: return True
    maker = loss_fn.func if type(loss_fn) is partial and not loss_fn.args else type(loss_fn)
    is_made = maker in _COUNTING or getattr(maker, 'forward', None) in _COUNTING
    return is_made and loss_option(loss_fn, 'reduction', 'mean') == 'mean'

def _divisor(targ, ignored, weight):    # number or 0-d tensor
    "What torch's `cross_entropy` or `nll_loss` divides a mean by: weights of targets that count"
    if weight is None and on_host(targ) and not torch.compiler.is_compiling():
        if targ.ndim != 1 or targ.numel() > 128: return torch.count_nonzero(targ != ignored).item()
        ids = targ.tolist()         # of a few, Python counts faster
        return len(ids) - ids.count(ignored)
    counted = targ != ignored
    if weight is not None: return torch.where(counted, weight[torch.where(counted, targ, 0).long()], 0).sum()
    wide = torch.float32 if targ.device.type == 'mps' else torch.float64       # for exact enough ratios
    return torch.count_nonzero(counted).to(wide)

def _own_loss(out):
    "Return the loss in a model's output, an entry or an attribute; raises ValueError"
    loss = out.get('loss') if isinstance(out, Mapping) else getattr(out, 'loss', None)
    if loss is None: raise ValueError(
        f'there is no loss_fn, and the model returned a {type(out).__name__} without a `loss`: '
        'pass loss_fn=..., or batches with the `labels` that it computes a loss from')
    return loss

def _fields(o):
    "Return the fields of an object with a `loss`: a named tuple, a dataclass or any other"
    for fields in ('_fields', '__dataclass_fields__', '__dict__'):
        if names := getattr(o, fields, None): return {name: getattr(o, name) for name in names}
    return {}

class DefaultResult:
    "Makes the result of the default step for a loss function, whose options are read once"
    def __init__(self, loss_fn: Callable | None):
        self.loss_fn, self.ignored = loss_fn, ignored_id(loss_fn)
        self.divides = _divides(loss_fn)
        weighs = self.divides and loss_option(loss_fn, 'weight') is not None
        # where a hook may put other weights
        self.weights = getattr(loss_fn, '_buffers', None) or {'weight': loss_option(loss_fn, 'weight')} if weighs else {}

    def __call__(self, pred: object, targ: object, named: dict | None) -> dict:
        "Return loss, prediction and target, and the entries of batches and outputs with names"
        loss_fn = self.loss_fn
        res = {'loss': _own_loss(pred) if loss_fn is None else loss_fn(pred, targ), 'pred': pred, 'targ': targ}
        if self.ignored != -100: res['ignored'] = self.ignored
        if self.divides:
            labels = targ if loss_fn is not None else (named or {}).get('labels')
            if type(labels) is Tensor and not labels.is_floating_point():
                res['loss_n'] = _divisor(labels, self.ignored, self.weights.get('weight'))
        if named is None and type(pred) is Tensor: return res      # fast path
        if not isinstance(pred, Mapping): pred = _fields(pred) if loss_fn is None else {}
        found = {**(named or {}), **pred, **res}
        return {k: v for k, v in found.items() if k not in ('n', 'reduction')}      # of a user's own step alone

def loss_weight(
    result: Mapping | None,   # of a step; None: it yields
    n: float | None = None,   # samples in the batch
) -> Any:                     # number or 0-d tensor
    "Return the weight of a batch's loss: the step's own 'n', what torch's loss divides by, or `n`"
    if result is None: return n
    return result['n'] if 'n' in result else result.get('loss_n', n)

def is_number(value: object) -> bool:
    "Return whether a value is a number or a 0-d float tensor"
    if isinstance(value, Tensor): return not value.ndim and value.is_floating_point()
    return type(value) is float or isinstance(value, Real) and not isinstance(value, bool)

def is_summed(learn: Any) -> bool:
    "Return whether the loss of a batch is a sum, by `loss_fn` or `learn.result['reduction']`"
    if learn.result is not None and learn.result.get('reduction') == 'sum': return True
    return learn.phase.is_default and is_sum(learn.loss_fn)

def check_loss(loss: object, training: bool = True) -> None:
    "Raise TypeError or ValueError if a value cannot be a loss, in training one with a graph"
    if not isinstance(loss, Tensor):
        advice = '; return it as the loss function does, without .item() or float()' if is_number(loss) else ''
        raise TypeError(f'the loss is a {type(loss).__name__}: expected a 0-d tensor{advice}')
    if loss.numel() != 1:
        raise ValueError(f'the loss has shape {tuple(loss.shape)}: expected one number; take its mean or sum')
    if training and not loss.requires_grad:
        raise ValueError('the loss does not require grad: was it detached or made under no_grad, '
                         'or is every parameter that it depends on frozen?')
