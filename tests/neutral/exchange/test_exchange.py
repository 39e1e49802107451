"""gluon_gc.exchange without a framework: workers are threads, and arrays are NumPy's."""

import threading
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from gluon_gc import kernels
from gluon_gc.compression import parse
from gluon_gc.exchange import header, plan, statistics
from gluon_gc.exchange.exchange import DeclaredTensor
from gluon_gc.exchange.header import Stamp
from gluon_gc.exchange.job import Announced, Request
from gluon_gc.exchange.sharded import AllGather, GatherRequest, ReduceScatter
from tests import replay
from tests.neutral.exchange.workers import (
    Arrays,
    Messages,
    Network,
    TwoLevels,
    Values,
    finished,
    run,
    started,
)

N, CHUNK = 2500, 1000  # elements of a tensor, and at most of a compressed chunk
LARGE = 200_000  # elements of a tensor that the engine sums
STEPS = range(3)
ONEBIT = {"compressor": "onebit", "ef": "vanilla"}
DGC = {"compressor": "dgc", "k": 0.05, "seed": 7, "momentum": "nesterov"}
PARAMS = {
    "plain": {},
    "onebit": ONEBIT,
    "corrected": {**ONEBIT, "ef": "corrected", "momentum": "nesterov"},
    "topk": {"compressor": "topk", "k": 0.05, "ef": "vanilla"},
    "randomk": {"compressor": "randomk", "k": 0.1, "seed": 7, "ef": "vanilla"},
    "dithering": {"compressor": "dithering", "k": 4, "seed": 7},
    "dgc": DGC,
    "gather": {**ONEBIT, "exchange": "gather"},
    "blockwise": {"compressor": "blockwise", "bits": 4, "block": 128, "seed": 7, "ef": "vanilla"},
}
each_number_of_workers = pytest.mark.parametrize("workers", [1, 2, 3, 4])
on_each_level = pytest.mark.parametrize(
    "run_four",
    [
        lambda work: run(work, Network(range(4))),
        lambda work: TwoLevels([[0, 1], [2, 3]]).run(work),
    ],
    ids=["one level", "two levels"],
)
each_compression = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)


@pytest.fixture(autouse=True)
def partition(monkeypatch):
    """Cut compressed tensors into several chunks, with different owners."""
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", str(4 * CHUNK))


def parsed(params):
    return parse(params, 0.9 if params.get("momentum") else None)


def tensor(name="w", n=N, params=PARAMS["plain"], index=0, **more):
    params = parsed(params)
    wire = "float16" if params.fp16 else "float32"
    return DeclaredTensor(plan.Tensor(name, n, "float32", params, index, **more), wire, Arrays.host)


def gradient(rank, step, n=N):
    return np.random.RandomState(1000 * rank + step).standard_normal(n).astype(np.float32)


class Lane:
    """A lane of an exchange, with its tensors."""

    def __init__(self, exchange, *tensors):
        self._rank, self._plans = exchange.rank, [tensor.plan for tensor in tensors]
        self.lane = exchange.lane()
        self.lane.declare(tensors, minimum=0)

    def average(self, step, **options):
        """Return the averages of all workers' gradients."""
        values = {t.name: gradient(self._rank, step, t.size) for t in self._plans}
        self.exchange(values, **options)
        return values

    def exchange(self, values, **options):
        return finished(self.lane.start, Request(Values(values), **options))


class Replay:
    """The expected sums of a tensor with N elements."""

    def __init__(self, senders, params, index=0):
        self._parts = replay.chunks(N, CHUNK) if params else []
        self._exchanges = [
            replay.Exchange(senders, parsed(params), p.stop - p.start, index, np.float32)
            for p in self._parts
        ]

    def step(self, gradients, ratio=1.0):
        """Return the sum of gradients that are scaled already."""
        sums = [
            exchange.step([g[part] for g in gradients], ratio, range(len(gradients)))
            for exchange, part in zip(self._exchanges, self._parts)
        ]
        return np.concatenate(sums) if sums else sum(gradients[1:], gradients[0])


