"""Aggregators' states, cut into pages and joined again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc.exchange.plan import Slice
from gluon_gc.mxnet.kvstore import archive
from gluon_gc.mxnet.kvstore.parameter_server import pages
from gluon_gc.state import Key

SIZES = st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=5)


def states_of(sizes):
    """Return states of several keys, with chunks of these sizes."""
    random = np.random.default_rng(0)
    return {
        key: [
            {"stream": random.integers(0, 2**64, 2, np.uint64), "residual": random.random(size)}
            for size in chunks
        ]
        for key, chunks in enumerate(sizes)
    }


def layouts_of(states):
    return {
        key: [{name: (a.shape, a.dtype.name) for name, a in chunk.items()} for chunk in chunks]
        for key, chunks in states.items()
    }


@settings(deadline=None, max_examples=50)
@given(SIZES, st.integers(1, 100))
def test_states_that_are_cut_into_pages_are_joined_again(sizes, most):
    states = states_of(sizes)
    joiner = archive.Joiner(layouts_of(states))
    cutter = archive.Cutter(iter(states.values()))
    joined = {}
    while joiner.left:
        page = cutter.page(most)
        assert page.size == min(most, joiner.left)
        # The last page may be longer.
        padding = np.zeros(7 if page.size == joiner.left else 0, np.uint8)
        joined.update(joiner.add(np.append(page, padding)))
    assert cutter.page(most).size == 0
    assert joined.keys() == {key for key, chunks in states.items() if chunks}
    for key, chunks in joined.items():
        for ours, expected in zip(chunks, states[key]):
            assert ours.keys() == expected.keys()
            for name, array in ours.items():
                np.testing.assert_array_equal(array, expected[name])


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 5 * 15360))
def test_pages_come_out_of_rows_as_they_went_in(count):
    page = np.random.default_rng(count).integers(0, 256, count, np.uint8)
    for rows in (pages.framed(page), pages.full(page)):
        back = pages.unframed(rows)
        np.testing.assert_array_equal(back[:count], page)
        assert not back[count:].any() and back.size % 16256 == 0


def test_workers_give_each_other_what_their_slices_need():
    whole = np.arange(10.0)
    streams = np.arange(8, dtype=np.uint64).reshape(2, 4)
    mine = {
        Key("a", "aggregator", "residual", 2): whole[2:6],
        Key("a", "aggregator", "stream"): streams[:1],
        Key("b", "aggregator", "residual"): whole,
    }
    theirs = {
        Key("a", "aggregator", "residual", 6): whole[6:9],
        Key("a", "aggregator", "stream"): streams[1:],
    }
    slices = [Slice("a", 4, 7)]
    data = b"".join(archive.pack(archive.parts(states, slices)) for states in (mine, theirs))
    got = archive.unpack(data)
    assert got.keys() == {
        Key("a", "aggregator", "residual", 4),
        Key("a", "aggregator", "residual", 6),
        Key("a", "aggregator", "stream"),
    }
    np.testing.assert_array_equal(got[Key("a", "aggregator", "residual", 4)], [4, 5])
    np.testing.assert_array_equal(got[Key("a", "aggregator", "residual", 6)], [6])
    np.testing.assert_array_equal(got[Key("a", "aggregator", "stream")], streams)
    assert archive.unpack(archive.pack(archive.parts(mine, []))) == {}
