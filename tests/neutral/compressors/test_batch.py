"""Several codecs in one call give the same results as in separate calls."""

import numpy as np
import pytest

from gluon_gc import kernels
from tests.compressors import COMPRESSORS
from tests.neutral.kernels.bindings import aggregate, in_place

from .cases import same_states

SIZES = [1, 64, 1000]


def options_of(params, mu):
    own = {key: value for key, value in params.items() if key not in ("compressor", "seed")}
    return {**own, "ef": "corrected", "mu": mu}


def made(name, params, mu=0.9):
    return [kernels.Codec(name, options_of(params, mu), n) for n in SIZES]


@pytest.mark.parametrize("example", COMPRESSORS)
def test_a_batch_makes_the_bytes_and_the_state_that_single_calls_make(example):
    params = COMPRESSORS[example]
    name = params["compressor"]
    random = np.random.default_rng(0)
    codecs, alone = made(name, params), made(name, params)
    states, of_alone = [c.state() for c in codecs], [c.state() for c in alone]
    rooms = [np.zeros(codec.payload_bytes, np.uint8) for codec in codecs]
    compress = kernels.Batch("compress", codecs, rooms)
    at_states = in_place(codecs, states)
    decompress = kernels.Batch("decompress", codecs, payloads=[room[None] for room in rooms])
    for step in range(4):
        if step == 3:  # the batch follows a codec's new options
            alone = made(name, params, mu=0.5)
            for codec in codecs:
                codec.set_options(options_of(params, mu=0.5))
        ratios = None if step == 2 else [1.0, 2.0, 1.0]  # no ratios are ratios of 1
        values = [random.standard_normal(n).astype(np.float32) for n in SIZES]
        positions = [kernels.position((3, 4), step * codec.draws) for codec in codecs]
        addresses = [array.ctypes.data for array in values]
        compress(addresses, positions, scale=0.5, ratios=ratios, states=at_states)
        decoded = [np.empty(n, np.float32) for n in SIZES]
        decompress([array.ctypes.data for array in decoded], positions)
        for i, codec in enumerate(alone):
            payload, status = codec.compress(
                values[i], of_alone[i], positions[i], scale=0.5, ratio=ratios[i] if ratios else 1.0
            )
            assert compress.statuses[i].bytes == status.bytes
            np.testing.assert_array_equal(rooms[i][: status.bytes], payload[: status.bytes])
            np.testing.assert_array_equal(decoded[i], codec.decompress(payload, positions[i])[0])
            np.testing.assert_array_equal(states[i].momentum, of_alone[i].momentum)
            for mine, theirs in zip(states[i].memory, of_alone[i].memory):
                np.testing.assert_array_equal(mine, theirs)


def test_a_batch_calls_its_function_for_some_codecs_after_others():
    codecs = made("onebit", {"scaling": True})
    rooms = [np.zeros(codec.payload_bytes, np.uint8) for codec in codecs]
    values = [np.random.default_rng(n).standard_normal(n).astype(np.float32) for n in SIZES]
    expected = [c.compress(array, c.state())[0] for c, array in zip(codecs, values)]
    batch, states = kernels.Batch("compress", codecs, rooms), [codec.state() for codec in codecs]
    batch.prepare([array.ctypes.data for array in values], states=in_place(codecs, states))
    done = set()
    for begin, end in [(1, 3), (1, 1), (0, 1)]:
        batch.run(begin, end)
        done.update(range(begin, end))
        for i, room in enumerate(rooms):
            assert np.array_equal(room, expected[i]) == (i in done)


