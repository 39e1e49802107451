"""Exchanges of tensors on an emulated GPU whose streams run as late as they may.

The script of these tests has a stream of its own. Nothing in it waits for the device before the
end, so each step is queued while the work of earlier steps may not have begun.
"""

import threading
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from unittest import mock

import pytest
import torch

import gluon_gc.torch as bps
from gluon_gc.exchange import transfers
from gluon_gc.torch.transport import arrays, gpu, nccl, staging
from tests.cuda import emulator
from tests.torch.common import SIGNS, TOPK, in_flight_together, raised
from tests.torch.workers import run

from . import emulated, streams

pytestmark = pytest.mark.xdist_group("emulator")  # to build the emulator once

SIZES = {"first": 3000, "second": 10_001, "third": 500}
STEPS = 5
STAGES = SEND, ANSWER, DELIVER = [f"gluon_gc stage {number}" for number in range(3)]
LATE = ((), ("caller",), ("nccl",), *((stage,) for stage in STAGES), (*STAGES, "caller", "nccl"))
NCCL = {"GLUON_GC_PAYLOADS": "nccl", "BYTEPS_MIN_COMPRESS_BYTES": "0"}
GLOO = {**NCCL, "GLUON_GC_PAYLOADS": "gloo"}


@pytest.fixture(scope="module")
def emulated_gpu():
    """Return the folder of an emulator."""
    return emulator.build()


class Script:
    """Averages gradients in streams of its own, or on the CPU. It may step an optimizer.

    The gradients of a step do not depend on the steps before, so their streams do not either.
    """

    def __init__(self, params, on_gpu, scale=1.0, on_nonfinite="raise", steps=True):
        self._computing, self._stepping = [streams.caller() if on_gpu else None for _ in range(2)]
        self.parameters = {n: torch.nn.Parameter(torch.zeros(size)) for n, size in SIZES.items()}
        self._optimizer, self._steps = torch.optim.SGD(self.parameters.values(), lr=0.1), steps
        named = self.parameters.items()
        self.state = bps.CompressionState(named, params, self._optimizer, on_nonfinite=on_nonfinite)
        self.scale, self.averages = scale, []

    def start(self, step):
        """Compute gradients, and start to average them."""
        random = torch.Generator().manual_seed(10 * step + torch.distributed.get_rank())
        computed = {n: torch.randn(s, generator=random) * self.scale for n, s in SIZES.items()}
        self.state._begin()  # it handles tensors in host memory, which must not be queued
        with queue(self._computing):
            self._gradients = {name: torch.zeros(size) for name, size in SIZES.items()}
            for name, values in computed.items():
                self._gradients[name].copy_(values)
            self._future = self.state.average(self._gradients, begins=False)

    def finish(self):
        """Use the averages, and overwrite them."""
        with queue(self._stepping):
            self._future.wait()
            self.averages += [average.clone() for average in self._gradients.values()]
            if self._steps:
                for name, parameter in self.parameters.items():
                    parameter.grad = self._gradients[name].clone()
                self.state.gradients.undo.delivered()
                self._optimizer.step()
            else:
                self.state.applied()
            for gradient in self._gradients.values():
                gradient.fill_(float("nan"))

    def close(self):
        """Return the averages of all steps, and the weights."""
        if self._stepping is not None:
            streams.Cuda.synchronize()
        self.state.close()
        return [*self.averages, *self.parameters.values()]


def queue(stream):
    return nullcontext() if stream is None else streams.Cuda.stream(stream)


def results(params, late=None, **more):
    """Return the results of two scripts that run side by side."""
    streams.lazy.clear()
    streams.lazy.update(late or ())
    with mock.patch.object(transfers, "_TRANSFER_BYTES", 400):  # several transfers in a job
        scripts = [Script(params, late is not None, steps=steps, **more) for steps in (True, False)]
        return in_flight_together(scripts, STEPS)


def equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others))


def late_streams_do_no_harm(folder):
    several = SIGNS, TOPK, {}
    expected = [results(params) for params in several]
    emulated.start(folder)
    for params, on_cpu in zip(several, expected):
        for late in LATE:
            assert equal(results(params, late), on_cpu), (params, late)


@pytest.mark.parametrize("variables", [NCCL, GLOO], ids=["nccl", "gloo"])
def test_late_streams_do_no_harm(emulated_gpu, variables):
    run(late_streams_do_no_harm, 2, variables, folder=emulated_gpu)


class _Unordered(gpu.Order):
    """The order of buffers without events."""

    def queue(self):
        return self._queued(())


EVENTS = {
    "of values": (gpu.Order, "queue_beside", lambda order: order._queued(())),
    "of buffers": (arrays.gpu, "Order", _Unordered),
    "of NCCL": (nccl.GpuMessages, "wait", lambda messages: None),
    "of futures": (staging.Names, "__new__", lambda kind, names, _: frozenset.__new__(kind, names)),
    "of the host": (streams.Event, "synchronize", lambda event: None),
}


def wrong_without(folder, events, late):
    """Check that the results are wrong without some events. A worker may find that itself."""
    expected = results(SIGNS)
    emulated.start(folder)
    with mock.patch.object(*EVENTS[events]), suppress(RuntimeError):
        assert not equal(results(SIGNS, late, on_nonfinite="propagate"), expected)


