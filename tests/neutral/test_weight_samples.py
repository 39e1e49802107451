"""Samples of weights find a worker whose weights differ, and nothing else."""

import numpy as np
import pytest

from gluon_gc.exchange import weight_samples
from gluon_gc.exchange.weight_samples import ELEMENTS, PARAMETERS, Sample

SIZES = [1000, 1, 5, ELEMENTS, 33, 70_000, 2]
CHOSEN = [Sample(1, 4, 7), Sample(0, 0, 2)]
NAMES = ["bias", "weight"]


def problem(*rows):
    return weight_samples.problem(np.array(rows, np.float32), CHOSEN, NAMES, "step 9")


def test_each_parameter_is_sampled_at_changing_offsets_within_it():
    checks = [weight_samples.samples(number, SIZES) for number in range(50)]
    assert {len(chosen) for chosen in checks} == {PARAMETERS}
    for parameter, size in enumerate(SIZES):
        chosen = [s for check in checks for s in check if s.parameter == parameter]
        assert {s.end - s.begin for s in chosen} == {min(size, ELEMENTS)}
        assert all(0 <= s.begin and s.end <= size for s in chosen)
        assert len({s.begin for s in chosen}) >= min(20, size - ELEMENTS + 1)


def test_few_parameters_are_sampled_once_in_a_check():
    assert [s.parameter for s in weight_samples.samples(7, [3, 4])] == [0, 1]
    assert weight_samples.samples(7, []) == []


@pytest.mark.parametrize("value", [0.5, 0.0, np.nan, np.inf, -np.inf, 1e38])
def test_equal_weights_are_no_problem_whatever_they_are(value):
    assert problem(*[[value, 1, -2, value, value]] * 3) == ""


def test_another_rounding_is_no_problem():
    assert problem([1, 1, 1, 0, 2], [1.0001, 1, 1, 0, 2.001]) == ""


@pytest.mark.parametrize("value", [1.01, np.nan, np.inf, -np.inf])
def test_the_first_parameter_and_the_first_worker_that_differ_are_named(value):
    rows = [[1, 0, 0, 5, 5], [1, 0, 0, 5, 5], [value, 0, 0, 6, 5]]
    said = problem(*rows)
    assert "the weights of weight differ between worker 0 and worker 2 before step 9" in said
    assert "from element 4 on" in said
    said = problem([1, 0, 0, 5, 5], [1, 0, 0, 5, 6])
    assert "the weights of bias differ between worker 0 and worker 1" in said
