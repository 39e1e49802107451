"""An exception is in flight unless an except block handles it."""

import pytest

from gluon_gc.launch.in_flight import exception_in_flight


def fail():
    raise ZeroDivisionError


def in_except():
    try:
        fail()
    except ZeroDivisionError:
        return exception_in_flight()


def in_a_finally_block_of_an_except_block():
    try:
        fail()
    except ZeroDivisionError:
        try:
            pass
        finally:
            found = exception_in_flight()
    return found


def in_a_function_that_an_except_block_calls():
    try:
        fail()
    except ZeroDivisionError:
        return in_finally(lambda: None)


def in_finally(call=fail):
    found = []
    try:
        try:
            call()
        finally:
            found.append(exception_in_flight())
    except ZeroDivisionError:
        pass
    return found[0]


def in_a_finally_block_of_an_except_block_that_fails():
    found = []
    try:
        try:
            fail()
        except ZeroDivisionError:
            try:
                fail()
            finally:
                found.append(exception_in_flight())
    except ZeroDivisionError:
        return found[0]


def in_an_except_block_that_raises():
    found = []
    try:
        try:
            fail()
        except ZeroDivisionError:
            found.append(exception_in_flight())
            raise
    except ZeroDivisionError:
        return found[0]


def without_source():
    names = {"exception_in_flight": exception_in_flight}
    exec("try: 1 / 0\nexcept ZeroDivisionError: found = exception_in_flight()", names)
    return names["found"]


@pytest.mark.parametrize(
    "place",
    [
        exception_in_flight,
        in_except,
        in_a_finally_block_of_an_except_block,
        in_a_function_that_an_except_block_calls,
    ],
)
def test_no_exception_is_in_flight(place):
    assert place() is None


@pytest.mark.parametrize(
    "place",
    [
        in_finally,
        in_a_finally_block_of_an_except_block_that_fails,
        in_an_except_block_that_raises,
        without_source,
    ],
)
def test_an_exception_is_in_flight(place):
    assert isinstance(place(), ZeroDivisionError)
