"""The compressed all-gather of one FSDP2 module's parameters.

With differences, gathered_copies.py chooses the shards that are sent, and their form.
"""

from __future__ import annotations

from typing import Callable, Collection, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
from torch.futures import Future

from ...exchange import sharded
from ...exchange.chunk import PLAIN, ExchangedChunk
from ...exchange.exchange import Exchange
from ...exchange.header import Stamp
from ...exchange.job import Result
from ...exchange.sharded import GatherRequest
from ..state.coder_states import Tensors
from ..state.sharded import CollectiveUnit, Exchanges, Shards, parameter_of
from ..transport import staging
from ..transport.staging import Names, future_on, resolving
from .gathered_copies import GatheredCopies, check


class AllGather(CollectiveUnit):
    """Gathers the parameters of one FSDP module."""

    def __init__(
        self,
        shards: Shards,
        dtype: torch.dtype,  # in which FSDP will gather the parameters
        differences: bool,  # whether differences travel, else the parameters themselves
        frozen: Mapping[str, torch.Tensor],
        exchanges: Exchanges,
    ) -> None:
        self.shards, self.dtype, self._differences = shards, staging.real_dtype(dtype), differences
        self._exchanges = exchanges
        self._exchange: Optional[Exchange] = None
        self._gathers = 0
        self._copies = GatheredCopies(shards, frozen)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Optional[_Gather]:
        """Write the parameters that all workers compute with to `output_tensor`.

        Return after that, or with `async_op` at once, and then an object to wait for. Parameters
        that do not travel in one dtype, or have a NaN or an infinity, raise a RuntimeError.
        """
        own = staging.as_real(input_tensor).view(-1)
        rows = staging.as_real(output_tensor).view(self.shards.workers, -1)
        if own.numel() != self.shards.size:
            raise RuntimeError(
                f"fully_shard gathers {', '.join(self.shards.sizes)} in several dtypes, or in a "
                "form of their own: compress_all_gather needs one floating-point dtype"
            )
        if self._exchange is None:
            self._open(group, own)
        if self._differences:
            work = self._start_update(own, rows, group)
        else:
            values = self.shards.split(self.shards.rank, own)
            work = self._start(values, (), self.shards.split_all(rows).__getitem__, _nothing)
        if async_op:
            return work
        work.wait()
        return None

    def _start_update(
        self, own: torch.Tensor, rows: torch.Tensor, group: dist.ProcessGroup
    ) -> _Gather:
        """Start to bring the copies up to date with the parameters of all workers."""
        copies = self._copies
        if not copies.begun:
            copies.begin(own, group)
        differences, exact = copies.changes(own, self._uncompressed)

        def target(key: str) -> torch.Tensor:
            return torch.empty_like(copies.by_key[key], dtype=self._working)

        def finish(received: Mapping[str, torch.Tensor], flagged: Sequence[str]) -> List[str]:
            nonfinite = copies.broadcast(flagged, group)
            for key, values in received.items():
                if key in self._uncompressed:
                    copies.by_key[key].copy_(values)
                else:
                    copies.by_key[key].add_(values)
            rows.copy_(copies.rows)
            return nonfinite

        return self._start(differences, exact, target, finish)

    def _start(
        self,
        values: Mapping[str, torch.Tensor],
        flagged: Collection[str],
        target: Callable[[str], torch.Tensor],
        finish: Callable[[Mapping[str, torch.Tensor], Sequence[str]], List[str]],
    ) -> _Gather:
        """Start to send some of this worker's shards, and to write those of all to targets.

        The shards in `flagged` are flagged only. `finish` gets the received shards and the names
        of the flagged ones. It returns the names of shards with a NaN or an infinity.
        """
        self._gathers += 1
        stamp = Stamp(self._gathers % 2**32)
        gather = _Gather(self._device, target, finish)
        request = GatherRequest(
            staging.Staged(values),
            average=False,
            stamp=lambda: stamp,
            receive=gather.receive,
            flagged=flagged,
        )
        self._exchange.start(request, [self._transfer], gather.done)
        return gather

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        exchange = self._exchanges.of(group)
        facts = [("", {"differences": self._differences}), *self.shards.facts(like)]
        exchange.agree(facts, "gather parameters")
        owned = [self._chunks_of(worker, like, exchange) for worker in range(exchange.workers)]
        transfers = exchange.transfers
        (self._transfer,) = transfers.of(
            tuple(self.shards.sizes), lambda: [sharded.AllGather(owned, transfers.link(0))]
        )
        self._working, self._device = staging.working_dtype(like.dtype), like.device
        self._uncompressed = {
            key
            for shards in owned
            for key, chunks in shards.items()
            if all(chunk.kind == PLAIN for chunk in chunks)
        }
        self._exchange = exchange

    def _chunks_of(
        self, worker: int, like: torch.Tensor, exchange: Exchange
    ) -> Dict[str, List[ExchangedChunk]]:
        """Return the chunks of a worker's shards, by the names of the shards."""
        chunks: Dict[str, List[ExchangedChunk]] = {}
        for shard in self.shards.cut(worker, like):
            tensor, arrays = shard.tensor, exchange.arrays
            chunks[tensor.plan.name] = [
                tensor.exchanged(
                    chunk,
                    worker,
                    arrays,
                    tensor.device,
                    None
                    if chunk.params is None
                    else arrays.coder(tensor.device, chunk.params, chunk.size, chunk.dtype),
                )
                for chunk in shard.chunks
            ]
        return chunks

    def forget_sent(self) -> None:
        """See `GatheredCopies`."""
        self._copies.forget_sent()

    # Checkpoints

    def saved_state(self) -> Tensors:
        return self._copies.saved_state()

    def empty_state(self) -> Tensors:
        return self._copies.empty_state(self.dtype) if self._differences else {}

    def check(self, tensors: Tensors) -> None:
        check(tensors, self.empty_state())

    def load(self, tensors: Tensors) -> None:
        self._copies.load(tensors)


class _Gather:
    """A gather under way, which FSDP waits for; see `AllGather._start`."""

    def __init__(
        self,
        device: torch.device,
        target: Callable[[str], torch.Tensor],
        finish: Callable[[Mapping[str, torch.Tensor], Sequence[str]], List[str]],
    ) -> None:
        self._target, self._finish = target, finish
        self._staged: Optional[staging.Staged] = None
        self.future: Future[Names] = future_on(device)

    def receive(self, sent: Sequence[str], flagged: Sequence[str]) -> staging.Staged:
        """Return where to write the shards that were sent."""
        self._received, self._flagged = {key: self._target(key) for key in sent}, flagged
        self._staged = staging.Staged(self._received)
        return self._staged

    def done(self, found: Optional[Result], error: Optional[BaseException]) -> None:
        """See `exchange.job.Done`."""
        resolving(self.future, self._result, self._staged)(found, error)

    def _result(self, found: Result) -> Names:
        self._staged.finish(1.0)
        return Names(found.nonfinite, self._staged)

    def wait(self) -> None:
        nonfinite = self.future.wait()
        nonfinite = [*sorted(nonfinite), *self._finish(self._received, self._flagged)]
        if nonfinite:
            name = parameter_of(nonfinite[0])
            raise RuntimeError(f"parameter {name} has a NaN or an infinity")


def _nothing(received: Mapping[str, torch.Tensor], flagged: Sequence[str]) -> List[str]:
    """Do nothing when the parameters themselves were gathered."""
    return []
