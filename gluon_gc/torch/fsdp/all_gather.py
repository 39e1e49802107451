"""The compressed all-gather of one FSDP2 module's parameters.

With differences, all workers have copies of the parameters that were gathered last. The owner of a
shard sends the compressed difference between the shard and its copy. All workers, the owner too,
add the decoded difference to their copies. So the copies are equal on all workers, and the next
difference has the error of the last one. A shard whose bits have not changed is not sent.

An optimizer changes shards a little in every step, so the errors stay small. Other changes may be
large, and no step follows that would correct the error of a frozen or evaluated shard. So owners
broadcast some shards themselves, uncompressed. A shard is broadcast in three cases:

- `load_state_dict` has loaded it.
- The shards of the module have changed more than an optimizer changes them.
- It has always been frozen and has not changed since the last gather, but its copy is not exact.
"""

from __future__ import annotations

from typing import Callable, Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.futures import Future

from ...exchange import sharded
from ...exchange.chunk import PLAIN
from ...exchange.exchange import Exchange
from ...exchange.header import Stamp
from ...exchange.job import Result
from ...exchange.sharded import GatherRequest
from ...state import fitting
from ..state import state_dicts
from ..state.coder_states import Tensors
from ..state.sharded import CollectiveUnit, Exchanges, Shards, parameter_of
from ..transport import staging
from ..transport.staging import Names, future_on, resolving

_LARGE = 1 / 8  # the largest change by an optimizer, as a share of the values' norm


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
        self._exchange: Exchange | None = None
        self._gathers = 0
        self._copies = GatheredCopies(shards, frozen)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> _Gather | None:
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

        def finish(received: Mapping[str, torch.Tensor], flagged: Sequence[str]) -> list[str]:
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
        finish: Callable[[Mapping[str, torch.Tensor], Sequence[str]], list[str]],
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
        owned = [
            self.shards.chunks(worker, like, exchange, draws=False)
            for worker in range(exchange.workers)
        ]
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

    def forget_sent(self) -> None:
        """See `GatheredCopies`."""
        self._copies.forget_sent()

    # Checkpoints

    def saved_state(self) -> Tensors:
        return self._copies.saved_state()

    def empty_state(self) -> Tensors:
        return self._copies.empty_state(self.dtype) if self._differences else {}

    def check(self, tensors: Tensors) -> None:
        there, here = (
            {(key, kind): (t.shape, t.dtype) for key in state for kind, t in state[key].items()}
            for state in (tensors, self.empty_state())
        )
        fitting.check(state_dicts.NOUN, "set of gathered copies", there, here)

    def load(self, tensors: Tensors) -> None:
        self._copies.load(tensors)


class _Gather:
    """A gather under way, which FSDP waits for; see `AllGather._start`."""

    def __init__(
        self,
        device: torch.device,
        target: Callable[[str], torch.Tensor],
        finish: Callable[[Mapping[str, torch.Tensor], Sequence[str]], list[str]],
    ) -> None:
        self._target, self._finish = target, finish
        self._staged: staging.Staged | None = None
        self.future: Future[Names] = future_on(device)

    def receive(self, sent: Sequence[str], flagged: Sequence[str]) -> staging.Staged:
        """Return where to write the shards that were sent."""
        self._received, self._flagged = {key: self._target(key) for key in sent}, flagged
        self._staged = staging.Staged(self._received)
        return self._staged

    def done(self, found: Result | None, error: BaseException | None) -> None:
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


def _nothing(received: Mapping[str, torch.Tensor], flagged: Sequence[str]) -> list[str]:
    """Do nothing when the parameters themselves were gathered."""
    return []


