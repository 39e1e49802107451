"""Emulated CUDA streams for tensors in host memory. A missing event gives wrong numbers.

Each stream is a thread that runs its work in order. Operations of PyTorch within `Cuda.stream`, and
the library's calls, are queued there and return at once. A stream in `lazy` runs its work only when
the host, or another stream, waits for it. So work that another stream needs, but does not wait for,
surely comes too late. The default stream is the host itself: its work is complete at once.
"""

import itertools
import threading
import traceback
from collections import Counter, deque
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch._jit_internal import _extract_tensors
from torch.autograd import _unsafe_preserve_version_counter as preserving_version
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

_IDLE, _STUCK = 1, 60  # seconds until an idle thread ends, and until a wait is an error

lazy = set()
"""The names of lazy streams: those of the threads that make them, "caller", "nccl", and "pool" of
PyTorch's futures."""
waits = Counter()
"""How often the host has waited, by function."""
_counting = threading.Lock()


def count_wait(function):
    """Count a wait of the host. Several threads count at the same time."""
    with _counting:
        waits[function] += 1


class Event:
    """The end of the work that a stream has at this time."""

    def __init__(self, stream):
        self._stream, self._position = stream, stream.queued

    def reach(self):
        """Wait, as a stream does."""
        self._stream.run_until(self._position)

    def synchronize(self):
        count_wait("event.synchronize")
        self.reach()


class Stream:
    def __init__(self, device=None, name=None):
        self.name = threading.current_thread().name if name is None else name
        self.cuda_stream = id(self)
        self.queued = self._done = self._wanted = 0
        self._items, self._changed = deque(), threading.Condition()
        self._thread, self._error = None, None

    def put(self, work):
        with self._changed:
            self._items.append((work, list(_held())))
            self.queued += 1
            self._wake()

    def run_until(self, position):
        with self._changed:
            self._wanted = max(self._wanted, position)
            self._wake()
            assert self._changed.wait_for(lambda: self._done >= position, _STUCK), "it is stuck"
            if self._error is not None:
                raise RuntimeError("the work of a stream has failed") from self._error

    def _wake(self):
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _may_run(self):
        return self._items and (self.name not in lazy or self._wanted > self._done)

    @torch.no_grad()
    def _run(self):
        while True:
            with self._changed:
                if not self._changed.wait_for(self._may_run, _IDLE):
                    self._thread = None
                    return
                work, held = self._items.popleft()
            try:
                work()
            except BaseException as error:
                traceback.print_exc()
                self._error = error
            del work, held
            with self._changed:
                self._done += 1
                self._changed.notify_all()

    def wait_event(self, event):
        self.put(event.reach)

    def record_event(self):
        return Event(self)

    def synchronize(self):
        count_wait("stream.synchronize")
        self.run_until(self.queued)


class _Host(Stream):
    """The default stream."""

    def put(self, work):
        work()


_host = _Host(name="host")
_pool = itertools.cycle([Stream(name="pool") for _ in range(4)])
_own = threading.local()
_all = []


class Cuda:
    """Replaces torch.cuda."""

    @staticmethod
    def Stream(device=None):
        stream = Stream()
        _all.append(stream)
        return stream

    @staticmethod
    def current_stream(device=None):
        return getattr(_own, "stream", _host)

    @staticmethod
    @contextmanager
    def stream(stream):
        before, _own.stream = Cuda.current_stream(), stream
        try:
            with nullcontext() if stream is _host else _Queued():
                yield
        finally:
            _own.stream = before

    @staticmethod
    def synchronize(device=None):
        count_wait("cuda.synchronize")
        for stream in list(_all):
            stream.run_until(stream.queued)

    @staticmethod
    def is_initialized():
        return False


def _held():
    """Return the memory that the allocator does not reuse before the work of this thread ends."""
    if not hasattr(_own, "held"):
        _own.held = []
    return _own.held


@contextmanager
def holding(memory):
    """Keep memory until the work that is queued meanwhile has ended, as `record_stream` does."""
    before, _own.held = _held(), [*_held(), *memory]
    try:
        yield
    finally:
        _own.held = before


def caller():
    """Return a stream of a script."""
    stream = Stream(name="caller")
    _all.append(stream)
    return stream


class _Queued(TorchDispatchMode):
    """Queues PyTorch's operations in the current stream."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        stream, schema = Cuda.current_stream(), function._schema
        aliases = [each.alias_info for each in schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return function(*args, **kwargs)  # a view
        if any(alias is not None for alias in aliases):
            name = next(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
            written = kwargs.get(name, args[0])

            def write():
                with preserving_version(written):  # it has changed already, when this was queued
                    function(*args, **kwargs)

            stream.put(write)
            return written
        if function.namespace == "profiler":
            return function(*args, **kwargs)
        if not schema.returns or any(str(each.type) != "Tensor" for each in schema.returns):
            count_wait(str(function))
            stream.run_until(stream.queued)
            return function(*args, **kwargs)
        results = function(*args, **kwargs)  # of these shapes; the numbers come later
        if "empty" not in str(function):
            flat = results if isinstance(results, tuple) else (results,)

            def compute():
                again = function(*args, **kwargs)
                for old, new in zip(flat, again if isinstance(again, tuple) else (again,)):
                    with preserving_version(old):
                        old.copy_(new)

            stream.put(compute)
        return results


class StreamFuture(Future):
    """A future of tensors on an emulated GPU. As PyTorch's, it has events if its value has tensors.

    C++, as in DistributedDataParallel, cannot wait as a stream does. So the results of `then` are
    set only after their events.
    """

    def __init__(self, devices=(), for_cpp=False):
        super().__init__()
        self._events, self._for_cpp = [], for_cpp

    def set_result(self, value):
        if _extract_tensors(value):
            self._events = [Cuda.current_stream().record_event()]
        for event in self._events if self._for_cpp else ():
            event.reach()
        super().set_result(value)

    def wait(self):
        value = super().wait()
        for event in self._events:
            Cuda.current_stream().wait_event(event)
        return value

    def then(self, callback):
        child = StreamFuture(for_cpp=True)

        def call(done):
            with Cuda.stream(next(_pool)):
                for event in self._events:
                    Cuda.current_stream().wait_event(event)
                try:
                    child.set_result(callback(self))
                except Exception as error:
                    child.set_exception(error)

        super().then(call)
        return child


class _Work:
    def __init__(self, event):
        self._event = event

    def wait(self):
        Cuda.current_stream().wait_event(self._event)


_of_groups = {}


def batch_isend_irecv(operations):
    """As NCCL does in its own stream, after the work of the current one."""
    stream = _of_groups.setdefault(operations[0].group.group_name, Stream(name="nccl"))
    if stream not in _all:
        _all.append(stream)
    stream.wait_event(Cuda.current_stream().record_event())
    stream.put(lambda: [work.wait() for work in dist.batch_isend_irecv(operations)])
    return [_Work(stream.record_event())]


def queued_call(function):
    """Queue a function of the library, which takes calls and their number."""

    def put(calls, count):
        copies = type(calls).from_buffer_copy(calls)  # a driver copies the parameters at once
        stream = Cuda.current_stream()
        assert stream.cuda_stream == copies[0].stream, "the calls are for another stream"

        def run():
            error = function(copies, count)
            assert error is None, error

        stream.put(run)

    return put
