"""Gloo as a `Transport`: the only file that knows it.

Gloo begins to send a large message when its receiver has said where to, and on a connection all
goes in the order of calls. Said late, that word waits behind what the receiver is sending itself:
then the connection works one way at a time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import env
from .watchdog import waiting


class Gloo:
    """The backend "gloo" of torch.distributed; the methods are those of `Transport`."""

    tags = 2**31

    def prepare(self) -> None:
        env.prepare_gloo()

    def new_group(
        self, ranks: Sequence[int], timeout: Optional[timedelta], everybody: bool
    ) -> dist.ProcessGroup:
        return dist.new_group(
            list(ranks), timeout, backend="gloo", use_local_synchronization=not everybody
        )

    def messages(
        self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]
    ) -> GlooMessages:
        return GlooMessages(group, tag, rooms)


class GlooMessages:
    """Messages in one of Gloo's groups; the methods are those of `transport.Messages`.

    The parameters are those of `Transport.messages`.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]) -> None:
        self._group, self._tag = group, tag
        self._ranks = dist.get_process_group_ranks(group)
        self._rooms = _tensors(rooms)
        self._sent: List[Tuple[int, dist.Work]] = []
        self._member = 0  # that is waited for
        self.expect()

    def expect(self) -> None:
        self._coming = [
            (member, self._group.recv([room], member, self._tag)) for member, room in self._rooms
        ]

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        self._sent = [
            (member, self._group.send([part], member, self._tag)) for member, part in _tensors(data)
        ]

    def wait(self) -> None:
        with waiting(self._awaited):
            for member, work in (*self._coming, *self._sent):
                self._member = member
                try:
                    work.wait()
                except RuntimeError as error:
                    raise RuntimeError(f"{self._awaited()}: {error}") from error

    def _awaited(self) -> str:
        own, other = (self._ranks[i] for i in (self._group.rank(), self._member))
        return f"worker {own} waits for worker {other}"


def _tensors(arrays: Mapping[int, np.ndarray]) -> List[Tuple[int, torch.Tensor]]:
    """Those that are not empty, by member."""
    return [(member, torch.from_numpy(array)) for member, array in arrays.items() if array.size]
