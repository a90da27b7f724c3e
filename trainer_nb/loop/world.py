"""The ranks of a fit, and what they exchange; here, a single process"""

from typing import Any

from torch import Tensor, nn

from ..base import batch_size
from ..data import adapter_of

class World:
    "The ranks of a fit, and what they exchange: here, a single process; `parallel` has subclasses"
    rank, size = 0, 1           # rank of this process; world size
    is_sharded = False          # every parameter is sharded
    control: object = None       # process group for messages between hosts

    def count(self, dl: object, i: int, batch: object) -> tuple[int, int]:
        "Count the samples of batch `i` of a pass: on this rank, 0 if it only keeps the ranks in step, and on all"
        are_parts = type(batch) is dict and adapter_of(dl).parts
        n = sum(map(batch_size, batch.values())) if are_parts else batch_size(batch)
        return n, n

    # what `parallel` overrides; x stands for a tensor, state for a nesting of tensors
    def sum(self, x: Tensor) -> Tensor: return x            # summed over all ranks
    def first(self, x: object) -> Any: return x                # the object of rank 0, for all ranks
    def gather(self, x: object) -> Any: return [x]             # the objects of all ranks, for rank 0; None for others
    def all_gather(self, x: object) -> list: return [x]        # the same for all ranks
    def rng_states(self, state: tuple) -> tuple: return state   # for this rank, made from a state that all ranks share
    def whole(self, x: Tensor) -> Tensor: return x          # one that may be sharded, whole
    def collect(self, state: object) -> Any: return state      # the same for each tensor, on rank 0
    def cut(self, x: Tensor, part: Tensor) -> Tensor: return x  # a whole tensor, sharded like `part`
    def split(self, opt: object, state: dict) -> dict: return state  # an optimizer's whole state, sharded to be loaded
    def least(self, x: Tensor) -> Tensor: return x          # a number about the gradients, the smallest over all shards
    def own_buffers(self, module: nn.Module) -> dict[str, Tensor]: return {}    # those that may differ from rank 0