def scaled(workers, step, n=N):
    return [gradient(rank, step, n) * np.float32(1 / workers) for rank in range(workers)]


def assert_bits(results, step, expected, name="w"):
    for result in results:
        np.testing.assert_array_equal(result[step][name], expected)


@each_number_of_workers
@each_compression
def test_averages_have_the_bits_of_the_replay(workers, params):
    ratios = [1.0, 0.5, 2.0]

    def work(exchange):
        lane = Lane(exchange, tensor(params=params))
        return [lane.average(step, ratios={"w": ratios[step]}) for step in STEPS]

    results, expected = run(work, Network(range(workers))), Replay(workers, params)
    for step in STEPS:
        assert_bits(results, step, expected.step(scaled(workers, step), ratios[step]))


def test_what_an_owner_gets_is_sent_before_more_is_encoded(monkeypatch):
    events = {}  # by thread
    for kind, method in ((kernels.Batch, "run"), (Messages, "send")):
        original = getattr(kind, method)

        def noted(*arguments, method=method, original=original):
            events.setdefault(threading.current_thread(), []).append(method)
            original(*arguments)

        monkeypatch.setattr(kind, method, noted)
    run(lambda exchange: Lane(exchange, tensor(params=ONEBIT)).average(0), Network(range(3)))
    of_first_stage = [of_thread for t, of_thread in events.items() if t.name.endswith("stage 0")]
    assert of_first_stage == 3 * [["run", "send", "run", "send", "run"]]


@each_number_of_workers
@pytest.mark.parametrize("n", [1, LARGE])
@pytest.mark.parametrize("fp16", [False, True])
def test_uncompressed_averages_are_summed_in_the_order_of_ranks(workers, n, fp16, monkeypatch):
    monkeypatch.delenv("BYTEPS_PARTITION_BYTES")

    def work(exchange):
        lane = Lane(exchange, tensor(n=n, params={"fp16": fp16}))
        return [lane.average(step) for step in STEPS]

    results = run(work, Network(range(workers)))
    wire = np.float16 if fp16 else np.float32
    for step in STEPS:
        rows = [row.astype(wire).astype(np.float32) for row in scaled(workers, step, n)]
        assert_bits(results, step, sum(rows[1:], rows[0]).astype(wire))


def test_lanes_of_one_exchange_are_independent():
    names = ["onebit", "randomk", "topk", "plain"]

    def work(exchange):
        tensors = [tensor(name, params=PARAMS[name], index=i) for i, name in enumerate(names)]
        lanes = [Lane(exchange, tensor) for tensor in tensors]
        return [{k: v for lane in lanes for k, v in lane.average(step).items()} for step in STEPS]

    results = run(work, Network(range(3)))
    for i, name in enumerate(names):
        expected = Replay(3, PARAMS[name], i)
        for step in STEPS:
            assert_bits(results, step, expected.step(scaled(3, step)), name)


def average_with_unused(lane):
    """Return the averages of all steps. After each, a gradient that no worker has is exchanged."""
    results = []
    for step in STEPS:
        results.append(lane.average(step, continues=()))
        zeros = {"w": np.zeros(N, np.float32)}
        found = lane.exchange(zeros, continues=(), absent={"w"})
        assert found.unused == {"w"} and not zeros["w"].any()
    return results


@each_compression
def test_a_gradient_that_no_worker_has_changes_no_state(params):
    results = run(
        lambda exchange: average_with_unused(Lane(exchange, tensor(params=params))),
        Network(range(2)),
    )
    expected = Replay(2, params)
    for step in STEPS:
        assert_bits(results, step, expected.step(scaled(2, step)))


@each_compression
def test_a_gradient_that_one_worker_lacks_counts_as_zeros(params):
    def work(exchange):
        values = {"w": gradient(0, 0) * (exchange.rank == 0)}
        absent = {"w"} if exchange.rank == 1 else ()
        lane = Lane(exchange, tensor(params=params))
        assert not lane.exchange(values, continues=(), absent=absent).unused
        return [values]

    rows = [gradient(0, 0) * np.float32(0.5), np.zeros(N, np.float32)]
    assert_bits(run(work, Network(range(2))), 0, Replay(2, params).step(rows))


