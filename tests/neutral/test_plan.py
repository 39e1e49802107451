"""Cutting tensors into chunks, and assigning chunks to servers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc.compression import CompressionParams, registry
from gluon_gc.exchange.plan import (
    Tensor,
    assign,
    cut,
    facts,
    warn_if_uncompressed,
)
from gluon_gc.log import warn_once

ONEBIT = CompressionParams(registry["onebit"](scaling=True))
PLAIN = CompressionParams()

tensors = st.lists(
    st.tuples(
        st.integers(1, 5000),
        st.sampled_from(["float16", "float32", "float64", "int32"]),
        st.sampled_from([ONEBIT, PLAIN, CompressionParams(fp16=True)]),
    ),
    min_size=1,
    max_size=12,
).map(lambda rows: [Tensor(f"t{i}", *row) for i, row in enumerate(rows)])


@settings(deadline=None)
@given(tensors, st.integers(1, 20000), st.integers(0, 4000))
def test_chunks_cover_every_element_once_and_are_no_larger_than_the_partition(
    given_tensors, most, least
):
    covered = {tensor.name: [] for tensor in given_tensors}
    sizes = {"float16": 2, "float32": 4, "float64": 8}
    for chunk in cut(given_tensors, most, least):
        assert chunk.size * sizes[chunk.dtype] <= max(most, 8) or len(chunk.slices) == 1
        assert chunk.params is None or len(chunk.slices) == 1
        assert len({piece.tensor for piece in chunk.slices}) == len(chunk.slices)
        for piece in chunk.slices:
            covered[piece.tensor].append((piece.begin, piece.end))
    for tensor in given_tensors:
        ends = [0] + [end for _, end in sorted(covered[tensor.name])]
        assert sorted(covered[tensor.name]) == list(zip(ends, ends[1:])) and ends[-1] == tensor.size


@pytest.mark.parametrize(
    "size, sizes", [(1000, [1000]), (1001, [501, 500]), (2999, [1000, 1000, 999])]
)
def test_a_tensor_is_cut_evenly(size, sizes):
    chunks = cut([Tensor("t", size, "float32", ONEBIT)], 4000, 0)
    assert [chunk.size for chunk in chunks] == sizes


def test_small_uncompressed_tensors_are_fused_into_one_message():
    chunks = cut([Tensor(f"t{i}", 10, "float32", PLAIN) for i in range(50)], 4096000, 0)
    assert [len(chunk.slices) for chunk in chunks] == [50]


def test_large_uncompressed_tensors_travel_by_themselves():
    sizes = [10, 100_000, 20, 30_000, 30]
    tensors = [Tensor(f"t{i}", size, "float32", PLAIN) for i, size in enumerate(sizes)]
    chunks = cut(tensors, 4096000, 0)
    travelling = [[piece.tensor for piece in chunk.slices] for chunk in chunks]
    assert travelling == [["t0", "t2", "t4"], ["t1"], ["t3"]]


def test_neighbouring_slices_of_a_tensor_that_is_sent_as_float16_are_one_slice():
    (chunk,) = cut([Tensor("t", 2000, "float32", CompressionParams(fp16=True))], 4000, 0)
    assert [(piece.begin, piece.end) for piece in chunk.slices] == [(0, 2000)]


def test_float16_tensors_share_no_chunk_with_tensors_that_are_sent_as_float16():
    tensors = [Tensor(d, 10, d, CompressionParams(fp16=True)) for d in ("float16", "float32")]
    assert [chunk.dtype for chunk in cut(tensors, 4000, 0)] == ["float16", "float16"]


def test_tensors_below_the_minimum_and_integers_are_not_compressed():
    small, large, whole = cut(
        [
            Tensor("large", 100, "float32", ONEBIT),
            Tensor("small", 99, "float32", ONEBIT),
            Tensor("whole", 1000, "int32", ONEBIT),
        ],
        4096000,
        400,
    )
    assert small.params is ONEBIT and large.params is None and whole.params is None
    assert whole.dtype == "float64"


@pytest.mark.parametrize(
    "other", [{"mu": 0.8}, {"nesterov": False}, {"ef": "vanilla"}, {"ef_decay": 0.9}]
)
def test_workers_that_differ_in_momentum_or_feedback_state_other_facts(other):
    dgc = registry["dgc"](k=0.1)
    tensors = [
        Tensor("t", 100, "float32", CompressionParams(dgc, **params))
        for params in ({"mu": 0.9}, {"mu": 0.9, **other})
    ]
    slices = [[chunk.slices for chunk in cut([tensor], 400, 0)] for tensor in tensors]
    assert slices[0] == slices[1]
    assert facts(tensors[:1]) != facts(tensors[1:])


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 7))
def test_servers_carry_even_bytes(loads, servers):
    carried = [0] * servers
    for load, server in zip(loads, assign(loads, servers)):
        carried[server] += load
    assert max(carried) - min(carried) <= max(loads)


@pytest.mark.parametrize(
    "tensors, reason",
    [
        ([Tensor("a", 100, "float32", ONEBIT), Tensor("b", 9, "float32", ONEBIT)], "400 bytes"),
        ([Tensor("a", 3000, "int32", ONEBIT)], "tensors of dtype int32 are never compressed"),
        ([Tensor("a", 3000, "float32", ONEBIT), Tensor("b", 9, "float32", ONEBIT)], ""),
        ([Tensor("a", 100, "float32", PLAIN)], ""),
        ([Tensor("a", 0, "float32", ONEBIT)], ""),
    ],
)
def test_a_compressor_that_compresses_nothing_is_told_once(logged, tensors, reason):
    warn_once.cache_clear()
    for _ in range(2):
        warn_if_uncompressed(tensors, 1001)
    assert logged.text.count("but nothing is compressed: ") == bool(reason)
    assert reason in logged.text
