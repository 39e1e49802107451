"""Loading saved states whose chunks differ, without a framework."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels
from gluon_gc.exchange.plan import Slice
from gluon_gc.state import Key
from gluon_gc.state.chunks import SavedArrays, Spans, by_tensor, part

ROOM = 2**32


def chunks(size, count):
    """Return the slices of a tensor of `size` elements in `count` chunks."""
    ends = np.linspace(0, size, count + 1).astype(int).tolist()
    return list(zip(ends, ends[1:]))


def slices(name, size, count):
    return [Slice(name, begin, end) for begin, end in chunks(size, count)]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=20),
    st.integers(0, 70),
    st.integers(1, 70),
)
def test_spans_are_those_that_a_search_through_all_finds(spans, begin, length):
    end = begin + length
    spans = [(first, first + size + 1, number) for number, (first, size) in enumerate(spans)]
    expected = sorted(span for span in spans if span[0] < end and span[1] > begin)
    assert sorted(Spans(spans).overlapping(begin, end)) == expected


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 9))
def test_a_chunk_has_its_elements_of_arrays_that_are_cut_otherwise(size, before, now):
    values = np.random.default_rng(size).random(size, np.float32)
    arrays = {Key("other", "worker", "residual"): np.ones(size, np.float32)}
    for piece in slices("x", size, before):
        key = Key("x", "worker", "residual", piece.begin)
        arrays[key] = values[piece.begin : piece.end]
        arrays[key._replace(node="aggregator")] = -values[piece.begin : piece.end]
    saved = SavedArrays(arrays)
    for piece in slices("x", size, now):
        layout = {"residual": ((piece.size,), "float32"), "momentum": ((piece.size,), "float32")}
        states = saved.cut("worker", piece, layout, first_stream=pytest.fail)
        assert np.array_equal(states["residual"], values[piece.begin : piece.end])
        assert not states["momentum"].any()


def test_a_chunk_goes_on_in_the_stream_of_the_chunk_that_had_its_first_element():
    rows = [[begin, end, 3 + begin, 4] for begin, end in chunks(100, 4)]
    saved = SavedArrays({Key("x", "worker", "stream"): np.array(rows, np.uint64)})
    layout = {"stream": ((2,), "uint64")}

    def stream(begin, end, first=None):
        return saved.cut("worker", Slice("x", begin, end), layout, lambda: first)["stream"]

    assert stream(25, 50).tolist() == [28, 4]
    expected = np.array([28, 4], np.uint64)
    kernels.jump(expected, 5 * ROOM)
    assert stream(30, 80).tolist() == expected.tolist()
    assert stream(100, 120, "its own") == "its own"


def test_what_overlaps_slices_is_found_by_tensor():
    array = np.arange(10.0)
    slices_by_tensor = by_tensor([Slice("x", 0, 4), Slice("x", 8, 20), Slice("y", 0, 3)])
    key = Key("x", "worker", "residual", 5)
    found = [piece for _, _, piece in slices_by_tensor["x"].overlapping(5, 15)]
    assert found == [Slice("x", 8, 20)]
    begin, values = part(key, array, found[0])
    assert begin == 8 and values.tolist() == array[3:].tolist()


class Name(str):
    """A name that counts how often names are compared or hashed."""

    uses = 0

    def __eq__(self, other):
        Name.uses += 1
        return str.__eq__(self, other)

    def __hash__(self):
        Name.uses += 1
        return str.__hash__(self)


def uses_of_names(tensors):
    """Return how often names are used to cut the states of some tensors with four chunks each."""
    pieces = [piece for i in range(tensors) for piece in slices(Name(f"tensor{i}"), 64, 4)]
    one = np.zeros(16, np.float32)
    arrays = {Key(p.tensor, "worker", "residual", p.begin): one for p in pieces}
    layout = {"residual": ((16,), "float32")}
    Name.uses = 0
    saved = SavedArrays(arrays)
    for piece in pieces:
        saved.cut("worker", piece, layout, first_stream=pytest.fail)
    return Name.uses


def test_the_work_grows_with_the_number_of_tensors_not_with_its_square():
    few, many = map(uses_of_names, (100, 1000))
    assert 0 < many < 11 * few
