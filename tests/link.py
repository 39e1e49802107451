"""A link of known speed for "auto", so that its choices are the same everywhere."""

from contextlib import contextmanager

from gluon_gc.auto import probe
from gluon_gc.auto.choice import Link, Speed, TrafficCost
from gluon_gc.auto.local_steps import StepClock


@contextmanager
def link_of(bytes_per_second, step_seconds=0.001):
    """In the block, "auto" measures this link, these steps, and compressors that take no time."""
    cost, nothing = TrafficCost(0.0, bytes_per_second), Speed(0.0, 0.0, 0.0)
    really = probe.link, probe.speeds, StepClock.seconds
    probe.link = lambda workers, topology, effort: Link(cost, cost, cost)
    probe.speeds = lambda workers, compressors: dict.fromkeys(compressors, nothing)
    StepClock.seconds = property(lambda clock: step_seconds)
    try:
        yield
    finally:
        probe.link, probe.speeds, StepClock.seconds = really
