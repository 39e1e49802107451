"""Shards: the shards of one FSDP module's parameters, and the chunks that they are cut to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

import torch
import torch.distributed as dist

from ... import env, plan
from ...compression import CompressionParams
from ...state import fitting
from ..coder import Coder
from ..declared_tensor import DeclaredTensor, declared
from ..exchanged_chunk import ExchangedChunk
from ..gathering import agree, gather


class Shard(NamedTuple):
    """One worker's shard of a parameter.

    Attributes
    ----------
    index : int
        The position of the parameter in the module.
    tensor : DeclaredTensor
    chunks : list of Chunk
    """

    index: int
    tensor: DeclaredTensor
    chunks: List[plan.Chunk]

    def exchanged(self, chunk: plan.Chunk, owner: int, coder: Optional[Coder]) -> ExchangedChunk:
        """Return one of the chunks with the owner of the shard and this worker's coder."""
        tensor = self.tensor
        dtype = plan.working_dtype(tensor.plan.dtype)
        checked = tensor.plan.checked
        return ExchangedChunk(chunk, owner, tensor.wire, dtype, tensor.device, checked, coder)


@dataclass(frozen=True)
class Shards:
    """The shards of all parameters of an FSDP module. All workers' shards have the same sizes.

    Parameters
    ----------
    sizes : mapping of str to int
        The number of elements in a shard of each parameter, with its padding. A complex element
        counts as two.
    params : mapping of str to CompressionParams
        The compression of each parameter.
    on_nonfinite : str
        See `plan.Tensor`.
    workers, rank : int
        The number of workers that have shards, and the rank of this worker among them.
    """

    sizes: Mapping[str, int]
    params: Mapping[str, CompressionParams]
    on_nonfinite: str
    workers: int
    rank: int

    @property
    def size(self) -> int:
        """The number of elements in a worker's shards of all parameters."""
        return sum(self.sizes.values())

    def keys(self, worker: int) -> List[str]:
        """Return the names of a worker's shards."""
        return [_key(name, worker) for name in self.sizes]

    def split_all(self, rows: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Like `split`, for the shards of all workers: a tensor with a row for each worker."""
        return {
            key: values
            for worker, row in enumerate(rows.view(self.workers, -1))
            for key, values in self.split(worker, row).items()
        }

    def split(self, worker: int, row: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Return a worker's shards by their names, as views of the flat tensor that has them."""
        return dict(zip(self.keys(worker), row.split(list(self.sizes.values()))))

    def cut(self, worker: int, like: torch.Tensor) -> Iterator[Shard]:
        """Yield a worker's shards, with the dtype and the device of a tensor."""
        most, least = env.get("BYTEPS_PARTITION_BYTES"), env.get("BYTEPS_MIN_COMPRESS_BYTES")
        for index, (name, size) in enumerate(self.sizes.items()):
            key, params = _key(name, worker), self.params[name]
            tensor = declared(key, like, params, index, size, name, self.on_nonfinite)
            yield Shard(index, tensor, plan.cut([tensor.plan], most, least))

    def agree(self, group: dist.ProcessGroup, like: torch.Tensor, doing: str, **more: Any) -> None:
        """Raise a RuntimeError unless all workers of a group have the same shards and values.

        `like`: see `cut`. `doing`: see `gather`.
        """
        facts = plan.facts([shard.tensor.plan for shard in self.cut(0, like)])
        agree(partial(gather, group=group), [("", more), *facts], doing)

    def describe(self) -> List[Dict[str, Any]]:
        """Return the values that a checkpoint and the loading module must share."""
        return [
            {
                "name": name,
                "shard_size": size,
                "compression": fitting.as_read(self.params[name].identity()),
            }
            for name, size in self.sizes.items()
        ]


def _key(name: str, worker: int) -> str:
    """Return the name of a worker's shard of a parameter."""
    return f"{name}/{worker}"
