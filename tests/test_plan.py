"""How tensors become chunks, and chunks go to servers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc.compression import CompressionParams, registry
from gluon_gc.plan import SMALL_BYTES, KeyAllocator, Tensor, cut, facts, messages, spread

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


GATHERED = CompressionParams(registry["onebit"](), exchange="gather")
RANDOMK = CompressionParams(registry["randomk"](0.5))


@settings(deadline=None)
@given(tensors, st.integers(0, 3), st.integers(0, 3))
def test_messages_hold_every_chunk_once_compressed_alike_and_no_more_bytes_than_they_may(
    given_tensors, gathered, summed
):
    more = [Tensor(f"g{i}", 100_000 + i, "float32", GATHERED) for i in range(gathered)]
    more += [Tensor(f"s{i}", 10_000 + i, "float64", RANDOMK) for i in range(summed)]
    chunks = cut(given_tensors + more, 200_000, 0)
    together = messages(chunks)
    assert sorted(map(chunks.index, sum(together, []))) == list(range(len(chunks)))
    assert [chunks.index(message[0]) for message in together] == sorted(
        chunks.index(message[0]) for message in together
    )
    for message in together:
        assert len({(chunk.params, chunk.dtype) for chunk in message}) == 1
        assert len(message) == 1 or sum(chunk.message_bytes for chunk in message) <= SMALL_BYTES
        assert len(message) == 1 or message[0].params is not None


def test_small_chunks_that_are_compressed_alike_travel_in_one_message():
    chunks = cut([Tensor(f"t{i}", 1000, "float32", ONEBIT) for i in range(50)], 4096000, 0)
    assert [len(message) for message in messages(chunks)] == [50]


def test_where_workers_aggregate_there_are_messages_for_all_of_them():
    chunks = cut([Tensor(f"t{i}", 1000, "float32", ONEBIT) for i in range(48)], 4096000, 0)
    together = messages(chunks, owners=4)
    assert sum(together, []) == chunks
    loads = [sum(chunk.message_bytes for chunk in message) for message in together]
    carried = [0] * 4
    for load, owner in zip(loads, spread(loads, 4)):
        carried[owner] += load
    assert len(set(carried)) == 1
    assert [len(message) for message in messages(chunks[:3], owners=4)] == [1, 1, 1]


def test_small_uncompressed_tensors_are_fused_into_one_message():
    chunks = cut([Tensor(f"t{i}", 10, "float32", PLAIN) for i in range(50)], 4096000, 0)
    assert [len(chunk.slices) for chunk in chunks] == [50]


def test_large_uncompressed_tensors_travel_by_themselves():
    sizes = [10, 100_000, 20, 30_000, 30]
    tensors = [Tensor(f"t{i}", size, "float32", PLAIN) for i, size in enumerate(sizes)]
    chunks = cut(tensors, 4096000, 0)
    travelling = [[piece.tensor for piece in chunk.slices] for chunk in chunks]
    assert travelling == [["t0", "t2", "t4"], ["t1"], ["t3"]]


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


@pytest.mark.parametrize("other", [{"mu": 0.8}, {"nesterov": False}, {"ef": "vanilla"}])
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
    for load, server in zip(loads, spread(loads, servers)):
        carried[server] += load
    assert max(carried) - min(carried) <= max(loads)


@pytest.mark.parametrize("servers", [1, 2, 3, 16])
def test_keys_are_distinct_and_mxnets_hash_sends_them_where_they_belong(servers):
    allocator = KeyAllocator(servers)
    keys = [(allocator.key(i % servers), i % servers) for i in range(100)]
    assert len({key for key, _ in keys}) == 100
    assert all(key * 9973 % servers == server for key, server in keys)
