"""Workers of a run in threads of one process, on NumPy arrays, and stores that fail at will."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gluon_gc import algorithms, compression
from gluon_gc.exchange import plan
from gluon_gc.mailbox import Run, objects
from gluon_gc.mailbox.driver import MailboxDriver
from gluon_gc.mailbox.store import Store, StoreError
from tests.neutral.algorithms.test_algorithms import SHAPES, Worker

TIMEOUT = 60.0  # seconds until a wait fails
LEARNING_RATE = np.float32(0.1)  # of `Worker.update`


class FaultyStore(Store):
    """A store that fails at will. All its threads share the faults.

    Attributes
    ----------
    is_down : bool
        Whether every operation raises StoreError.
    alter : callable
        Gets an operation ("put" or "get"), a name and data. It returns the data to use instead.
    created : callable
        Gets the name of an object that this store has created.
    """

    def __init__(self, url):
        super().__init__(url)
        self.is_down, self.alter = False, lambda operation, name, data: data
        self.created = lambda name: None
        self.calls = []  # operations and names
        self._traps, self._lock = [], threading.Lock()

    def trap(self, operation, pattern, action, after=False):
        """Call `action` once, before (or after) the next operation on a name with this pattern."""
        self._traps.append((operation, pattern, after, action))

    def clear(self):
        self._traps.clear()

    def put(self, name, data, create=False):
        data = self.alter("put", name, bytes(data))

        def put():
            is_new = super(FaultyStore, self).put(name, data, create)
            if create and is_new:
                self.created(name)
            return is_new

        return self._do("put", name, put)

    def get(self, name):
        data = self._do("get", name, lambda: super(FaultyStore, self).get(name))
        return self.alter("get", name, data)

    def list(self, prefix):
        return self._do("list", prefix, lambda: super(FaultyStore, self).list(prefix))

    def _do(self, operation, name, call):
        self.calls.append((operation, name))
        self._spring(operation, name, after=False)
        if self.is_down:
            raise StoreError(f"{self.url}: cannot {operation} '{name}': it is down")
        answer = call()
        self._spring(operation, name, after=True)
        return answer

    def _spring(self, operation, name, after):
        with self._lock:
            sprung = [
                trap
                for trap in self._traps
                if trap[0] == operation and re.search(trap[1], name) and trap[2] == after
            ]
            for trap in sprung:
                self._traps.remove(trap)
        for *_, action in sprung:
            action()


class Member(Worker):
    """A worker of a run, with its driver. `made`: the sum of all differences it ever made."""

    def __init__(self, url, rank, options=None, params=None, driver=MailboxDriver, **settings):
        super().__init__(rank, 1)
        self.run = Run(url, "numpy", worker_name=f"w{rank}", **settings)
        self.store, self.name = self.run._store, self.run.worker
        algorithm = algorithms.parse({"name": "local_steps", "every": 1, **(options or {})})
        parsed = compression.parse(params)
        self.driver = driver(algorithm, self, self.run, dict.fromkeys(SHAPES, parsed))
        self.made = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.nan_in = None  # the name of a parameter that becomes NaN in the next step
        self.drawn = 0

    def update(self):
        for name, gradient in self.grads.items():
            self.made[name] += LEARNING_RATE * gradient
        super().update()
        if self.nan_in:
            self.values[self.nan_in].flat[0], self.nan_in = np.nan, None

    def join(self):
        self.driver.begin()
        return self

    def train(self, steps=1):
        for _ in range(steps):
            self.drawn += 1
            self.draw(self.drawn)
            self.driver.step(self.update)
        return self

    def saved(self):
        """Wait until the state is saved that it saves on a thread, if any."""
        saving = self.participant()._saving
        if saving is not None:
            saving.join(TIMEOUT)
        return self

    def shared(self):
        """Copies of the anchors and the outer momentum, by kind and parameter."""
        return {
            kind: {name: array.copy() for name, array in self.driver.state[kind].items()}
            for kind in self.driver.algorithm.shared
        }

    def participant(self, kind="difference"):
        return self.driver._lanes[kind].participant

    def is_idle(self):
        return all(lane.is_idle for lane in self.driver._lanes.values())

    def uncounted(self):
        """What no round has counted, outside of the parameters."""
        found = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        for lane in self.driver._lanes.values():
            own = lane.participant.packing.residuals(), lane.uncounted, lane.counted
            for sign, arrays in zip((1, 1, -1), own):
                for name, values in arrays.items():
                    found[name] += sign * values.reshape(SHAPES[name])
        return found

    def changes(self):
        """The differences between the anchors and the parameters."""
        return {name: self.driver.state["anchor"][name] - x for name, x in self.values.items()}


def wait_for(happens):
    end = time.monotonic() + TIMEOUT
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


def in_threads(*calls):
    """Make calls at the same time, and return their results."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        return [future.result(TIMEOUT) for future in futures]


def assert_equal(one, other):
    """Assert that nested dictionaries of arrays have the same bits."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            assert_equal(value, other[key])
        else:
            np.testing.assert_array_equal(value, other[key], err_msg=key)


def read(url, name):
    """Return the contents of an object."""
    return objects.unpack(name, Store(url).get(name))


def results(url, kind="difference"):
    """Return the headers of the results in a store, by round."""
    names = [entry.name for entry in Store(url).list(objects.rounds_folder(kind))]
    headers = [read(url, name).header for name in names if name.endswith("/result")]
    return {header["round"]: header for header in headers}


def counted(result):
    return [entry["worker"] for entry in result["counted"]]


def decoded(tensors, lengths, body, partition_bytes):
    """Return the arrays of a payload by name, each decoded by its codec alone."""
    found, end = {tensor.name: np.zeros(tensor.size, tensor.dtype) for tensor in tensors}, 0
    chunks = [chunk for tensor in tensors for chunk in plan.cut([tensor], partition_bytes, 0)]
    assert len(chunks) == len(lengths)
    for chunk, length in zip(chunks, lengths):
        (piece,), payload = chunk.slices, np.frombuffer(body[end : end + length], np.uint8)
        end += length
        if chunk.params is None:
            values = payload.view(chunk.dtype)
        else:
            codec = chunk.params.codec(piece.size, chunk.dtype)
            row = np.concatenate([payload, np.zeros(codec.payload_bytes - length, np.uint8)])
            values, _ = codec.decompress(row)
        found[piece.tensor][piece.begin : piece.end] = values
    return found


def weighted_mean(weights, arrays):
    """Return the weighted mean of arrays, in their order."""
    first, *others = [(weight / sum(weights)) * values for weight, values in zip(weights, arrays)]
    for values in others:
        first = first + values
    return first
