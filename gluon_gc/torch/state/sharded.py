"""The shards of FSDP modules, and the state that their compression keeps for checkpoints."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist

from ... import env
from ...compression import CompressionParams
from ...exchange import plan, statistics
from ...exchange.agreement import Facts
from ...exchange.chunk import ExchangedChunk
from ...exchange.exchange import DeclaredTensor, Exchange
from ...exchange.statistics import Size
from ...exchange.transfer import Stages
from ...state import fitting
from ..gradients.undo import Undo
from ..transport import new_exchange
from ..transport.gathering import gather
from ..transport.staging import declared
from . import state_dicts
from .coder_states import Tensors


class Shard(NamedTuple):
    """One worker's shard of a parameter."""

    index: int  # the position of the parameter in the module
    tensor: DeclaredTensor
    chunks: list[plan.Chunk]


@dataclass(frozen=True)
class Shards:
    """The shards of all parameters of an FSDP module. All workers' shards have the same sizes.

    A size is the number of elements in a shard, with its padding. A complex element counts as two.
    """

    sizes: Mapping[str, int]  # by parameter, as `params`
    params: Mapping[str, CompressionParams]
    on_nonfinite: str  # see `plan.Tensor`
    workers: int
    rank: int

    @property
    def size(self) -> int:
        """The number of elements in a worker's shards of all parameters."""
        return sum(self.sizes.values())

    def keys(self, worker: int) -> list[str]:
        """Return the names of a worker's shards."""
        return [_key(name, worker) for name in self.sizes]

    def split_all(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Like `split`, for the shards of all workers: a tensor with a row for each worker."""
        return {
            key: values
            for worker, row in enumerate(rows.view(self.workers, -1))
            for key, values in self.split(worker, row).items()
        }

    def split(self, worker: int, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a worker's shards by their names, as views of the flat tensor that has them."""
        return dict(zip(self.keys(worker), row.split(list(self.sizes.values()))))

    def cut(self, worker: int, like: torch.Tensor) -> Iterator[Shard]:
        """Yield a worker's shards, with the dtype and the device of a tensor."""
        most, least = env.get("BYTEPS_PARTITION_BYTES"), env.get("BYTEPS_MIN_COMPRESS_BYTES")
        for index, (name, size) in enumerate(self.sizes.items()):
            key, params = _key(name, worker), self.params[name]
            facts = name, self.on_nonfinite, worker * size
            tensor = declared(key, like, params, index, size, *facts)
            yield Shard(index, tensor, plan.cut([tensor.plan], most, least))

    def chunks(
        self, worker: int, like: torch.Tensor, exchange: Exchange, draws: bool
    ) -> dict[str, list[ExchangedChunk]]:
        """Return the chunks of a worker's shards, with new coders, by the names of the shards.

        `draws`: compressors may draw random numbers. All workers call this. `like`: see `cut`.
        """
        chunks: dict[str, list[ExchangedChunk]] = {}
        arrays, streams = exchange.arrays, exchange.streams
        for index, tensor, planned in self.cut(worker, like):
            if draws:
                streams.draw(planned)
            shard_chunks = chunks[tensor.plan.name] = []
            for chunk in planned:
                coder = start = None
                if chunk.params is not None:
                    if draws:
                        begin = tensor.plan.offset + chunk.slices[0].begin
                        start = streams.start(chunk, exchange.rank, index, begin)
                    size = chunk.size, chunk.dtype
                    coder = arrays.coder(tensor.device, chunk.params, *size, start)
                shard_chunks.append(tensor.exchanged(chunk, worker, arrays, tensor.device, coder))
        return chunks

    def facts(self, like: torch.Tensor) -> Facts:
        """Return facts that must be the same on all workers. `like`: see `cut`."""
        return plan.facts([shard.tensor.plan for shard in self.cut(0, like)])

    def describe(self) -> list[dict[str, Any]]:
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


def parameter_of(key: str) -> str:
    """Return the name of a parameter, given that of its shard."""
    return key.rpartition("/")[0]


class Exchanges:
    """The exchanges that all modules of a model share, one for each group of workers.

    Random streams without a seed start from `entropy`. It is the same on all workers of the model's
    mesh: with tensor parallelism, workers of several groups must get the same sums.
    """

    def __init__(self, entropy: bytes = b"") -> None:
        self.entropy = entropy
        self._of_ranks: dict[tuple[int, ...], Exchange] = {}

    def of(self, group: dist.ProcessGroup) -> Exchange:
        """Return the exchange of a group's workers. All of them call this together."""
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._of_ranks:
            self._of_ranks[ranks] = new_exchange(group, two_levels=False)
        self._of_ranks[ranks].streams.entropy = self.entropy
        return self._of_ranks[ranks]

    def transfers(self) -> Iterator[Stages]:
        for exchange in self._of_ranks.values():
            yield from exchange.transfers


class Unit:
    """The compression of one FSDP module in one direction."""

    shards: Shards
    dtype: torch.dtype  # real, in which FSDP passes parameters or gradients
    undo: Undo | None = None  # takes back exchanges of gradients that no optimizer has applied

    def elements(self) -> dict[str, int]:
        """Return the number of elements in a collective, by parameter."""
        raise NotImplementedError


class CollectiveUnit(Unit):
    """A compressed collective that replaces one of FSDP's, among all workers that have shards."""

    def elements(self) -> dict[str, int]:
        return {name: size * self.shards.workers for name, size in self.shards.sizes.items()}

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocate memory for parameters or gradients. FSDP calls this."""
        return torch.empty(*size, dtype=dtype, device=device)

    def saved_state(self) -> Tensors:
        """Return this worker's state by the names of shards; nothing before the first step."""
        raise NotImplementedError

    def empty_state(self) -> Tensors:
        """Return zeros in the shapes and dtypes of `saved_state`."""
        raise NotImplementedError

    def check(self, tensors: Tensors) -> None:
        """Raise ValueError if these tensors do not fit."""
        raise NotImplementedError

    def load(self, tensors: Tensors) -> None:
        """Continue from the result of `saved_state`. If there are no tensors, start from zero."""
        raise NotImplementedError


class ModelCompression:
    """The compression of all FSDP modules of a model in one direction.

    `torch.distributed.checkpoint` saves and loads its state from step to step like a model:
    `dcp.save({"compression": compression})`.

    Parameters
    ----------
    function : str
        The public function that made it.
    units : sequence of Unit
    exchanges : Exchanges
    """

    _units: Sequence[Unit]

    def __init__(self, function: str, units: Sequence[Unit], exchanges: Exchanges) -> None:
        self._function, self._units, self._exchanges = function, list(units), exchanges

    @contextmanager
    def not_applied(self) -> Iterator[None]:
        """Return a context for backward passes whose sums no optimizer applies.

        See `CompressionState.not_applied`.
        """
        with ExitStack() as contexts:
            for unit in self._units:
                if unit.undo is not None:
                    contexts.enter_context(unit.undo.not_applied())
            yield

    def compression_stats(self, reset: bool = False) -> dict[str, Any]:
        """Return the average bytes and seconds of a collective, for each parameter and in total.

        The keys are those of `CompressionState.compression_stats`. With `reset`, the next call
        averages over later collectives only.
        """
        sizes: dict[str, Size] = {}
        for unit in self._units:
            for name, elements in unit.elements().items():
                sizes[name] = Size(elements * unit.dtype.itemsize, elements)
        transfers = self._exchanges.transfers()
        return statistics.of_step(transfers, sizes, reset, name_of=parameter_of)


class ShardedCompression(ModelCompression):
    """A compressed collective of fully_shard. Each worker has its own state."""

    _units: Sequence[CollectiveUnit]

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state, as plain values and tensors.

        The key of its tensors has the rank, so the workers' dicts can be merged. Before the first
        step, tensors of zeros show their shapes. No backward may be running.
        """
        begun, arrays = [], {}
        for unit in self._units:
            saved = unit.saved_state()
            begun += saved
            arrays.update(saved or unit.empty_state())
        worker = {"begun": tuple(begun), "arrays": arrays}
        workers = {str(dist.get_rank()): worker}
        return {"format": state_dicts.FORMAT, **self._described(), "workers": workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict` on this worker. All workers call this.

        Raises
        ------
        ValueError
            The state_dict is of another worker, model, compression or number of workers. Nothing
            was changed.
        RuntimeError
            The state_dict of another worker does not fit. Nothing was changed.
        """
        tensors = state_dicts.if_all_fit(gather, lambda: self._checked(state))
        for unit, unit_tensors in zip(self._units, tensors):
            unit.load(unit_tensors)

    def _checked(self, state: Mapping[str, Any]) -> Sequence[Tensors]:
        """Return the tensors of each unit, after all checks."""
        state_dicts.require_format(state, "workers", self._function)
        here, rank = self._described(), str(dist.get_rank())
        remedy = "load only the model, and residuals start from zero"
        sizes = state["world_size"], here["world_size"]
        fitting.check(state_dicts.NOUN, "world_size", *sizes, remedy)
        if rank not in state["workers"]:
            fitting.check(state_dicts.NOUN, "rank", ", ".join(state["workers"]), rank)
        state_dicts.check_parameters(state["shards"], here["shards"], strict=True)
        worker = state["workers"][rank]
        tensors = [
            {key: worker["arrays"][key] for key in worker["begun"] if _is_of(key, unit)}
            for unit in self._units
        ]
        for unit, unit_tensors in zip(self._units, tensors):
            if unit_tensors:
                unit.check(unit_tensors)
        return tensors

    def _described(self) -> dict[str, Any]:
        """Return the values that a state_dict and the loading state must share."""
        shards = tuple(shard for unit in self._units for shard in unit.shards.describe())
        return {"world_size": dist.get_world_size(), "shards": shards}


def _is_of(key: str, unit: CollectiveUnit) -> bool:
    return parameter_of(key) in unit.shards.sizes
