"""The choices of "auto" for given measurements of a cluster."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc.auto.choice import Link, Load, Measured, Topology, TrafficCost, choose
from gluon_gc.auto.speed import Speed, measured
from gluon_gc.compression import candidates, parse
from gluon_gc.exchange import plan
from gluon_gc.exchange.plan import Tensor

SLOW, FAST = 100e6 / 8, 1e15  # bytes per second
TOPOLOGY = Topology(machines=4, servers=2)
CHUNK = 2_048_000
SIZES = [64, 500_000, 256, 2_000_000, 1_000_000]
COMPRESSORS = ["bytegrad", "onebit", "topk"]
ACCURACIES = ["exact", "safe", "aggressive"]


def tensors(accuracy="aggressive", sizes=SIZES, dtype="float32"):
    params = parse({"compressor": "auto", "accuracy": accuracy})
    return [Tensor(f"t{i}", size, dtype, params) for i, size in enumerate(sizes)]


def cluster(rate, message=0.0, kernel=1e-10, payload_rate=None):
    """Return measurements of a cluster in which all links, messages and kernels are equal."""
    cost = TrafficCost(message, rate)
    link = Link(cost, cost, TrafficCost(message, payload_rate or rate))
    return Measured(link, {name: Speed(kernel, kernel, kernel) for name in COMPRESSORS})


def chosen(given, measured, topology=TOPOLOGY, **more):
    return list(choose(given, measured, topology, CHUNK, **more).names.values())


def sent(given, names):
    """Return the bytes that a worker sends."""
    settled = [
        replace(tensor, params=candidates(tensor.params)[name])
        for tensor, name in zip(given, names)
    ]
    return sum(chunk.message_bytes for chunk in plan.cut(settled, CHUNK, 0))


LOADS = [Load(0.1, 4096), Load(4.0, 2**18), Load(16.0, 2**20), Load(16.0, 2**22), Load(16.0, 2**24)]


@given(
    st.floats(0, 0.1),
    st.floats(0, 0.01) | st.just(0.0),
    st.floats(1e6, 1e10),
    st.sampled_from([1.0, 1.5, 2.0]),
)
def test_a_cost_is_found_from_what_exchanges_take(latency, message, rate, passes):
    times = [(load, latency + load.messages * message + load.bytes / rate) for load in LOADS]
    found = TrafficCost.fitted(times, passes)
    for load, took in times[2:]:
        again = load.messages * found.message + load.bytes * passes / found.rate
        assert again == pytest.approx(took - latency, rel=1e-3, abs=1e-3 * took)
    (least, _), (most, took) = times[:2]
    few = TrafficCost.fitted(times[:2], passes)
    assert 0 < few.rate and 0 <= few.message * most.messages <= took
    assert most.bytes * passes / few.rate <= took * (1 + 1e-9)
    assert least.bytes * passes / few.rate <= times[0][1] * (1 + 1e-9)


def test_what_a_buffer_took_does_not_hide_the_rate():
    times = [(Load(0.0625, 4096), 0.001), (Load(4.0, 262144), 0.28)]
    assert TrafficCost.fitted(times, 2.0).rate == pytest.approx(2 * 262144 / 0.28)


def test_times_that_noise_has_turned_round_still_make_a_cost():
    cost = TrafficCost.fitted([(load, 1.0 / (i + 1)) for i, load in enumerate(LOADS)], 1.0)
    assert cost.rate > 0 and cost.message >= 0


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_on_an_infinitely_fast_link_nothing_is_compressed(accuracy):
    assert set(chosen(tensors(accuracy), cluster(FAST))) == {"none"}


@pytest.mark.parametrize(
    "accuracy, smallest", [("exact", "none"), ("safe", "bytegrad"), ("aggressive", "topk")]
)
def test_on_a_slow_link_large_tensors_get_the_smallest_payloads_of_the_class(accuracy, smallest):
    expected = ["none", smallest, "none", smallest, smallest]
    assert chosen(tensors(accuracy), cluster(1e4)) == expected
    assert smallest in candidates(tensors(accuracy)[0].params)


def test_faster_links_bring_more_bytes_and_fewer_seconds():
    for accuracy in ACCURACIES[1:]:
        given, last = tensors(accuracy), None
        for exponent in range(4, 14):
            choice = choose(given, cluster(10.0**exponent), TOPOLOGY, CHUNK)
            now = sent(given, choice.names.values()), -choice.seconds
            assert last is None or (now[0] >= last[0] and now[1] > last[1])
            last = now


@given(
    rate=st.floats(1e3, 1e12),
    payload_rate=st.floats(1e3, 1e12),
    message=st.floats(0, 1e-2),
    kernel=st.floats(0, 1e-6),
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    accuracy=st.sampled_from(ACCURACIES),
)
@settings(max_examples=60, deadline=None)
def test_what_is_chosen_is_modelled_to_be_a_tenth_faster_or_nothing_is_compressed(
    rate, payload_rate, message, kernel, sizes, accuracy
):
    given_tensors = tensors(accuracy, sizes)
    choice = choose(given_tensors, cluster(rate, message, kernel, payload_rate), TOPOLOGY, CHUNK)
    assert list(choice.names) == [tensor.name for tensor in given_tensors]
    if set(choice.names.values()) == {"none"}:
        assert choice.seconds == choice.plain_seconds
    else:
        assert choice.seconds <= 0.9 * choice.plain_seconds


def test_slow_kernels_and_slow_payloads_are_not_chosen():
    assert set(chosen(tensors(), cluster(SLOW, kernel=1e-3))) <= {"none", "fp16"}
    assert set(chosen(tensors("safe"), cluster(SLOW, payload_rate=SLOW / 10))) == {"none", "fp16"}


def test_of_two_that_are_as_fast_the_more_accurate_is_chosen():
    assert chosen(tensors("safe", [10**6], "float16"), cluster(SLOW, kernel=1e-6)) == ["none"]
    speeds = cluster(SLOW).kernels
    slow_topk = {**speeds, "topk": speeds["topk"]._replace(compress=1.5e-9)}
    assert chosen(tensors(sizes=[10**6]), Measured(cluster(SLOW).link, slow_topk)) == ["topk"]
    slow_topk["topk"] = speeds["topk"]._replace(compress=1e-8)
    assert chosen(tensors(sizes=[10**6]), Measured(cluster(SLOW).link, slow_topk)) == ["onebit"]


def test_what_backward_hides_is_not_compressed():
    given = tensors(sizes=[10**6] * 4)
    # Seconds of one uncompressed tensor, which crosses a server's link twice.
    alone = 8 * 10**6 / SLOW
    hidden = [0.0, 2 * alone, 4 * alone, 6 * alone]
    assert chosen(given, cluster(SLOW), ready=hidden) == ["none", "none", "none", "topk"]
    assert chosen(given, cluster(SLOW), ready=[0.0] * 4) == ["topk"] * 4


def test_smaller_tensors_than_are_compressed_stay_as_they_are():
    names = chosen(tensors("safe"), cluster(SLOW), min_compress_bytes=4_000_000)
    assert names == ["none", "none", "none", "bytegrad", "bytegrad"]


def test_integers_stay_as_they_are():
    assert chosen(tensors(sizes=[10**6], dtype="int64"), cluster(SLOW)) == ["none"]


def test_more_servers_bring_fewer_seconds():
    seconds = [
        choose(tensors(), cluster(SLOW), Topology(4, servers), CHUNK).plain_seconds
        for servers in (1, 2, 4)
    ]
    assert seconds[0] == pytest.approx(2 * seconds[1]) == pytest.approx(4 * seconds[2])
    ring = choose(tensors(), cluster(SLOW), Topology(4, 0), CHUNK).plain_seconds
    assert ring == pytest.approx(1.5 * seconds[2])


def test_what_was_chosen_before_is_among_the_candidates_with_its_feedback_and_momentum():
    auto = {"compressor": "auto", "accuracy": "aggressive", "momentum": "nesterov"}
    feedback = {"ef": "corrected", "momentum": "nesterov", "hierarchical": False}
    params = candidates(parse({**auto, **feedback}, 0.9))
    assert list(params) == ["none", "fp16", "bytegrad", "onebit", "topk"]
    assert params["topk"] == parse({"compressor": "topk", "k": 0.01, **feedback}, 0.9)
    assert params["onebit"] == parse({"compressor": "onebit", "scaling": True, **feedback}, 0.9)
    assert params["none"] == parse({"hierarchical": False})


def test_kernels_are_measured():
    for params in candidates(tensors()[0].params).values():
        if params.compressor is not None:
            assert all(1e-12 < seconds < 1e-4 for seconds in measured(params.codec))


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_of_adams_gradients_nothing_is_chosen_that_loses_most_of_them(optimizer):
    params = parse({"compressor": "auto", "accuracy": "aggressive"}, optimizer=optimizer)
    found = candidates(params)
    assert list(found) == ["none", "fp16", "bytegrad", "blockwise"]
    blockwise = {"compressor": "blockwise", "bits": 4, "hadamard": True, "ef": "vanilla"}
    assert found["blockwise"] == parse(blockwise)
    given = [replace(tensor, params=params) for tensor in tensors()]
    measured = cluster(1e4)
    measured.kernels["blockwise"] = measured.kernels["bytegrad"]
    assert chosen(given, measured) == ["none", "blockwise", "none", "blockwise", "blockwise"]
    for accuracy in ("exact", "safe"):
        params = parse({"compressor": "auto", "accuracy": accuracy}, optimizer=optimizer)
        assert candidates(params) == candidates(tensors(accuracy)[0].params)


def two_levels(outer_rate, inner_rate, payload_rate=None):
    """Return measurements of machines with a link between them and one inside."""
    between = cluster(outer_rate)
    inside = cluster(inner_rate, payload_rate=payload_rate).link
    fast = Speed(1e-12, 1e-12, 1e-12)
    return replace(between, kernels={**between.kernels, "inner": fast}, inner=inside)


MACHINES = Topology(machines=2, servers=0, local_size=4)


def test_the_outer_link_chooses_the_compressor():
    given = tensors(sizes=[10**6])
    assert chosen(given, two_levels(SLOW, FAST), MACHINES) == ["topk"]
    assert chosen(given, two_levels(FAST, FAST), MACHINES) == ["none"]


def test_a_slow_link_inside_a_machine_chooses_the_inner_compressor_if_it_gains():
    given = tensors(sizes=[10**6])
    with_inner = ["topk, 8 bits inside machines"]
    assert chosen(given, two_levels(SLOW, SLOW), MACHINES) == with_inner
    assert chosen(given, two_levels(SLOW, 1e4 * SLOW), MACHINES) == ["topk"]
    assert chosen(tensors("exact", [10**6]), two_levels(SLOW, SLOW), MACHINES) == ["none"]


def test_a_prediction_counts_both_levels():
    """4 workers share the outer bytes. Inside, float32 travels to the owners, and payloads back."""
    size, rate = 2**20, 1e6
    given = tensors("exact", [size])
    between = choose(given, two_levels(rate, 1e30), MACHINES, CHUNK).seconds
    assert between == pytest.approx(size * 4 / rate / 4)
    inside = choose(given, two_levels(1e30, rate), MACHINES, CHUNK).seconds
    assert inside == pytest.approx(2 * size * 4 * 0.75 / rate)
