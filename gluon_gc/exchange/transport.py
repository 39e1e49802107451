"""The interface between gluon_gc and an engine that sends bytes between workers, such as Gloo.

An engine is a backend of torch.distributed with point-to-point messages; `gloo.py` is one.
Collectives on small data are torch.distributed's own, in the process groups that the engine makes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Mapping, Optional, Protocol, Sequence

import numpy as np
import torch.distributed as dist


class Messages(Protocol):
    """One worker's messages to and from the other members of a group, repeated in every step.

    The calls of a step are `send`, then `wait`, then `expect` after the received bytes were read.
    For the first step, the constructor has called `expect` already.
    """

    def expect(self) -> None:
        """Allow the next messages to overwrite the receive buffers. Returns at once."""

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        """Start to send bytes to members of the group. Returns at once.

        Parameters
        ----------
        data : mapping of int to array of uint8
            The bytes for each receiver, by its rank in the group. They must not change until `wait`
            returns.
        """

    def wait(self) -> None:
        """Wait until all expected messages have arrived and all bytes were sent.

        Raises
        ------
        RuntimeError
            A member has ended, or the time-out of the group is over. The error names the member.
        """


class Transport(Protocol):
    """An engine that sends bytes.

    Attributes
    ----------
    tags : int
        The tags of messages must be smaller than this number.
    """

    tags: int

    def prepare(self) -> None:
        """Set the engine's environment variables, before any process group is made."""

    def new_group(
        self, ranks: Sequence[int], timeout: Optional[timedelta], everybody: bool
    ) -> dist.ProcessGroup:
        """Create a process group.

        Parameters
        ----------
        ranks : sequence of int
            The members. All of them call this.
        timeout : timedelta, optional
            The longest time that a wait may last. None: the default of PyTorch's groups.
        everybody : bool
            Whether all workers of the job call this, not only the members.
        """

    def messages(
        self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]
    ) -> Messages:
        """Create the messages of a group.

        Parameters
        ----------
        group : ProcessGroup
            A group that this engine has made.
        tag : int
            The same on all members. No other messages of the group may have it.
        rooms : mapping of int to array of uint8
            The receive buffer for each member that sends to this one, by its rank in the group. A
            message may be shorter than its buffer.
        """
