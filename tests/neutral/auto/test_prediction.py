"""The predictions of `python -m gluon_gc plan` for given measurements."""

import itertools
import math
from dataclasses import replace

import pytest

from gluon_gc.auto.choice import Link, Measured, Topology, TrafficCost
from gluon_gc.auto.prediction import RANKS, Job, codecs, methods, predictions
from gluon_gc.auto.speed import Speed
from gluon_gc.compression import parse, registry

SHAPES = {
    f"block{i}.{name}": shape
    for i in range(8)
    for name, shape in {"weight": (1024, 1024), "bias": (1024,)}.items()
}
ELEMENTS = sum(map(math.prod, SHAPES.values()))
RATES = [10.0**exponent for exponent in range(5, 11)]


def job(rate=12.5e6, machines=4, kernel=1e-10, start=0.0, **more):
    """Return a job in which all kinds of traffic, and all kernels, cost the same."""
    cost = TrafficCost(0.0, rate, start)
    several = {**codecs(methods("sgd")), **codecs(methods("adam"))}
    kernels = {name: Speed(kernel, kernel, kernel) for name in several}
    measured = Measured(Link(cost, cost, cost), kernels)
    return Job(Topology(machines, 0), measured, dict.fromkeys(RANKS, kernel), **more)


def predicted(optimizer="sgd", **of_job):
    found = predictions(methods(optimizer), SHAPES, job(**of_job))
    return {each.method.name: each for each in found}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_fastest_method_comes_first_and_speedups_are_over_no_compression(optimizer):
    found = list(predicted(optimizer, step_seconds=0.2).values())
    speedups = [each.speedup for each in found]
    assert speedups == sorted(speedups, reverse=True)
    (plain,) = (each for each in found if each.method.name == "none")
    assert plain.speedup == 1
    assert all(each.speedup == pytest.approx(plain.step / each.step) for each in found)


def test_the_limit_is_bytes_divided_by_the_rate():
    plain = predicted(rate=1e6)["none"]
    assert plain.bytes == 4 * ELEMENTS * 2 * 3 / 4  # each byte passes a link twice, but for a share
    assert plain.limit == plain.bytes / 1e6
    assert plain.exchange == pytest.approx(plain.limit)


def test_a_slower_link_makes_compression_gain_more():
    speedups = [predicted(rate=rate, step_seconds=0.2)["onebit"].speedup for rate in RATES]
    assert speedups == sorted(speedups, reverse=True) and speedups[0] > 20 > 2 > speedups[-1]


def test_no_step_is_shorter_than_its_computation_or_longer_than_both_parts_together():
    for rate, busy in itertools.product(RATES, (True, False)):
        of_job = {"rate": rate, "step_seconds": 0.2, "start": 0.01, "processors_busy": busy}
        for each in predicted(**of_job).values():
            assert 0.2 <= each.step <= 0.2 + each.exchange + 1e-9
            assert each.hidden == pytest.approx(0.2 + each.exchange - each.step)


@pytest.mark.parametrize("of_job", [{"rate": 1e15, "kernel": 1e-9}, {"rate": 12.5e6}])
def test_backward_hides_an_exchange_only_if_it_leaves_the_processors_free(of_job):
    busy = predicted(step_seconds=1.0, **of_job)["onebit"]
    free = predicted(step_seconds=1.0, processors_busy=False, **of_job)["onebit"]
    assert busy.hidden == pytest.approx(0) and 0.1 * free.exchange < free.hidden < free.exchange


def test_crowded_processors_make_compression_slower_and_uncompressed_exchanges_not():
    alone, crowded = predicted(rate=1e15), predicted(rate=1e15, crowding=3.0)
    assert crowded["onebit"].exchange == pytest.approx(3 * alone["onebit"].exchange, rel=1e-3)
    assert crowded["none"].exchange == alone["none"].exchange


def test_algorithms_save_the_copies_of_distributed_data_parallel():
    found = predicted(step_seconds=0.2), predicted(step_seconds=0.2, copying=1e-8)
    saved = {name: found[0][name].step - found[1][name].step for name in found[0]}
    assert saved["powersgd 4"] == pytest.approx(1e-8 * ELEMENTS)
    assert saved["local_steps 30, onebit"] == pytest.approx(1e-8 * ELEMENTS)
    assert saved["onebit"] == saved["none"] == 0


def test_local_steps_divide_bytes_and_seconds_by_h():
    found = predicted()
    often, rarely = found["local_steps 10, onebit"], found["local_steps 100, onebit"]
    assert often.bytes == pytest.approx(10 * rarely.bytes)
    assert often.exchange == pytest.approx(10 * rarely.exchange)
    assert 10 * often.bytes == pytest.approx(found["onebit"].bytes)


def test_sums_inside_a_machine_take_time_besides():
    alone = job(rate=12.5e6)
    inner = job(rate=1e9).measured.link
    shared = job(rate=12.5e6 / 4).measured  # four workers share a machine's link
    two_levels = replace(alone, topology=Topology(4, 0, 4), measured=replace(shared, inner=inner))
    once, twice = (
        {each.method.name: each for each in predictions(methods("sgd"), SHAPES, each_job)}["none"]
        for each_job in (alone, two_levels)
    )
    inside = 4 * ELEMENTS * 2 * 3 / 4 / 1e9
    assert twice.exchange == pytest.approx(once.exchange + inside)
    assert (twice.bytes, twice.limit) == (once.bytes, once.limit)


def test_dgc_receives_the_payloads_of_all_machines():
    few, many = predicted(machines=2)["dgc"], predicted(machines=8)["dgc"]
    matrices, biases = 8 * 1024 * 1024, 8 * 1024  # biases travel uncompressed, in both directions
    payload = few.bytes - 4 * biases
    assert payload < matrices / 20
    assert many.bytes == pytest.approx(7 * payload + 4 * biases * 2 * 7 / 8)


def test_all_compressors_are_methods_and_adam_gets_those_that_keep_its_accuracy():
    names = {method.codec for method in methods("sgd")}
    assert set(registry) <= names
    gradients = {method.codec for method in methods("adam") if method.algorithm is None}
    assert gradients == {"none", "fp16", "bytegrad", "blockwise"}
    assert "onebit_adam" in {method.name for method in methods("adam")}
    for optimizer in ("sgd", "adam"):
        for method in methods(optimizer):
            assert parse(method.params).accuracy is None  # valid, and chosen
            assert method.accuracy in ("exact", "safe", "aggressive")


def test_a_minimum_of_bytes_leaves_small_gradients_uncompressed(monkeypatch):
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", str(4 * 1024 * 1024 + 1))
    found = predicted()
    assert found["onebit"].bytes == found["none"].bytes
