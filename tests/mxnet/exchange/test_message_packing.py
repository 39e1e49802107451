"""Bundles of messages, as workers send them over Horovod."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.mxnet.engine.operators import MessageRows
from gluon_gc.mxnet.kvstore.horovod.message_groups import MessagePacker, repeated
from gluon_gc.mxnet.kvstore.horovod.process_set import Packed

FIXED, VARYING = ((5, None),), ((3, None), (20, 2))
"""Two messages: 5 bytes; and 3 bytes with up to 20 more, where the message has their number."""


def channel(parts, full=False):
    """Return a stub channel with the attributes that a packer reads."""
    return SimpleNamespace(coder=SimpleNamespace(rows=lambda: MessageRows(parts, in_one=full)))


def messages(length, first=0):
    """Return messages FIXED and VARYING (`length` bytes counted), and the bytes in use of each."""
    fixed = np.arange(first, first + 5, dtype=np.uint8)
    varying = np.arange(100 + first, 123 + first, dtype=np.uint8)
    varying[5:9] = np.frombuffer(np.uint32(length).tobytes(), np.uint8)
    return [fixed, varying], [fixed, varying[: 5 + length]]


def arrays(payloads):
    return [mx.nd.array(payload, dtype="uint8") for payload in payloads]


def test_only_what_is_in_use_of_a_message_travels_to_its_place():
    given, used = messages(7)
    packed = MessagePacker([channel(FIXED), channel(VARYING)]).pack(arrays(given), [1, 0, 1])
    assert packed.splits.asnumpy().tolist() == [5, 0, 12]
    travels = np.concatenate(used)
    np.testing.assert_array_equal(packed.data.asnumpy()[: travels.size], travels)


def test_messages_of_several_places_come_out_as_they_were():
    packer = MessagePacker([channel(FIXED), channel(VARYING)])
    rows = [messages(length, first) for length, first in ((4, 0), (18, 50), (9, 90))]
    travels = np.concatenate([part for _, used in rows for part in used])
    # There may be unused space at the end.
    data = np.concatenate([travels, np.full(3, 255, np.uint8)])
    splits = [sum(part.size for part in used) for _, used in rows]
    came = Packed(*arrays([data]), mx.nd.array(splits, dtype="int32"))
    fixed, varying = packer.unpack(came, 3)
    assert fixed.shape == (3, 5) and varying.shape == (3, 23)
    for row, (_, used) in enumerate(rows):
        np.testing.assert_array_equal(fixed.asnumpy()[row], used[0])
        np.testing.assert_array_equal(varying.asnumpy()[row, : used[1].size], used[1])


def test_payloads_that_are_full_but_in_rare_cases_travel_with_their_room():
    packer = MessagePacker([channel(VARYING, full=True)])
    given, _ = messages(7)
    packed = packer.pack(arrays(given[1:]), [1])
    assert not packer.varies and packed.splits.asnumpy().tolist() == [23]
    (came,) = packer.unpack(packed, 1)
    np.testing.assert_array_equal(came.asnumpy()[0], given[1])


def test_what_is_repeated_is_there_for_each_place():
    packer = MessagePacker([channel(VARYING)])
    given, used = messages(11)
    packed = repeated(packer.pack(arrays(given[1:]), [1]), 3)
    assert packed.splits.asnumpy().tolist() == [16, 16, 16]
    np.testing.assert_array_equal(packed.data.asnumpy()[:48], np.tile(used[1], 3))


def test_nothing_goes_to_every_place_of_no_channels():
    packed = MessagePacker([]).pack([], [0, 0])
    assert packed.splits.asnumpy().tolist() == [0, 0]
    assert MessagePacker([]).unpack(packed, 2) == []


@pytest.mark.parametrize(
    "length, splits, said",
    [
        (3, [28], "says that it is 3 bytes long"),
        (19, [28], "says that it is 19 bytes long"),
        (7, [15], "messages end within a part"),
        (7, [9], "a message ends within a part"),
        (7, [18], "1 bytes are left after the last message"),
        (7, [29], "0 to 28 bytes, got 29"),
        (7, [-1], "0 to 28 bytes, got -1"),
    ],
)
def test_bytes_that_are_no_messages_are_refused(length, splits, said):
    packer = MessagePacker([channel(FIXED), channel(VARYING)])
    given, _ = messages(length)
    came = Packed(*arrays([np.concatenate(given)]), mx.nd.array(splits, dtype="int32"))
    with pytest.raises(mx.base.MXNetError, match=said):
        for message in packer.unpack(came, 1):
            message.wait_to_read()
