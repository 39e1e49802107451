"""What gluon_gc asks of an engine that carries bytes between workers. Gloo is one (`gloo.py`).

An engine is a backend of torch.distributed with point-to-point messages. The collectives that sum
or gather small things are torch.distributed's own, in the groups that the engine makes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Mapping, Optional, Protocol, Sequence

import numpy as np
import torch.distributed as dist


class Messages(Protocol):
    """The messages of one kind that this worker gets and sends in a group, step after step.

    A step is `send`, `wait`, and `expect` once the received bytes were read. `expect` has been
    called for the first step when the messages are made.
    """

    def expect(self) -> None:
        """Let the others' next messages overwrite the rooms; returns at once."""

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        """Send bytes to members; returns at once.

        Parameters
        ----------
        data : mapping of int to array of uint8
            By the receiver's rank in the group. The bytes must not change until `wait` returns.
        """

    def wait(self) -> None:
        """Return when all expected messages have come, and all bytes are sent.

        Raises
        ------
        RuntimeError
            A member has ended, or the group's time-out is over. The error names the member.
        """


class Transport(Protocol):
    """An engine that carries bytes.

    Attributes
    ----------
    tags : int
        Tags of messages are below this number.
    """

    tags: int

    def prepare(self) -> None:
        """Set what the engine reads from the environment, before the process makes any group."""

    def new_group(
        self, ranks: Sequence[int], timeout: Optional[timedelta], everybody: bool
    ) -> dist.ProcessGroup:
        """Make a group of workers.

        Parameters
        ----------
        ranks : sequence of int
            The members, who all call this.
        timeout : timedelta, optional
            How long a wait may last; None: as long as PyTorch's own groups.
        everybody : bool
            All workers of the job call this, not only the members.
        """

    def messages(
        self, group: dist.ProcessGroup, tag: int, rooms: Mapping[int, np.ndarray]
    ) -> Messages:
        """Make messages in a group.

        Parameters
        ----------
        group : ProcessGroup
            One that this engine has made.
        tag : int
            The same on all members, and of no other messages in the group.
        rooms : mapping of int to array of uint8
            Of each member that sends to this one, by its rank in the group, the array that the
            message is written to. A message may be shorter.
        """
