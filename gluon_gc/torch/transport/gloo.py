"""Gloo as a `Transport`. No other module depends on Gloo.

Gloo sends a large message only after its receiver has announced the buffer, and each connection
handles everything in the order of the calls. A late announcement waits behind the receiver's own
outgoing data, and then the connection works in one direction at a time. So each buffer is announced
one step ahead (`expect`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from ... import env
from ...exchange.transport import PeerError, peer_errors
from ..watchdog import waiting


class Gloo:
    """The backend "gloo" of torch.distributed; see `Transport`."""

    tags = 2**31

    def prepare(self) -> None:
        env.prepare_gloo()

    def new_group(
        self, ranks: Sequence[int], timeout: timedelta | None, everybody: bool
    ) -> dist.ProcessGroup:
        return dist.new_group(
            list(ranks), timeout, backend="gloo", use_local_synchronization=not everybody
        )

    def messages(
        self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]
    ) -> GlooMessages:
        return GlooMessages(group, tag, rooms)


class GlooMessages:
    """Messages in a Gloo group; see `transport.Messages`."""

    def __init__(self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]) -> None:
        self._group, self._tag = group, tag
        self._ranks = dist.get_process_group_ranks(group)
        self._rooms = _tensors(rooms)
        self._sent: list[tuple[int, dist.Work]] = []
        self._member = 0  # the one that is waited for
        self.expect()

    def expect(self) -> None:
        self._coming, self._refused = [], None
        for member, room in self._rooms:
            self._member = member
            try:
                self._coming.append((member, self._group.recv([room], member, self._tag)))
            except RuntimeError as error:  # harmless if the other worker sends nothing more
                self._refused = self._refused or self._failure(error)

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        with peer_errors():
            for member, sent in _tensors(data):
                self._sent.append((member, self._group.send([sent], member, self._tag)))

    def wait(self) -> None:
        sent = list(self._sent)
        if self._refused is not None:
            raise self._refused
        with waiting(self._awaited):
            for member, work in (*self._coming, *sent):
                self._member = member
                try:
                    work.wait()
                except RuntimeError as error:
                    raise self._failure(error) from error
        del self._sent[: len(sent)]  # not before: Gloo cannot send a message without its buffer

    def _failure(self, error: RuntimeError) -> PeerError:
        return PeerError(f"{self._awaited()}: {error}")

    def _awaited(self) -> str:
        own, other = (self._ranks[i] for i in (self._group.rank(), self._member))
        return f"worker {own} waits for worker {other}"


def _tensors(arrays: Mapping[int, np.ndarray]) -> list[tuple[int, torch.Tensor]]:
    """Return the arrays that are not empty, as tensors, with their members."""
    return [(member, torch.from_numpy(array)) for member, array in arrays.items() if array.size]
