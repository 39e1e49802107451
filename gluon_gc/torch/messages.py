"""Bytes that the members of a group send each other, received where it was said a step ahead.

Gloo begins to send a large message when its receiver has said where to, and on a connection all
goes in the order of calls. Said late, that word waits behind what the receiver is sending itself:
then the connection works one way at a time.
"""

from __future__ import annotations

from typing import List, Mapping, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .watchdog import waiting


class Messages:
    """What this worker gets from other members of a group, and sends to them, step after step.

    Parameters
    ----------
    group : ProcessGroup
        Of Gloo's.
    tag : int
        The same on all members, and of no other messages in the group.
    rooms : mapping of int to array of uint8
        For members that send, by their rank in the group: where it is written. Less may come.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]) -> None:
        self._group, self._tag = group, tag
        self._ranks = dist.get_process_group_ranks(group)
        self._rooms = _tensors(rooms)
        self._sent: List[Tuple[int, dist.Work]] = []
        self._member = 0  # that is waited for
        self.expect()

    def expect(self) -> None:
        """Let others send the next messages, which overwrite what came; returns at once."""
        self._coming = [
            (member, self._group.recv([room], member, self._tag)) for member, room in self._rooms
        ]

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        """Send these bytes, which must stay as they are until `wait`; returns at once."""
        self._sent = [
            (member, self._group.send([part], member, self._tag)) for member, part in _tensors(data)
        ]

    def wait(self) -> None:
        """Return when all messages came, and all bytes are sent.

        Raises
        ------
        RuntimeError
            A member has ended, or the group's time-out is over; the error names the member.
        """
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