def test_averages_that_are_not_finite_are_in_the_result():
    def work(exchange):
        lane = Lane(
            exchange,
            tensor("finite", params=ONEBIT),
            tensor("compressed", params=ONEBIT, index=1),
            tensor("plain", on_nonfinite="skip", index=2),
            tensor("unchecked", index=3),
            tensor("large", LARGE, on_nonfinite="skip", index=4),
        )
        values = {"finite": gradient(0, 0), "large": gradient(0, 0, LARGE)}
        for name in ("compressed", "plain", "unchecked", "large"):
            values.setdefault(name, gradient(0, 0))[-1] = np.nan if exchange.rank == 1 else 1.0
        return set(lane.exchange(values).nonfinite)

    assert run(work, Network(range(2))) == 2 * [{"compressed", "plain", "large"}]


@each_compression
def test_exchanges_that_are_taken_back_leave_no_trace(params):
    def work(exchange):
        lane = Lane(exchange, tensor(params=params))
        for step, continues in enumerate([(), (), {"w"}]):
            lane.average(step, continues=continues)
        lane.lane.take_back(["w"])  # the last two exchanges
        return [lane.average(1)]

    expected = Replay(2, params)
    expected.step(scaled(2, 0))
    assert_bits(run(work, Network(range(2))), 0, expected.step(scaled(2, 1)))


@pytest.mark.parametrize("n", [N, LARGE])
@pytest.mark.parametrize("params", [{}, ONEBIT], ids=["plain", "onebit"])
def test_sums_are_written_to_the_output(n, params, monkeypatch):
    monkeypatch.delenv("BYTEPS_PARTITION_BYTES")

    def work(exchange):
        output = {"w": np.empty(n, np.float32)}
        values = Lane(exchange, tensor(n=n, params=params)).average(0, output=Values(output))
        np.testing.assert_array_equal(values["w"], gradient(exchange.rank, 0, n))
        replaced = Lane(exchange, tensor(n=n, params=params)).average(0)
        np.testing.assert_array_equal(output["w"], replaced["w"])

    run(work, Network(range(2)))


# Errors


@on_each_level
def test_workers_in_different_steps_all_get_an_error(run_four):
    def work(exchange):
        lane = Lane(exchange, tensor(params=ONEBIT), tensor("v", LARGE, index=1))
        lane.average(0, stamp=lambda: Stamp(step=1))
        for _ in range(2):  # later exchanges fail too
            with pytest.raises(RuntimeError, match="^worker 3 is in another step than other"):
                lane.average(1, stamp=lambda: Stamp(step=2 + (exchange.rank == 3)))

    run_four(work)


def test_the_exchange_goes_on_after_different_learning_rates():
    def work(exchange):
        lane = Lane(exchange, tensor(params=ONEBIT))
        with pytest.raises(RuntimeError, match="the learning rates of worker 1 differ"):
            lane.average(0, stamp=lambda: Stamp(step=1, rates=exchange.rank))
        lane.average(1, stamp=lambda: Stamp(step=2))

    run(work, Network(range(2)))


def test_announced_requests_that_differ_are_an_error_on_all_workers():
    def work(exchange):
        lane = Lane(exchange, tensor("v"), tensor("w", index=1))
        for names in ("vvv", "vwv"):
            name = names[exchange.rank]
            facts = [("the average", {"tensors": name})]
            announced = Announced(ord(name), partial(list, facts), "average")
            differ = 'worker 1 has tensors "w" for the average, but worker 0 has "v"'
            with pytest.raises(RuntimeError, match=differ) if "w" in names else nullcontext():
                lane.exchange({name: gradient(0, 0)}, announced=announced)

    run(work, Network(range(3)))


