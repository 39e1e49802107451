"""Ratios of learning rates, for error feedback that is rescaled when the rate changes."""

import pytest

from gluon_gc.compression.learning_rates import LearningRates


@pytest.fixture
def rates():
    rates_so_far = LearningRates()
    assert rates_so_far.advance({"a": 0.5, "b": 0.25}) == {}
    return rates_so_far


def test_a_rate_that_has_changed_has_the_ratio_of_the_last_one_to_the_new_one(rates):
    assert rates.advance({"a": 0.25, "b": 0.25}) == {"a": 2.0}
    assert rates.advance({"a": 0.25, "b": 0.5}) == {"b": 0.5}


def test_a_parameter_that_is_left_out_of_a_step_keeps_its_rate(rates):
    assert rates.advance({"b": 0.125}) == {"b": 2.0}
    assert rates.advance({"a": 0.125, "b": 0.125}) == {"a": 4.0}


def test_a_parameter_without_a_gradient_keeps_the_rate_of_the_step_before(rates):
    assert rates.advance({"a": 0.25, "b": 0.125, "new": 1.0}) == {"a": 2.0, "b": 2.0}
    rates.keep(["a", "new"])
    assert rates.last == {"a": 0.5, "b": 0.125}
    assert rates.advance({"a": 0.125, "b": 0.125, "new": 2.0}) == {"a": 4.0}


def test_nothing_is_left_of_gradients_with_a_rate_of_zero(rates):
    assert rates.advance({"a": 0.0, "b": 0.25}) == {}
    assert rates.advance({"a": 0.0, "b": 0.25}) == {}
    assert rates.advance({"a": 1.0, "b": 0.25}) == {"a": 0.0}
    assert rates.advance({"a": 1.0, "b": 0.25}) == {}


def test_a_step_that_is_taken_back_leaves_the_rates_before_it(rates):
    rates.advance({"a": 0.125})
    rates.take_back()
    assert rates.last == {"a": 0.5, "b": 0.25}
    assert rates.advance({"a": 0.25}) == {"a": 2.0}
