"""The workers that a backend connects: their ranks, and how they compare facts."""

from __future__ import annotations

from typing import Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ... import agreement, env
from ...agreement import Facts, Message
from ...auto.choice import Topology


class WorkerGroup:
    """The workers that train together; the part of a backend that moves no gradients.

    A backend implements `_compared` and `_broadcast`. All workers make the same calls in the same
    order.

    Attributes
    ----------
    type : str
        The backend's name.
    rank, num_workers : int
        This worker's number, and the number of workers.
    local_rank, local_size : int
        The same among the workers on this machine.
    """

    type = ""
    rank = 0
    num_workers = 1

    def __init__(self) -> None:
        env.prepare_exchanges()
        self.local_rank = env.get("BYTEPS_LOCAL_RANK")
        self.local_size = env.get("BYTEPS_LOCAL_SIZE")

    # A backend implements these

    def topology(self) -> Optional[Topology]:
        """The machines and servers that the network connects; None: there is no network."""

    def _compared(self, message: Message, call: str) -> Message:
        """The answer of `agreement.compare` to the messages of all workers.

        `call` is the user's function in which this worker waits for the others.
        """
        return agreement.compare([message])

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of `root_rank`; the workers already agree on them."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish all exchanges. The backend is unusable afterwards."""

    def abandon(self, why: str) -> None:
        """Tell the others that this worker leaves at once. The backend is unusable afterwards."""

    # All workers call these

    def agree(self, call: str, facts: Facts = ()) -> None:
        """Return when all workers have called this with the same arguments.

        Parameters
        ----------
        call : str
            The user's function that needs this.
        facts : Facts, optional
            Facts that must be the same on all workers.

        Raises
        ------
        RuntimeError
            Workers make different calls, or state different facts.
        """
        called = [("", {"call": call}), *facts]
        agreement.reach(self.rank, called, lambda message: self._compared(message, call))

    def agrees(self, call: str, facts: Facts) -> bool:
        """Whether all workers state the same facts; see `agree`."""
        try:
            self.agree(call, facts)
        except RuntimeError:
            return False
        return True

    def broadcast(
        self, arrays: Sequence[NDArray], root_rank: int, called: Optional[Sequence[str]] = None
    ) -> None:
        """Overwrite arrays with those of worker `root_rank`.

        Parameters
        ----------
        arrays : sequence of NDArray
        root_rank : int
        called : sequence of str, optional
            The arrays' names in errors.

        Raises
        ------
        ValueError
            There is no such worker.
        RuntimeError
            Workers have arrays of different names, shapes or dtypes, or another root_rank.
        """
        if not 0 <= root_rank < self.num_workers:
            raise ValueError(f"root_rank must be in [0, {self.num_workers}), got {root_rank}")
        names = called or [f"array {number}" for number in range(len(arrays))]
        described = [
            (name, {"shape": array.shape, "dtype": np.dtype(array.dtype).name})
            for name, array in zip(names, arrays)
        ]
        self.agree("broadcast_parameters", [("", {"root_rank": root_rank}), *described])
        self._broadcast(arrays, root_rank)

    def bytes_of_root(self, own: bytes) -> bytes:
        """Rank 0's bytes. All workers pass the same number of bytes."""
        array = mx.nd.array(np.frombuffer(own, np.uint8), dtype="uint8")
        self.broadcast([array], root_rank=0)
        return array.asnumpy().tobytes()