def test_an_error_of_one_worker_is_told_to_those_that_announce_the_next_request():
    announced = Announced(1, list, "average")

    def fail(*_):
        raise ValueError("the reason")

    def work(exchange):
        lane, output = Lane(exchange, tensor(params=ONEBIT)), Values({"w": np.empty(N, np.float32)})
        said = " on worker 1"
        if exchange.rank == 1:
            output.addresses, said = fail, ": ValueError"  # when it has got the sums
        else:
            lane.average(0, announced=announced)
        with pytest.raises(RuntimeError, match=f"^an exchange has failed{said}"):
            lane.average(0, announced=announced, output=output)

    run(work, Network(range(3)))


def test_declared_tensors_that_differ_are_an_error_on_all_workers():
    def work(exchange):
        with pytest.raises(RuntimeError, match="worker 1 has elements 11 .* worker 0 has 10"):
            Lane(exchange, tensor(n=10 + exchange.rank))

    run(work, Network(range(2)))


def test_a_closed_exchange_is_an_error():
    def work(exchange):
        lane = Lane(exchange, tensor())
        exchange.close()
        with pytest.raises(RuntimeError, match="nothing can be averaged after"):
            lane.average(0)

    run(work, Network(range(2)))


@on_each_level
@pytest.mark.parametrize("name", ["plain", "onebit", "dgc"])
def test_a_worker_that_ends_is_an_error_on_the_others(name, run_four):
    def work(exchange):
        lane = Lane(exchange, tensor(params=PARAMS[name]))
        lane.average(0)
        if exchange.rank != 1:
            with pytest.raises(RuntimeError, match=r"another worker may have ended.*waits for"):
                lane.average(1)

    run_four(work)


@on_each_level
@pytest.mark.parametrize("stage", ["send", "answer", "deliver"])
def test_an_error_of_one_worker_is_an_error_on_all(stage, run_four, monkeypatch):
    monkeypatch.setattr("tests.neutral.exchange.workers.TIMEOUT", 10)

    def fail(*_):
        raise ValueError("the reason")

    def work(exchange):
        lane = Lane(exchange, tensor(params=ONEBIT), tensor("v", LARGE, index=1))
        lane.average(0)
        output = Values({"w": np.empty(N, np.float32)})
        if exchange.rank == 2:
            for chunk in lane.lane.chunks:
                for coder in {"send": [chunk.coder], "answer": [chunk.aggregator]}.get(stage, ()):
                    if coder is not None:
                        coder.in_place = fail
            if stage == "deliver":
                output.addresses = fail
        large = {"v": gradient(exchange.rank, 1, LARGE)}
        earlier = started(lane.lane.start, Request(Values(large)))
        if stage == "deliver" and exchange.rank != 2:
            lane.exchange({"w": gradient(exchange.rank, 1)}, output=output)
        reason = ": ValueError: the reason" if exchange.rank == 2 else " on worker 2, whose error"
        for _ in range(2):  # later exchanges fail too
            with pytest.raises(RuntimeError, match=f"^an exchange has failed{reason}"):
                lane.exchange({"w": gradient(exchange.rank, 1)}, output=output)
        earlier.exception(10)

    run_four(work)


# Headers, statistics


def contributors(networks, phase):
    """Return the numbers of contributors in the headers of all messages of a phase."""
    messages = [m for network in networks for (sent, _), _, m in network.sent if sent == phase]
    return {int(message[:4].view(np.uint32)[0]) & 0xFFFF for message in messages}


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_an_owner_sends_the_number_of_contributors(workers):
    network = Network(range(workers))
    run(lambda exchange: Lane(exchange, tensor(params=ONEBIT)).average(0), network)
    assert [contributors([network], phase) for phase in (0, 1)] == [{1}, {workers}]


