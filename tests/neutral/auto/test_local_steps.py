"""The choice of "auto" for the algorithm local_steps, from given measurements."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import algorithms
from gluon_gc.algorithms.onebit_adam import OneBitAdam
from gluon_gc.algorithms.requirements import require_fitting_compression
from gluon_gc.auto import local_steps
from gluon_gc.auto.algorithm import Decision
from gluon_gc.auto.choice import Link, Measured, Topology, TrafficCost
from gluon_gc.auto.local_steps import (
    LEAST,
    MOST,
    SHARE,
    AutomaticLocalSteps,
    choose,
    seconds_of_round,
)
from gluon_gc.auto.probe import Workers
from gluon_gc.auto.speed import Speed
from gluon_gc.compression import candidates, parse
from gluon_gc.exchange.plan import Tensor

NAMES = ["none", "fp16", "bytegrad", "onebit", "topk"]
RATIOS = [1, 0.5, 0.25, 1 / 32, 1 / 50]
TOPOLOGY = Topology(machines=4, servers=2)
AUTO = parse({"compressor": "auto", "accuracy": "aggressive"})


def of_plain(seconds):
    """Return the seconds of a round with each candidate, if only bytes count."""
    return {name: seconds * ratio for name, ratio in zip(NAMES, RATIOS)}


@pytest.mark.parametrize(
    "plain_seconds, step_seconds, name, every",
    [
        (0.001, 1.0, "none", 10),  # a fast link: H is as small as it may be
        (1.0, 1.0, "none", 10),
        (1.01, 1.0, "none", 15),
        (3.0, 1.0, "none", 30),
        (3.01, 1.0, "fp16", 20),  # without compression, H would be above 30
        (10.0, 1.0, "bytegrad", 25),
        (30.0, 1.0, "onebit", 10),
        (96.0, 1.0, "onebit", 30),
        (100.0, 1.0, "topk", 20),
        (1000.0, 1.0, "topk", 200),  # no compressor reaches 30
        (1000.0, 0.5, "topk", 400),
        (5000.0, 1.0, "topk", 500),  # the limit
    ],
)
def test_the_rule_prefers_accuracy_up_to_30_steps_and_few_steps_beyond(
    plain_seconds, step_seconds, name, every
):
    choice = choose(of_plain(plain_seconds), step_seconds)
    assert (choice.name, choice.every) == (name, every)
    assert choice.share == pytest.approx(choice.seconds / (every * step_seconds))


@pytest.mark.parametrize(
    "plain_seconds, name", [(0.5, "none"), (0.51, "fp16"), (16.0, "onebit"), (99.0, "topk")]
)
def test_with_a_given_h_the_most_accurate_compressor_that_is_fast_enough_is_chosen(
    plain_seconds, name
):
    choice = choose(of_plain(plain_seconds), step_seconds=1.0, every=5)
    assert (choice.name, choice.every) == (name, 5)


def test_of_two_compressors_with_the_same_h_above_30_the_more_accurate_is_chosen():
    assert choose({"none": 4.0, "fp16": 3.9}, 1.0).name == "none"
    assert choose({"none": 400.0, "fp16": 390.0}, 1.0).name == "fp16"  # neither reaches 10 %


@given(
    st.dictionaries(st.sampled_from(NAMES), st.floats(1e-6, 1e4), min_size=1),
    st.floats(1e-4, 100),
)
def test_h_is_the_smallest_multiple_of_5_within_its_limits(round_seconds, step_seconds):
    choice = choose(round_seconds, step_seconds)
    assert LEAST <= choice.every <= MOST and choice.every % 5 == 0
    if choice.every < MOST:
        assert choice.share <= SHARE
    if choice.every > LEAST:
        assert choice.seconds / ((choice.every - 5) * step_seconds) > SHARE
    if choice.share > SHARE:
        assert choice.seconds == min(round_seconds.values())


def test_h_is_no_less_than_the_algorithm_needs():
    assert choose(of_plain(0.1), 1.0, least=23).every == 25
    assert choose(of_plain(1e6), 1.0, least=612).every == 615
    for options in ({"fragments": 24}, {"overlap": 24}):
        assert chosen(automatic({"w": AUTO}, options), 1e15, 1.0) == ("none", 25)


def cluster(rate):
    cost, fast = TrafficCost(0.0, rate), Speed(0.0, 0.0, 0.0)
    return Measured(Link(cost, cost, cost), dict.fromkeys([*NAMES, repr(parse(OWN).given())], fast))


OWN = {"compressor": "dithering", "k": 2, "seed": 1}


def vectors(*several):
    return [Tensor(f"t{i}", 10**6, "float32", params, i) for i, params in enumerate(several)]


def test_a_round_takes_the_sum_of_its_tensors():
    seconds = seconds_of_round(vectors(AUTO, AUTO), cluster(1e6), TOPOLOGY, 10**9, 0)
    assert list(seconds) == NAMES
    assert seconds["none"] == pytest.approx(2 * 4 * 2)  # bytes pass a server's link twice
    assert seconds["fp16"] == pytest.approx(8)
    assert seconds["topk"] < seconds["onebit"] < seconds["bytegrad"] < seconds["fp16"]
    least = seconds_of_round(vectors(AUTO), cluster(1e6), TOPOLOGY, 10**9, 5 * 10**6)
    assert least["topk"] == least["none"] == pytest.approx(8)


def test_compressors_that_parameters_have_already_count_and_stay():
    plain, own, safe = parse(None), parse(OWN), parse({"compressor": "auto"})
    several = vectors(AUTO, plain, own, safe)
    seconds = seconds_of_round(several, cluster(1e6), TOPOLOGY, 10**9, 0)
    alone = seconds_of_round(vectors(AUTO), cluster(1e6), TOPOLOGY, 10**9, 0)
    assert all(seconds[name] > alone[name] + 8 for name in NAMES)
    chooser = automatic({i: tensor.params for i, tensor in enumerate(several)})
    chooser.take(("topk", 20))
    topk, bytegrad = candidates(AUTO)["topk"], candidates(safe)["bytegrad"]
    assert list(chooser.params.values()) == [topk, plain, own, bytegrad]


def automatic(params, given=None):
    algorithm = {"name": "local_steps", **(given or {})}
    every_given = algorithms.gives(algorithm, "every")
    return AutomaticLocalSteps(algorithms.parse(algorithm), params, every_given, wait=lambda: None)


def chosen(chooser, rate, step_seconds, params=AUTO):
    workers = Workers()
    workers.topology, workers.logs = TOPOLOGY, True
    workers.measured = lambda compressors: cluster(rate)
    return chooser.choose(vectors(params), [()], workers, step_seconds)


def test_aggressive_chooses_h_and_says_why(logged):
    chooser = automatic({"w": AUTO}, {"outer_lr": 0.5, "start": 20})
    assert chooser.described()["every"] == "auto"
    assert chooser.described()["start"] == 20 and chooser.algorithm.start == 0
    assert chosen(chooser, 1e6, 0.2) == ("onebit", 15)
    (said,) = logged.messages
    assert said.startswith(
        "auto, aggressive: the link carries 8 Mbit/s, and a local step takes 0.2 s: "
        "onebit for 1,000,000 elements every 15 steps; a round should take 0.252 s, 8.4 % of"
    )
    chooser.take(["onebit", 15])
    assert chooser.described()["every"] == chooser.algorithm.every == 15
    assert chooser.algorithm.start == 20
    assert chooser.algorithm.outer_lr == 0.5


def test_a_start_that_is_over_before_the_choice_is_refused():
    with pytest.raises(ValueError, match=r"algorithm\['start'\] must be 0 or above 6 with"):
        automatic({"w": AUTO}, {"start": 6})
    assert automatic({"w": AUTO}, {"start": 7}).algorithm.start == 0


def test_a_share_above_the_limit_is_logged_with_the_h_that_would_reach_it(logged):
    given = automatic({"w": AUTO}, {"every": 2})
    assert chosen(given, 1e6, 0.2) == ("topk", 2)
    assert chosen(automatic({"w": AUTO}), 1e4, 0.02) == ("topk", 500)
    of_given, of_chosen = logged.messages
    assert of_given.endswith("25.6 % of the time of these steps; 10 % would need 'every' 6")
    assert "but auto chooses at most 500" in of_chosen


@pytest.mark.parametrize("accuracy, name", [("exact", "none"), ("safe", "bytegrad")])
def test_the_other_accuracies_keep_h(accuracy, name):
    params = parse({"compressor": "auto", "accuracy": accuracy})
    for options, every in (({}, 30), ({"every": 7}, 7)):
        chooser = automatic({"w": params}, options)
        assert chooser.described()["every"] == every
        assert chosen(chooser, 1e4, 1.0, params) == (name, every)


def test_where_nothing_is_sent_nothing_is_compressed_and_h_stays():
    alone = Workers()
    alone.topology = None
    assert automatic({"w": AUTO}).choose(vectors(AUTO), [()], alone, 1.0) == ("none", 30)


def test_the_time_of_a_step_is_the_median_of_five(monkeypatch):
    times = iter([0.0, 1.0, 2.0, 3.0, 103.0, 104.0])
    monkeypatch.setattr(local_steps.time, "perf_counter", lambda: next(times))
    chooser = automatic({"w": AUTO})
    calls = itertools.takewhile(lambda call: not chooser.due(), itertools.count(1))
    assert list(calls) == [1, 2, 3, 4, 5, 6]
    assert chooser.seconds == 1.0


def test_other_algorithms_need_a_compressor_by_name():
    with pytest.raises(
        ValueError, match="must name a compressor with algorithm onebit_adam, got 'aut"
    ):
        require_fitting_compression(OneBitAdam(1), None, {"compressor": "auto"})


def test_a_checkpoint_has_the_decision_if_its_compression_is_a_candidates():
    safe = parse({"compressor": "auto"})
    saved = automatic({"w": AUTO, "b": safe})
    undecided = {key: params.identity() for key, params in saved.params.items()}
    chooser = automatic({"w": AUTO, "b": safe})
    assert chooser.saved_decision(undecided, saved.described()) is None
    for decision in (("topk", 45), ("bytegrad", 10), ("none", 15)):
        saved.take(decision)
        identities = {key: params.identity() for key, params in saved.params.items()}
        found = chooser.saved_decision(identities, saved.described())
        assert found == Decision(*decision)
        assert chooser.saved_decision(identities, None) is None
        assert chooser.saved_decision({}, saved.described()) is None
        given = automatic({"w": AUTO, "b": safe}, {"every": 7})
        assert given.saved_decision(identities, saved.described()) == Decision(decision[0], 7)
    assert (
        automatic({"w": safe}).saved_decision({"w": parse(OWN).identity()}, saved.described())
        is None
    )
    assert saved.saved_decision(identities, saved.described()) is None
