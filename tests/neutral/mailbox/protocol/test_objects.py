"""The bytes of objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc.mailbox import objects
from gluon_gc.mailbox.objects import DamagedError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.dictionaries(st.text(), JSON, max_size=4)
PARTS = st.lists(st.binary(max_size=40), max_size=4)


@given(HEADERS, PARTS)
def test_an_object_is_unpacked_as_it_was_packed(header, parts):
    data = objects.pack(header, *map(memoryview, parts))
    found = objects.unpack("a", data)
    assert found.header == header and bytes(found.body) == b"".join(parts)
    assert found.digest == objects.unpack("b", bytearray(data)).digest


def test_objects_of_other_contents_have_other_digests():
    packed = [objects.pack({}, b"ab"), objects.pack({}, b"ac"), objects.pack({"a": 1}, b"ab")]
    assert len({objects.unpack("a", data).digest for data in packed}) == 3


def test_each_altered_byte_and_each_cut_is_found():
    data = objects.pack({"round": 3, "worker": "a"}, b"1234567890")
    for place in range(len(data)):
        for wrong in (data[place] ^ 1, data[place] ^ 255):
            altered = data[:place] + bytes([wrong]) + data[place + 1 :]
            with pytest.raises(DamagedError, match="object 'a/result' is damaged"):
                objects.unpack("a/result", altered)
        with pytest.raises(DamagedError, match="'a/result'"):
            objects.unpack("a/result", data[:place])
    with pytest.raises(DamagedError, match="'a/result'"):
        objects.unpack("a/result", data + b"\0")


def test_names_are_in_the_order_of_rounds():
    names = [objects.round_folder("difference.0", number) for number in (1, 2, 9, 10, 99, 1000)]
    assert names == sorted(names)
    assert objects.payload_name("difference", 12, "a") == "difference/rounds/00000012/payloads/a"
    assert objects.last_part("difference/states/00000012") == "00000012"
