"""The choice of "auto" for the algorithm powersgd, from given measurements."""

import pytest

from gluon_gc import algorithms
from gluon_gc.algorithms.requirements import require_fitting_compression
from gluon_gc.auto.algorithm import Decision
from gluon_gc.auto.algorithms import automatic
from gluon_gc.auto.choice import Link, Measured, Topology, TrafficCost
from gluon_gc.auto.low_rank import AutomaticPowerSGD
from gluon_gc.auto.probe import Workers
from gluon_gc.compression import parse
from gluon_gc.exchange.plan import Tensor

AGGRESSIVE = {"compressor": "auto", "accuracy": "aggressive"}
AUTO, PLAIN, FP16 = parse(AGGRESSIVE), parse(None), parse({"fp16": True})
SHAPES = [(1000, 1000), (300,)]
TOPOLOGY = Topology(machines=2, servers=0)
TENSORS = [
    Tensor("w", 10**6, "float32", AUTO, called="w"),
    Tensor("b", 300, "float32", AUTO, index=1, called="b"),
]


def chooser(params=AUTO, **options):
    algorithm = algorithms.parse({"name": "powersgd", "rank": 2, **options})
    return automatic(algorithm, {"w": params, "b": params}, True, lambda: None)


def chosen(one, rate, seconds=1e-10, message=0.0):
    """Return the choice for a link of `rate` bytes/s, where an element of a matrix takes `seconds`.

    Values in float16 take as long as half as many in float32.
    """
    cost = TrafficCost(message, rate)
    workers = Workers()
    workers.topology, workers.logs = TOPOLOGY, True
    workers.measured = lambda compressors: Measured(Link(cost, cost, cost), {})
    return one.choose(TENSORS, SHAPES, workers, seconds)


@pytest.mark.parametrize(
    "rate, seconds, message, decision",
    [
        (1e6, 1e-9, 0.0, ("fp16", 2)),  # gradients: 4 s, in float16 2 s; factors: 16 ms
        (1e12, 1e-9, 0.0, ("none", 0)),  # whole gradients take 4 us, and products 1 ms
        (1e9, 1e-8, 0.0, ("fp16", 0)),  # 4 ms, 2 ms; products 10 ms
        (1e9, 1e-10, 0.0, ("fp16", 2)),
        (1e9, 1e-8, 0.1, ("fp16", 2)),  # one message more for the second factor
        (1e9, 2e-7, 0.1, ("fp16", 2)),  # 0.32 s instead of 0.4
        (1e9, 3e-7, 0.1, ("none", 0)),  # messages take 0.1 s, so float16 gains less than 10 %
    ],
)
def test_the_fastest_way_is_chosen(rate, seconds, message, decision):
    assert chosen(chooser(), rate, seconds, message) == decision


def test_before_the_choice_gradients_travel_whole_and_afterwards_as_was_chosen(logged):
    one = chooser(start=5)
    assert isinstance(one, AutomaticPowerSGD) and one.undecided and one.due()
    assert one.described() == {"name": "powersgd", "rank": "auto", "start": 5}
    shapes = dict(zip("wb", SHAPES))
    assert one.algorithm.rounds(shapes) == {"left_factor": shapes}
    one.take(chosen(one, 1e6))
    assert not one.undecided and not one.due() and one.params == {"w": FP16, "b": FP16}
    assert one.described() == {"name": "powersgd", "rank": 2, "start": 5}
    (said,) = logged.messages
    assert said == (
        "auto, aggressive: the link carries 8 Mbit/s; an exchange of all gradients should take "
        "none 4 s, fp16 2 s, powersgd 0.0087 s: powersgd"
    )
    one.take(("none", 0))
    assert one.params == {"w": PLAIN, "b": PLAIN} and one.algorithm.start == 5
    assert one.algorithm.rounds(shapes) == {"gradient": shapes, "left_factor": shapes}
    one.take(None)
    assert one.undecided and one.params == {"w": AUTO, "b": AUTO}


def test_where_nothing_is_sent_gradients_travel_whole():
    alone = Workers()
    alone.topology = None
    assert chooser().choose(TENSORS, SHAPES, alone, 1.0) == ("none", 0)


def test_a_parameters_own_compression_stays():
    algorithm = algorithms.parse({"name": "powersgd", "rank": 2})
    one = automatic(algorithm, {"w": AUTO, "b": PLAIN}, True, lambda: None)
    one.take(("fp16", 2))
    assert one.params == {"w": FP16, "b": PLAIN}


def test_without_auto_nothing_is_chosen():
    assert chooser(FP16) is None


def test_a_checkpoint_has_the_decision():
    saved = chooser()
    for decision in (("none", 0), ("fp16", 0), ("fp16", 2)):
        saved.take(decision)
        identities = {key: params.identity() for key, params in saved.params.items()}
        assert chooser().saved_decision(identities, saved.described()) == Decision(*decision)
    undecided = {key: params.identity() for key, params in chooser().params.items()}
    assert chooser().saved_decision(undecided, chooser().described()) is None


def test_the_speed_of_products_is_measured():
    assert chooser().seconds > 0


@pytest.mark.parametrize("accuracy", [{}, {"accuracy": "safe"}, {"accuracy": "exact"}])
def test_another_accuracy_is_an_error(accuracy):
    algorithm = algorithms.parse("powersgd")
    require_fitting_compression(algorithm, AGGRESSIVE)
    with pytest.raises(ValueError, match=r"\['accuracy'\] must be 'aggressive' with algorithm pow"):
        require_fitting_compression(algorithm, AGGRESSIVE, {"compressor": "auto", **accuracy})
