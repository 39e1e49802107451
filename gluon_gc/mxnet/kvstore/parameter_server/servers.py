"""The calls that reach all servers of MXNet's parameter server."""

from __future__ import annotations

import itertools
import json
from typing import Any, Iterator, Sequence

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .... import env, kernels
from ....exchange.agreement import Message
from ....launch.scheduler.stalls import Progress
from ...exchange.gradient import legacy
from . import control_messages
from .messages import Rows

_HASH = 9973  # MXNet sends a key to server (key * 9973) mod servers
_CONTROLLER = 0  # the number of a command that MXNet's server passes to its controller


class KeyAllocator:
    def __init__(self, num_servers: int) -> None:
        self._next = [0] * num_servers

    def key(self, server: int) -> int:
        """The smallest unused key that MXNet sends to this server."""
        servers = len(self._next)
        key = self._next[server]
        while key * _HASH % servers != server:
            key += 1
        self._next[server] = key + 1
        return key


class Servers:
    """All servers, from a worker's side."""

    def __init__(self, kv: KVStoreBase, count: int, progress: Progress) -> None:
        self.kv, self.count, self._progress = kv, count, progress
        self._allocator = KeyAllocator(count)
        self._buffers: dict[int, tuple[list[int], list[NDArray]]] = {}  # by their length in words
        keys = self.keys()
        self._greetings = [Rows(kv, key, control_messages.ROWS) for key in keys]
        self.configure([])
        self.init(keys, [greeting.first() for greeting in self._greetings])

    def key(self, server: int) -> int:
        return self._allocator.key(server)

    def keys(self) -> list[int]:
        return [self.key(server) for server in range(self.count)]

    def open(
        self, configured: list[dict[str, Any]], keys: Sequence[int], first: Sequence[NDArray]
    ) -> None:
        """Configure keys, and set the initial values of new ones. All workers call it."""
        self.configure(configured)
        self.init(keys, first)
        if not keys:
            self.kv._barrier()  # no worker may push a key that the server does not know yet

    def init(self, keys: Sequence[int], first: Sequence[NDArray]) -> None:
        """Set the initial values of keys. Collective: it waits until all workers call it."""
        if keys:
            with self._progress.waiting():
                self.kv.init(keys, first)

    def configure(self, keys: list[dict[str, Any]]) -> None:
        if self.kv.rank == 0:
            self.command("configure", keys)

    def command(self, action: str, request: Any) -> None:
        """Send all servers a request, and wait until they have carried it out."""
        body = json.dumps({"gluon_gc": {action: request}})
        self.kv._send_command_to_servers(_CONTROLLER, body)

    def compared(self, message: Message, call: str) -> Message:
        """Let the servers compare all workers' messages, which wait in the user's `call`."""
        packed = control_messages.pack(message)
        with self._progress.waiting(call):
            answers = [greeting.exchange(packed) for greeting in self._greetings]
            unpacked = [control_messages.unpack(answer) for answer in answers]
            self.kv._barrier()  # rank 0 sends no further command before all have their answers
        return next(filter(None, unpacked), {})

    def broadcast(self, arrays: Sequence[NDArray], is_root: bool) -> None:
        """Overwrite arrays of any dtype with the root worker's arrays, bit for bit.

        The servers sum: the root sends its bytes framed as floats, all other workers send zeros,
        piece by piece. Sparse arrays become dense on their way.
        """
        sparse = [array for array in arrays if array.stype != "default"]
        dense = [array.tostype("default") for array in sparse]
        arrays = [*legacy(a for a in arrays if a.stype == "default"), *dense]
        num_bytes = sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)
        buffer_words = self._buffer_words(num_bytes)
        keys, buffers = self._buffers_of(buffer_words)
        pages = _pages(arrays, kernels.frame_bytes(buffer_words))
        while True:
            batch = list(itertools.islice(pages, self.count))
            if not batch:
                break
            for key, buffer, page in zip(keys, buffers, batch):
                words = np.zeros(buffer_words, np.float32)
                if is_root:
                    framed = kernels.frame(np.concatenate([_bytes_of(piece) for piece in page]))
                    words[: framed.size] = framed.view(np.float32)
                buffer[:] = words
                self.kv.pushpull(key, buffer, out=buffer)
            with self._progress.waiting():
                answers = [buffer.asnumpy().view(np.uint32) for buffer in buffers[: len(batch)]]
            if not is_root:
                for page, answer in zip(batch, answers):
                    _write(page, answer)
        for array, values in zip(sparse, dense):
            values.tostype(array.stype).copyto(array)

    def _buffer_words(self, num_bytes: int) -> int:
        """The length of the arrays in which this number of bytes travels, a power of two."""
        most = max(128, env.get("BYTEPS_PARTITION_BYTES") // 4)
        needed = max(128, -(-kernels.frame_words(num_bytes) // self.count))
        return 1 << min(most.bit_length() - 1, (needed - 1).bit_length())

    def _buffers_of(self, words: int) -> tuple[list[int], list[NDArray]]:
        """A key and an array for each server. Later broadcasts use them again."""
        if words not in self._buffers:
            keys, buffers = self.keys(), [mx.nd.zeros(words) for _ in range(self.count)]
            self.init(keys, buffers)
            self._buffers[words] = keys, buffers
        return self._buffers[words]


def _pages(arrays: Sequence[NDArray], page_bytes: int) -> Iterator[list[NDArray]]:
    """The elements of all arrays, in order: pages of pieces, which share the arrays' memory."""
    page, room = [], page_bytes
    for array in arrays:
        flat, begin = array.reshape(-1), 0
        itemsize = np.dtype(array.dtype).itemsize
        while begin < array.size:
            if room < itemsize:
                yield page
                page, room = [], page_bytes
            end = min(array.size, begin + room // itemsize)
            page.append(flat[begin:end])
            room -= (end - begin) * itemsize
            begin = end
    if page:
        yield page


def _bytes_of(piece: NDArray) -> np.ndarray:
    return piece.asnumpy().view(np.uint8)


def _write(page: Sequence[NDArray], words: np.ndarray) -> None:
    """Overwrite the pieces of a page with its bytes, which are framed."""
    sizes = [piece.size * np.dtype(piece.dtype).itemsize for piece in page]
    data = kernels.unframe(words[: kernels.frame_words(sum(sizes))], sum(sizes))
    for piece, part in zip(page, np.split(data, np.cumsum(sizes)[:-1])):
        piece[:] = mx.nd.array(part.view(piece.dtype), dtype=piece.dtype)