@pytest.mark.parametrize(
    "events, late, variables",
    [
        ("of values", ["caller"], NCCL),
        ("of values", ["caller"], GLOO),
        ("of buffers", (ANSWER, DELIVER, "nccl", "caller"), NCCL),
        ("of NCCL", ["nccl"], NCCL),
        ("of futures", [DELIVER], NCCL),
        ("of futures", [DELIVER], GLOO),
        ("of the host", [SEND], GLOO),
    ],
)
def test_numbers_are_wrong_without_events(emulated_gpu, events, late, variables):
    variables = {**variables, "WITHOUT": events}  # these workers run nothing else
    run(wrong_without, 2, variables, folder=emulated_gpu, events=events, late=late)


def the_host_does_not_wait(folder, waits_of_step):
    """Check how often the host waits in a step, for some settings."""
    emulated.start(folder)
    for on_nonfinite, expected in waits_of_step.items():
        streams.lazy.clear()
        script = Script(SIGNS, True, on_nonfinite=on_nonfinite)
        with counting_reads():
            for step in range(8):
                if step == 4:
                    streams.waits.clear()
                script.start(step)
                script.finish()
            script.state.gradients.finish()
            counted = dict(streams.waits)
        script.close()
        assert counted == {name: 4 * count for name, count in expected.items()}, (
            on_nonfinite,
            counted,
        )


@contextmanager
def counting_reads():
    """Count the calls that wait for a GPU to read a tensor, if that is on one."""

    def counting(name):
        function = getattr(torch.Tensor, name)

        def counted(tensor, *arguments, **more):
            if gpu.is_on_gpu(tensor):
                streams.count_wait(name)
            return function(tensor, *arguments, **more)

        return mock.patch.object(torch.Tensor, name, counted)

    with ExitStack() as stack:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
            stack.enter_context(counting(name))
        yield


def test_the_host_does_not_wait(emulated_gpu):
    """But for the last sample of the weights, and for statuses at the end of a job."""
    waits = {"propagate": {"event.synchronize": 1}, "raise": {"event.synchronize": 2}}
    run(the_host_does_not_wait, 2, NCCL, folder=emulated_gpu, waits_of_step=waits)


def test_the_host_waits_for_copies_to_and_from_its_memory(emulated_gpu):
    """Before a message is sent, and before the next one may overwrite the last."""
    waits = {"propagate": {"event.synchronize": 3}, "raise": {"event.synchronize": 3}}
    run(the_host_does_not_wait, 2, GLOO, folder=emulated_gpu, waits_of_step=waits)


def nonfinite_gradients_are_found(folder):
    """Also if all streams are late."""
    emulated.start(folder)
    for late in LATE:
        streams.lazy.clear()
        streams.lazy.update(late)
        script = Script(SIGNS, True)
        script.start(0)
        script.finish()
        script.scale = float("nan") if torch.distributed.get_rank() == 1 else 1.0
        script.start(1)
        raised(RuntimeError, "has a NaN or an infinity in step 2", script.finish)
        script.close()


@pytest.mark.parametrize("variables", [NCCL, GLOO], ids=["nccl", "gloo"])
def test_nonfinite_gradients_are_found(emulated_gpu, variables):
    run(nonfinite_gradients_are_found, 2, variables, folder=emulated_gpu)


@pytest.fixture
def emulated_streams():
    """Let this process use emulated streams, without kernels."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(gpu, "cuda", streams.Cuda))
        stack.enter_context(mock.patch.object(gpu, "has_streams", lambda device: True))
        stack.enter_context(mock.patch.dict(gpu._own.streams, clear=True))
        yield
    streams.lazy.clear()


@pytest.mark.parametrize("waits, expected", [(True, 1.0), (False, 0.0)])
def test_a_late_stream_runs_if_another_one_waits_for_it(emulated_streams, waits, expected):
    streams.lazy.add("caller")
    late, reader = streams.caller(), streams.Stream(name="reader")
    values = torch.zeros(1)
    with streams.Cuda.stream(late):
        values.fill_(1)
    if waits:
        reader.wait_event(late.record_event())
    with streams.Cuda.stream(reader):
        copied = values.clone()
    reader.synchronize()
    assert copied.item() == expected
    late.synchronize()
    assert values.item() == 1 and copied.item() == expected


def test_memory_is_recorded_once_in_each_stream_that_uses_it(emulated_streams):
    recorded, memory = [], [torch.zeros(1)]

    def use():
        for _ in range(3):
            with order.queue():
                pass

    with mock.patch.object(gpu, "record", recorded.append):
        order = gpu.Order(gpu.CPU, memory)
        use()
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert recorded == [memory, memory]


def test_each_use_of_memory_waits_for_the_last_one_on_another_thread(emulated_streams):
    order, values = gpu.Order(gpu.CPU), torch.zeros(1)

    def add(number):
        with order.queue():
            values.mul_(10).add_(number)

    streams.lazy.update(f"adder {number}" for number in range(5))
    for number in range(5):
        thread = threading.Thread(target=add, args=(number,), name=f"adder {number}")
        thread.start()
        thread.join()
    streams.Cuda.synchronize()
    assert values.item() == 1234
