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
        self._rooms = _tensors(rooms)
        self._sent: List[dist.Work] = []
        self.expect()

    def expect(self) -> None:
        """Let others send the next messages, which overwrite what came; returns at once."""
        self._coming = [self._group.recv([room], member, self._tag) for member, room in self._rooms]

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        """Send these bytes, which must stay as they are until `wait`; returns at once."""
        self._sent = [
            self._group.send([part], member, self._tag) for member, part in _tensors(data)
        ]

    def wait(self) -> None:
        """Return when all messages came, and all bytes are sent."""
        for work in (*self._coming, *self._sent):
            work.wait()


def _tensors(arrays: Mapping[int, np.ndarray]) -> List[Tuple[int, torch.Tensor]]:
    """Those that are not empty, by member."""
    return [(member, torch.from_numpy(array)) for member, array in arrays.items() if array.size]