def test_a_batch_writes_the_state_of_each_codec_where_the_call_says():
    codecs = made("onebit", {"scaling": True})
    both = [[codec.state() for codec in codecs] for _ in range(2)]
    expected = [codec.state() for codec in codecs]
    rooms = [np.zeros(codec.payload_bytes, np.uint8) for codec in codecs]
    references = [
        [kernels.StateReference(kernels.addresses(*pair)) for pair in zip(codecs, states)]
        for states in both
    ]
    compress = kernels.Batch("compress", codecs, rooms)
    for step in range(4):
        values = [np.random.default_rng(step).standard_normal(n).astype(np.float32) for n in SIZES]
        new, earlier = step % 2, 1 - step % 2
        pairs = zip(references[new], references[earlier])
        at_states = [written.after(read) for written, read in pairs]
        at = [array.ctypes.data for array in values]
        for _ in range(1 + step // 2):  # the second call repeats the step
            compress(at, states=at_states)
        for i, codec in enumerate(codecs):
            payload, _ = codec.compress(values[i], expected[i])
            np.testing.assert_array_equal(rooms[i], payload)
            assert same_states(both[new][i], expected[i])


def test_a_batch_aggregates_rows_that_lie_apart():
    codecs = [kernels.Codec("onebit", {"scaling": True, "ef": "vanilla"}, n) for n in SIZES]
    size = sum(codec.payload_bytes for codec in codecs)
    came = np.zeros((3, size + 5), np.uint8)
    rows, begin = [], 0
    random = np.random.default_rng(1)
    for codec in codecs:
        rows.append(came[:, begin : begin + codec.payload_bytes])
        begin += codec.payload_bytes
        for row in rows[-1]:
            values = random.standard_normal(codec.n).astype(np.float32)
            row[:], _ = codec.compress(values, codec.state())
    rooms = [np.zeros(codec.payload_bytes, np.uint8) for codec in codecs]
    states = [codec.state() for codec in codecs]
    kernels.Batch("aggregate", codecs, rooms, rows)(states=in_place(codecs, states))
    for codec, of_codec, room in zip(codecs, rows, rooms):
        expected, _ = aggregate(codec, np.ascontiguousarray(of_codec), codec.state())
        np.testing.assert_array_equal(room, expected)


def test_what_does_not_fit_is_named_when_a_batch_is_made():
    codec = kernels.Codec("onebit", {"ef": "vanilla"}, 100)
    with pytest.raises(ValueError, match="memory must be"):
        kernels.addresses(codec, kernels.State())
    with pytest.raises(ValueError, match="payload must have"):
        kernels.Batch("compress", [codec], [np.zeros(3, np.uint8)])
    with pytest.raises(ValueError, match="payloads must have at least"):
        kernels.Batch("decompress", [codec], payloads=[np.zeros((2, 3), np.uint8)])


def test_a_batch_needs_all_arrays_that_its_function_reads_or_writes():
    codec = kernels.Codec("onebit", {}, 100)
    payload = np.zeros(codec.payload_bytes, np.uint8)
    for function, missing, arrays in (
        ("compress", "payload", {}),
        ("aggregate", "payloads", {"payload": [payload]}),
        ("decompress", "payloads", {}),
        ("inspect", "payloads", {}),
    ):
        with pytest.raises(ValueError, match=f"{function} needs {missing}, got None"):
            kernels.Batch(function, [codec], **arrays)
    with pytest.raises(ValueError, match="function must be one of .*, got 'compres'"):
        kernels.Batch("compres", [codec], [payload])
    for batch in (
        kernels.Batch("compress", [codec], [payload]),
        kernels.Batch("decompress", [codec], payloads=[payload]),
    ):
        with pytest.raises(ValueError, match="values must be the address of each codec's values"):
            batch()


def test_a_batch_needs_each_argument_for_each_codec():
    codecs = made("dithering", {"k": 4})[1:]
    rooms = [np.zeros(codec.payload_bytes, np.uint8) for codec in codecs]
    values = [np.zeros(codec.n, np.float32) for codec in codecs]
    arguments = {
        "values": [array.ctypes.data for array in values],
        "positions": [kernels.position()] * 2,
        "ratios": [1.0, 1.0],
        "states": in_place(codecs, [codec.state() for codec in codecs]),
    }
    compress = kernels.Batch("compress", codecs, rooms)
    for name, argument in arguments.items():
        for wrong in (argument[:1], [*argument, argument[0]]):
            message = f"{name} must be one for each of 2 codecs, got {len(wrong)}"
            with pytest.raises(ValueError, match=message):
                compress(**{**arguments, name: wrong})
    with pytest.raises(ValueError, match="payload must be one for each of 2 codecs, got 1"):
        kernels.Batch("compress", codecs, rooms[:1])


def test_a_batch_of_nothing_does_nothing():
    kernels.Batch("compress", [], [])([])


def test_a_payload_that_cannot_be_decoded_is_refused():
    codec = kernels.Codec("topk", {"k": 5}, 100)
    payload = np.full((1, codec.payload_bytes), 255, np.uint8)
    out = np.zeros(100, np.float32)
    with pytest.raises(ValueError):
        kernels.Batch("decompress", [codec], payloads=[payload])([out.ctypes.data])
