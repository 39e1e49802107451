"""The calls that reach all servers of MXNet's parameter server."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .... import env, kernels
from ....agreement import Message
from ....launch.progress import Progress
from . import control_messages, handshake
from .keys import KeyAllocator
from .rows import Rows

_CONTROLLER = 0  # the number of a command that MXNet's server passes to its controller


class Servers:
    """All servers, from a worker's side.

    Parameters
    ----------
    kv : KVStoreBase
        MXNet's KVStore, which is connected to the servers.
    count : int
        The number of servers.
    progress : Progress
        It records when this worker waits for other nodes.
    """

    def __init__(self, kv: KVStoreBase, count: int, progress: Progress) -> None:
        self.kv, self.count, self._progress = kv, count, progress
        self._allocator = KeyAllocator(count)
        keys = self.keys()
        self._greetings = [Rows(kv, key, control_messages.ROWS) for key in keys]
        self.configure([])
        self.init(keys, [greeting.first() for greeting in self._greetings])

    def key(self, server: int) -> int:
        """A new key that MXNet sends to this server."""
        return self._allocator.key(server)

    def keys(self) -> List[int]:
        """A new key for each server."""
        return [self.key(server) for server in range(self.count)]

    def init(self, keys: Sequence[int], first: Sequence[NDArray]) -> None:
        """Set the initial values of keys. Collective: it waits until all workers call it."""
        if keys:
            with self._progress.waiting():
                self.kv.init(keys, first)

    def configure(self, keys: List[Dict[str, Any]]) -> None:
        """Send the configuration of keys to the servers. Only rank 0 sends it."""
        if self.kv.rank == 0:
            self.command("configure", keys)

    def command(self, action: str, request: Any) -> None:
        """Send all servers a request, and wait until they have carried it out."""
        body = json.dumps({"gluon_gc": {action: request}})
        self.kv._send_command_to_servers(_CONTROLLER, body)

    def compared(self, message: Message, call: str) -> Message:
        """Let the servers compare all workers' messages, and return the answer. Collective.

        Only gluon_gc's servers give an answer. `call` is named if this worker waits too long.
        """
        packed = handshake.pack(message)
        with self._progress.waiting(call):
            answers = [greeting.exchange([packed]) for greeting in self._greetings]
            unpacked = [handshake.unpack(answer) for (answer,) in answers]
            self.kv._barrier()  # rank 0 sends no further command before all have their answers
        return next(filter(None, unpacked), {})

    def broadcast(self, arrays: Sequence[NDArray], is_root: bool) -> None:
        """Overwrite arrays of any dtype with the root worker's arrays, bit for bit.

        The servers sum: the root sends its bytes framed as floats, all other workers send zeros.
        """
        host = [array.asnumpy() for array in arrays]
        data = np.frombuffer(b"".join(array.tobytes() for array in host), np.uint8)
        words = kernels.frame(data).view(np.float32)
        most = max(1, env.get("BYTEPS_PARTITION_BYTES") // 4)
        lane = min(most, -(-words.size // self.count))
        keys = self.keys()
        buffers = [mx.nd.zeros(lane) for _ in keys]
        self.init(keys, buffers)
        received = np.empty_like(words)
        round_words = lane * len(keys)
        for start in range(0, words.size, round_words):
            for key, buffer, begin in zip(keys, buffers, range(start, start + round_words, lane)):
                part = words[begin : begin + lane] if is_root else words[:0]
                buffer[:] = np.pad(part, (0, lane - part.size))
                self.kv.pushpull(key, buffer, out=buffer)
            with self._progress.waiting():
                answers = np.concatenate([buffer.asnumpy() for buffer in buffers])
            part = received[start : start + round_words]
            part[:] = answers[: part.size]
        data = kernels.unframe(received.view(np.uint32), data.size)
        begin = 0
        for array, old in zip(arrays, host):
            new = data[begin : begin + old.nbytes].view(old.dtype).reshape(old.shape)
            array[:] = mx.nd.array(new, dtype=old.dtype)
            begin += old.nbytes