class GatheredCopies:
    """The copies of all workers' shards, and the values of this worker's shards at the last gather.

    `rows` has the copies, shape (workers, elements of a worker), `by_key` the same by the names of
    shards. `frozen` has the parameters that need no gradient now. If one needs it later, it is no
    longer frozen.
    """

    def __init__(self, shards: Shards, frozen: Mapping[str, torch.Tensor]) -> None:
        self._shards, self._frozen = shards, frozen
        self.begun = False  # whether there was a gather
        self._loaded: Tensors = {}

    def begin(self, own: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Gather the first copies uncompressed: the parameters, or the loaded copies."""
        start, sent = own, own.clone()
        if self._loaded:
            keys = self._shards.keys(self._shards.rank)
            start, sent = (
                torch.cat([self._loaded[key][kind] for key in keys]).to(own)
                for kind in ("copy", "sent")
            )
            self._loaded = {}
        self.begun = True
        self.rows = own.new_empty(self._shards.workers, own.numel())
        received = [row.view(torch.uint8) for row in self.rows]
        dist.all_gather(received, start.view(torch.uint8), group=group)
        self.by_key = self._shards.split_all(self.rows)
        self._sent = self._shards.split(self._shards.rank, sent)

    def changes(
        self, own: torch.Tensor, uncompressed: set[str]
    ) -> tuple[dict[str, torch.Tensor], set[str]]:
        """Return the messages that bring the copies up to date with this worker's shards.

        These are the differences or, for shards in `uncompressed`, the values; and the names of the
        shards to broadcast. Their copies are overwritten.
        """
        shards, copies = self._shards.split(self._shards.rank, own), self.by_key
        changed = {k: v for k, v in shards.items() if not staging.same_bits(v, self._sent[k])}
        candidates = [k for k in shards if k in changed or self._is_frozen(k)]
        inexact = [k for k in candidates if not staging.same_bits(shards[k], copies[k])]
        compressed = {k: v for k, v in changed.items() if k not in uncompressed}
        large = self._are_large(compressed)
        exact = {k for k in inexact if k not in changed or (large and k in compressed)}
        working = staging.working_dtype(own.dtype)
        differences = {
            k: shards[k].to(working) - copies[k] if k in compressed else shards[k]
            for k in inexact
            if k not in exact
        }
        for key, values in changed.items():
            self._sent[key].copy_(values)
        for key in exact:
            copies[key].copy_(shards[key])
        return differences, exact

    def _is_frozen(self, key: str) -> bool:
        parameter = self._frozen.get(key.rpartition("/")[0])
        return parameter is not None and not parameter.requires_grad

    def _are_large(self, changed: Mapping[str, torch.Tensor]) -> bool:
        """Return whether these shards have changed more than an optimizer changes them.

        The norms are those of all these shards together, because some may begin with zeros.
        """
        values = {k: v.to(staging.working_dtype(v.dtype)) for k, v in changed.items()}
        changes = [v - self._sent[k] for k, v in values.items()]
        norm = torch.nn.utils.get_total_norm
        # "not <=", because the change is NaN after `forget_sent`
        return not norm(changes) <= _LARGE * norm(list(values.values()))

    def broadcast(self, keys: Sequence[str], group: dist.ProcessGroup) -> list[str]:
        """Send shards of all workers uncompressed. Return those with a NaN or an infinity."""
        for worker in range(self._shards.workers):
            copies = [self.by_key[k] for k in self._shards.keys(worker) if k in keys]
            if copies:
                values = torch.cat(copies)
                source = dist.get_global_rank(group, worker)
                dist.broadcast(values.view(torch.uint8), source, group)
                for copy, part in zip(copies, values.split([copy.numel() for copy in copies])):
                    copy.copy_(part)
        return [key for key in keys if not self.by_key[key].isfinite().all()]

    def forget_sent(self) -> None:
        """Let this worker broadcast its shards in the next gather, because they were loaded."""
        if self.begun:
            for values in self._sent.values():
                values.fill_(float("nan"))

    # Checkpoints

    def saved_state(self) -> Tensors:
        """Return the copies of this worker's shards, and the values that were sent last."""
        return _cloned(self.by_key, self._sent) if self.begun else self._loaded

    def empty_state(self, dtype: torch.dtype) -> Tensors:
        """Return zeros in the shapes and dtypes of `saved_state`."""
        zeros = torch.zeros(self._shards.size, dtype=dtype, device="cpu")
        shards = self._shards.split(self._shards.rank, zeros)
        return _cloned(shards, shards)

    def load(self, tensors: Tensors) -> None:
        """Continue from the result of `saved_state`."""
        self._loaded, self.begun = dict(tensors), False


def _cloned(copies: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> Tensors:
    """Return copies of the tensors of the shards in `sent`, in host memory."""
    return {
        key: {"copy": copies[key].cpu().clone(), "sent": values.cpu().clone()}
        for key, values in sent.items()
    }
