"""Chunks are packed into messages, and messages get keys on MXNet's servers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc.compression import CompressionParams, registry
from gluon_gc.exchange.plan import SMALL_BYTES, Tensor, assign, cut
from gluon_gc.mxnet.exchange.channels import in_messages
from gluon_gc.mxnet.kvstore.parameter_server.servers import KeyAllocator
from tests.neutral.test_plan import ONEBIT, tensors

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
    together = in_messages(chunks)
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
    assert [len(message) for message in in_messages(chunks)] == [50]


def test_where_workers_aggregate_there_are_messages_for_all_of_them():
    chunks = cut([Tensor(f"t{i}", 1000, "float32", ONEBIT) for i in range(48)], 4096000, 0)
    together = in_messages(chunks, owners=4)
    assert sum(together, []) == chunks
    loads = [sum(chunk.message_bytes for chunk in message) for message in together]
    carried = [0] * 4
    for load, owner in zip(loads, assign(loads, 4)):
        carried[owner] += load
    assert len(set(carried)) == 1
    assert [len(message) for message in in_messages(chunks[:3], owners=4)] == [1, 1, 1]


@pytest.mark.parametrize("servers", [1, 2, 3, 16])
def test_keys_are_distinct_and_mxnets_hash_sends_them_where_they_belong(servers):
    allocator = KeyAllocator(servers)
    keys = [(allocator.key(i % servers), i % servers) for i in range(100)]
    assert len({key for key, _ in keys}) == 100
    assert all(key * 9973 % servers == server for key, server in keys)