def test_statistics_count_the_bytes_of_a_step():
    n = 4 * CHUNK  # two chunks for each of two owners

    def work(exchange):
        lane = Lane(exchange, tensor(n=n, params=ONEBIT))
        for step in STEPS:
            lane.average(step)
        sizes = {"w": statistics.Size(4 * n, n)}
        return statistics.of_step(exchange.transfers, sizes, reset=False)["total"]

    payload = parsed(ONEBIT).codec(CHUNK, "float32").payload_bytes
    expected = 4 * payload + 2 * header.wire_size(2).most
    for total in run(work, Network(range(2))):
        assert total["raw_bytes"] == 4 * n
        assert total["pushed_bytes"] == total["pulled_bytes"] == pytest.approx(expected)


# Shards


def shards(exchange, params):
    """Return each worker's shard, called s0, s1, ..., as chunks with this worker's coders."""

    def exchanged(declared, chunk):
        coder, (piece,) = None, chunk.slices
        if chunk.params is not None:
            index = declared.plan.index
            start = exchange.streams.start(chunk, exchange.rank, index, piece.begin)
            size = chunk.size, chunk.dtype
            coder = exchange.arrays.coder(Arrays.host, chunk.params, *size, start)
        return declared.exchanged(chunk, declared.plan.index, exchange.arrays, Arrays.host, coder)

    tensors = [tensor(f"s{i}", params=params, index=i) for i in range(exchange.workers)]
    return [[exchanged(t, c) for c in plan.cut([t.plan], 4 * CHUNK, 0)] for t in tensors]


@each_number_of_workers
@pytest.mark.parametrize("name", ["plain", "onebit", "randomk", "blockwise", "dithering"])
def test_reduce_scatter_gives_each_owner_the_sum_of_its_shard(workers, name):
    def work(exchange):
        owned, results = shards(exchange, PARAMS[name]), []
        link = exchange.transfers.link(0)
        transfer = ReduceScatter(owned, link, lambda request: nullcontext())
        for step in STEPS:
            values = {f"s{i}": gradient(exchange.rank, step + i) for i in range(workers)}
            results.append({f"s{exchange.rank}": np.empty(N, np.float32)})
            request = Request(Values(values), output=Values(results[-1]))
            finished(exchange.start, request, [transfer])
        return results

    for owner, result in enumerate(run(work, Network(range(workers)))):
        params = PARAMS[name] and {**PARAMS[name], "exchange": "gather"}
        expected = Replay(workers, params, owner)
        for step in STEPS:
            total = expected.step(scaled(workers, step + owner))
            assert_bits([result], step, total, f"s{owner}")


@each_number_of_workers
@pytest.mark.parametrize("name", ["plain", "topk", "dithering"])
def test_all_gather_gives_all_workers_the_shards_that_are_sent(workers, name):
    params = PARAMS[name] and {**PARAMS[name], "ef": None, "exchange": "gather"}
    last = f"s{workers - 1}"  # it is flagged, and not sent, in step 1

    def gathered(exchange, transfer, step):
        received, own = {}, f"s{exchange.rank}"

        def receive(sent, flagged):
            assert flagged == [last] * (step == 1)
            received.update((key, np.empty(N, np.float32)) for key in sent)
            return Values(received)

        flagged = {own} & {last} if step == 1 else set()
        values = {key: gradient(exchange.rank, step) for key in {own} - flagged}
        request = GatherRequest(Values(values), average=False, receive=receive, flagged=flagged)
        finished(exchange.start, request, [transfer])
        return received

    def work(exchange):
        owned = [{f"s{i}": chunks} for i, chunks in enumerate(shards(exchange, params))]
        transfer = AllGather(owned, exchange.transfers.link(0))
        return [gathered(exchange, transfer, step) for step in STEPS]

    results = run(work, Network(range(workers)))
    for owner in range(workers):
        expected, nothing = Replay(owner + 1, params, owner), np.zeros(N, np.float32)
        for step in STEPS:
            if (owner, step) == (workers - 1, 1):
                assert not any(f"s{owner}" in result[step] for result in results)
            else:
                rows = [*owner * [nothing], gradient(owner, step)]
                assert_bits(results, step, expected.step(rows), f"s{owner}")
