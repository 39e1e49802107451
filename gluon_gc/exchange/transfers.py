"""Transfers: groups the chunks of tensors into transfers, and keeps these for the next steps."""

from __future__ import annotations

import itertools
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Sequence

from . import header
from .allreduce import Allreduce, sums_in_place
from .arrays import Arrays
from .chunk import ExchangedChunk
from .collectives import Collectives, ToAll, ToOwners
from .header import OutOfStepError
from .machines import Machines, MachineTransfer
from .plan import batches
from .transfer import Link, Stages, Transfer
from .transport import Members, PeerError

_TRANSFER_BYTES = 512 * 1024  # that a worker sends in one collective, approximately


class Transfers:
    """Creates the transfers of an exchange, and keeps them for the next steps."""

    def __init__(self, members: Members, arrays: Arrays, machines: Machines | None) -> None:
        self._members, self._arrays, self._machines = members, arrays, machines
        memory = arrays.memory
        self._on_host = Collectives(partial(ToOwners, memory=memory), partial(ToAll, memory=memory))
        self.out_of_step = False  # whether a worker has failed, or exchanges other tensors
        self._kept: dict[Any, list[Stages]] = {}
        self._dropped: list[Stages] = []  # since `settled`: a worker out of step may still send

    def of(self, key: Any, make: Callable[[], Iterable[Stages]]) -> list[Stages]:
        """Return the transfers with this key. They are made if they do not exist."""
        if key not in self._kept:
            self._kept[key] = list(make())
        return self._kept[key]

    def drop(self, keys: Iterable[Any]) -> None:
        """Forget transfers. They are created again when needed."""
        for key in keys:
            self._dropped += self._kept.pop(key, ())

    def settled(self) -> None:
        """Free the dropped transfers: all workers have ended the same jobs, and none is under way.

        A message without a buffer would stop its connection.
        """
        self._dropped.clear()

    def __iter__(self) -> Iterator[Stages]:
        return itertools.chain.from_iterable(self._kept.values())

    def link(self, identity: int) -> Link:
        """Return what a new transfer needs, given a checksum of its content."""
        tag = self._members.new_tag(identity)
        return Link(self._members, self._arrays, self._on_host, tag)

    def made(self, chunks: Sequence[ExchangedChunk]) -> Iterator[Stages]:
        """Yield new transfers for chunks; the ones with the most stages come first."""
        in_place, others = [], []
        for chunk in chunks:
            (in_place if sums_in_place(chunk, self._arrays) else others).append(chunk)
        for batch in _batches([chunk for chunk in others if chunk.inside is not None]):
            link = self._link_of(batch)
            inside = self._with(link, self._machines.inside, batch[0].inside.to_owner)
            across = self._with(link, self._machines.across, batch[0])
            yield MachineTransfer(batch, self._machines, inside, across)
        for batch in _batches([chunk for chunk in others if chunk.inside is None]):
            yield Transfer(batch, self._with(self._link_of(batch), self._members, batch[0]))
        for _, tensor_chunks in itertools.groupby(in_place, lambda chunk: chunk.piece.tensor):
            batch = list(tensor_chunks)
            yield Allreduce(batch, self._link_of(batch))

    def _link_of(self, chunks: Sequence[ExchangedChunk]) -> Link:
        return self.link(header.identity(chunk.piece for chunk in chunks))

    def _with(self, link: Link, members: Members, chunk: ExchangedChunk) -> Link:
        """Return a link between these members, through which chunks like this one travel."""
        if not chunk.on_gpu:
            return link._replace(members=members)
        collectives = self._arrays.device_collectives(chunk.device, members)
        return link._replace(members=members, collectives=collectives)

    def broken(self, error: BaseException) -> None:
        """Tell the other workers, which would wait for messages that never come."""
        self.out_of_step = not isinstance(error, PeerError)
        self.tell(error, list(self))

    def tell(self, error: BaseException, transfers: Iterable[Stages]) -> None:
        """Send an error's outcome to all workers that may wait for a message of these transfers."""
        outcome = header.failed(self._members.ranks[self._members.rank])
        if isinstance(error, OutOfStepError):
            outcome = error.outcome
        if outcome is None or isinstance(error, PeerError):
            return  # they know it already, or cannot be reached
        for transfer in transfers:
            with suppress(RuntimeError):  # the other worker has ended
                transfer.abandon(outcome)


def _batches(chunks: Sequence[ExchangedChunk]) -> list[list[ExchangedChunk]]:
    """Group chunks that travel in the same way."""
    return batches(
        chunks,
        lambda chunk: chunk.plan.message_bytes,
        lambda chunk: (chunk.on_gpu, chunk.inside is not None and chunk.inside.to_owner.on_gpu),
        enough=_TRANSFER_BYTES,
    )
