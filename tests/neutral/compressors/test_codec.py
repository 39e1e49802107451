"""Properties that the codecs of all compressors share, whatever their payloads contain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import aggregate, valid

from .cases import (
    RATIOS,
    START,
    aligned_garbage,
    cases,
    compressed,
    copy_of,
    each_compressor,
    garbage_like,
    guard,
    isas_of,
    options_of,
    poison,
    positions,
    same_states,
    together,
)

scales = st.sampled_from([1.0, 0.25, 1 / 3])
paddings = st.sampled_from([0, 1, 60])


@each_compressor
@given(st.data())
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(name, data):
    case = data.draw(cases(name))
    scale, guarded = data.draw(scales), arrays.Guarded(data.draw(arrays.offsets))
    codec, replay, header = case.codec(), case.replay(), case.ratio_bytes
    workspace = poison(codec, 0xA5)
    state = guard(codec.state(), guarded)
    for step, (ratio, position) in enumerate(zip(RATIOS, positions(codec, len(RATIOS)))):
        values = guarded.copy(case.values(step))
        payload = guarded.empty(codec.payload_bytes, np.uint8)
        expected, decoded = replay.step(values, scale, ratio)

        kwargs = dict(scale=scale, ratio=ratio, threads=case.threads)
        _, wrote = codec.compress(values, state, position, payload=payload, **kwargs)
        out = guarded.empty(case.n, case.dtype)
        _, read = codec.decompress(payload, position, out=out, threads=case.threads)

        assert payload[:header].tobytes() == np.float64(ratio).tobytes()[:header]
        assert np.array_equal(payload[header : wrote.bytes], expected)
        assert wrote.bytes == read.bytes == codec.used(payload) <= codec.payload_bytes
        # Values that are sent as float16 may overflow.
        assert wrote.finite and read.finite == np.isfinite(decoded).all()
        assert arrays.same_bits(out, decoded)
        assert replay.drawn == (step + 1) * codec.draws
        if codec.momentum:
            assert arrays.same_bits(state.momentum, replay.momentum)
        if codec.memory:
            residual = codec.residual(state)
            assert np.array_equal(residual, replay.residual)
            replay.residual = residual  # the sign of a zero may differ
    guarded.check()
    workspace.check()


@each_compressor
@pytest.mark.parametrize("n", [2**20 + 12345, 128 * 16384 + 1])
@arrays.each_dtype
def test_large_arrays_are_the_same_bits_for_every_instruction_set_and_number_of_threads(
    name, n, dtype
):
    values = np.random.default_rng(n).standard_normal(n).astype(dtype)
    for options in options_of(name)[:2]:
        options = {**options, "mu": 0.9, "ef": "vanilla"}
        expected = None
        for isa in kernels.isas():
            codec = kernels.Codec(name, options, n, dtype, isa)
            for threads in (1, 2, 3):
                state = codec.state()
                payload, status = codec.compress(
                    values, state, *positions(codec, 1), threads=threads
                )
                result = payload[: status.bytes].tobytes(), state
                expected = expected or result
                assert result[0] == expected[0]
                assert same_states(state, expected[1])


@each_compressor
@given(st.data())
def test_payloads_are_added_in_their_order(name, data):
    case = data.draw(cases(name))
    codec, guarded = case.codec(), arrays.Guarded(data.draw(arrays.offsets))
    count = 1 if codec.traits.summable else data.draw(st.integers(0, 9))
    rows = compressed(case, codec, count, padding=data.draw(paddings))
    (position,) = positions(codec, 1)
    parts = [codec.decompress(row, position)[0] for row in rows]
    start = case.values(9)
    expected, added = np.zeros(case.n, case.dtype), start
    for i, part in enumerate(parts):
        expected = part if i == 0 else expected + part
        added = added + part

    workspace = poison(codec, 0xFF)
    payloads = guarded.copy(rows.ravel()).reshape(rows.shape)
    out, onto = guarded.empty(case.n, case.dtype), guarded.copy(start)
    _, status = codec.decompress(payloads, position, out=out, threads=case.threads)
    codec.decompress(payloads, position, out=onto, add=True, threads=case.threads)

    assert arrays.same_bits(out, expected)
    assert np.array_equal(onto, added, equal_nan=True)
    assert status.bytes == sum(codec.used(row) for row in rows)
    guarded.check()
    workspace.check()


@each_compressor
def test_calls_that_are_made_together_are_those_that_are_made_one_by_one(name):
    codecs = [kernels.Codec(name, {**options_of(name)[0], "mu": 0.9}, n) for n in (40, 1, 0, 999)]
    values = [arrays.awkward(codec.n, codec.dtype, 1) for codec in codecs]
    states, expected = ([codec.state() for codec in codecs] for _ in range(2))
    begin = kernels.position(START)
    with together("compress"):
        sent = [codec.compress(*given, begin) for codec, *given in zip(codecs, values, states)]
    with together("decompress"):
        decoded = [codec.decompress(*given, begin)[0] for codec, (*given, _) in zip(codecs, sent)]
    for codec, x, state, (payload, status), out in zip(codecs, values, expected, sent, decoded):
        ours, wrote = codec.compress(x, state, begin)
        assert np.array_equal(payload[: status.bytes], ours[: wrote.bytes])
        assert arrays.same_bits(out, codec.decompress(ours, begin)[0])
    assert all(map(same_states, states, expected))


def test_codecs_of_calls_that_are_made_together_differ_in_n_alone():
    first = kernels.Codec("onebit", {"ef": "vanilla"}, 5)
    others = [
        (kernels.Codec("bytegrad", {"ef": "vanilla"}, 5), "bytegrad of float32 with ef=vanilla"),
        (kernels.Codec("onebit", {"ef": "vanilla"}, 5, "float64"), "onebit of float64 with ef=van"),
        (kernels.Codec("onebit", {"scaling": True}, 5), "onebit of float32 with scaling=True"),
    ]
    if "cuda" in isas_of("onebit"):
        on_gpu = kernels.Codec("onebit", {}, 5, isa="cuda")
        others.append((on_gpu, "onebit of float32 on the GPU, call 0 has"))
    for other, called in others:
        with pytest.raises(ValueError, match=f"differ in n only: call 1 has {called}"):
            with together("compress"):
                for codec in (first, other):
                    codec.compress(np.zeros(5, codec.dtype), codec.state())


@each_compressor
@given(st.data())
def test_aggregation_is_decompression_of_all_and_compression_with_their_ratio(name, data):
    case = data.draw(cases(name))
    codec = case.codec()
    if codec.traits.summable:
        with pytest.raises(ValueError, match="summable payloads are added, not aggregated"):
            aggregate(codec, np.zeros((2, codec.payload_bytes), np.uint8), codec.state())
        with pytest.raises(ValueError, match="summable payloads are decompressed one at a time"):
            codec.decompress(np.zeros((2, codec.payload_bytes), np.uint8))
        return
    worker, count = codec.state(), data.draw(st.integers(1, 9))
    ours, expected = codec.state(), codec.state()
    workspace = poison(codec, 0xFF)
    for ratio, position in zip((1.0, 0.5), positions(codec, 2)):
        rows = compressed(case, codec, count, worker)
        if case.ratio_bytes:
            rows[:, :8] = np.array([ratio]).view(np.uint8)
        payload, status = aggregate(codec, rows, ours, position, threads=case.threads)
        total, _ = codec.decompress(rows)
        again, _ = codec.compress(total, expected, position, ratio=ratio)
        assert np.array_equal(payload[: status.bytes], again[: status.bytes])
        assert same_states(ours, expected)
    workspace.check()


@each_compressor
@given(st.data(), st.booleans())
def test_a_call_can_read_one_state_and_write_another_with_the_same_bits(name, data, bad):
    case = data.draw(cases(name))
    codec, guarded = case.codec(), arrays.Guarded(data.draw(arrays.offsets))
    expected, earlier = codec.state(), guard(codec.state(), guarded)
    workspace = poison(codec, 0xFF)
    for step, (ratio, position) in enumerate(zip(RATIOS, positions(codec, len(RATIOS)))):
        values = case.values(step)
        if bad and step == 2 and case.n:
            values[case.seed % case.n] = np.nan
        kwargs = dict(ratio=ratio, threads=case.threads)
        ours, wrote = codec.compress(values, expected, position, **kwargs)
        before, state = copy_of(earlier), guard(garbage_like(earlier), guarded)
        payload, status = codec.compress(values, state, position, earlier=earlier, **kwargs)
        assert np.array_equal(payload[: status.bytes], ours[: wrote.bytes])
        assert (status.bytes, status.finite) == (wrote.bytes, wrote.finite)
        assert same_states(state, expected) and same_states(earlier, before)
        earlier = state
    if not codec.traits.summable:
        rows = compressed(case, codec, 2)
        before, state = copy_of(earlier), guard(garbage_like(earlier), guarded)
        ours, wrote = aggregate(codec, rows, expected, position, threads=case.threads)
        payload, _ = aggregate(codec, rows, state, position, threads=case.threads, earlier=earlier)
        assert np.array_equal(payload[: wrote.bytes], ours[: wrote.bytes])
        assert same_states(state, expected) and same_states(earlier, before)
    guarded.check()
    workspace.check()


@each_compressor
def test_large_arrays_whose_state_is_written_elsewhere_are_the_same_bits(name):
    n = 2**20 + 12345
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    options = {**options_of(name)[0], "mu": 0.9, "ef": "vanilla"}
    for isa, threads in zip(kernels.isas(), (1, 3, 2)):
        codec = kernels.Codec(name, options, n, isa=isa)
        expected, earlier = codec.state(), codec.state()
        for position in positions(codec, 2):
            state = aligned_garbage(codec)
            ours, wrote = codec.compress(values, expected, position)
            payload, _ = codec.compress(values, state, position, threads=threads, earlier=earlier)
            assert np.array_equal(payload[: wrote.bytes], ours[: wrote.bytes])
            assert same_states(state, expected)
            earlier = state


@pytest.mark.parametrize("isa", kernels.isas())
def test_payloads_with_different_ratios_are_refused_since_learning_rates_differ(isa):
    codec = kernels.Codec("onebit", {"ef": "corrected"}, 100, "float32", isa)
    values, state = np.ones(100, np.float32), codec.state()
    rows = np.stack([codec.compress(values, state, ratio=ratio)[0] for ratio in (0.5, 0.5, 0.25)])
    said = "learning rates of workers differ: .* is 0.25 for payload 2, but 0.5 for payload 0"
    for call in (lambda: aggregate(codec, rows, codec.state()), lambda: codec.decompress(rows)):
        with pytest.raises(ValueError, match=said):
            call()
    codec.decompress(rows[:2])


@each_compressor
@given(st.data())
def test_going_on_from_a_saved_residual_is_bit_identical_to_never_having_stopped(name, data):
    case = data.draw(cases(name, ef="corrected"))
    codec = case.codec()
    straight, stopped = codec.state(), codec.state()
    for step, position in enumerate(positions(codec, 4)):
        saved = codec.residual(stopped)
        stopped = kernels.State(stopped.momentum, codec.state().memory)
        codec.restore(stopped, saved)
        assert arrays.same_bits(codec.residual(stopped), saved)
        (a, status), (b, _) = (
            codec.compress(case.values(step), state, position, ratio=(1.0, 0.5)[step % 2])
            for state in (straight, stopped)
        )
        assert np.array_equal(a[: status.bytes], b[: status.bytes])
        assert same_states(straight, stopped)


def made_from(case, value):
    """Return the results of three steps, with uninitialised memory filled with this byte value."""
    codec = case.codec()
    poison(codec, value)
    state, results = codec.state(), []
    for step, position in enumerate(positions(codec, 3)):
        payload = np.full(codec.payload_bytes, value, np.uint8)
        codec.compress(case.values(step), state, position, payload=payload)
        out = np.full(case.n * codec.dtype.itemsize, value, np.uint8).view(case.dtype)
        codec.decompress(payload, position, out=out)
        results += [payload[: codec.used(payload)].tobytes(), out.tobytes()]
    return results, state


@each_compressor
@given(st.data())
def test_nothing_depends_on_what_is_in_memory_that_is_not_initialised(name, data):
    case = data.draw(cases(name))
    results, state = made_from(case, 0)
    for value in (0x7F, 0xFF):
        again, state_again = made_from(case, value)
        assert again == results and same_states(state, state_again)


@each_compressor
@given(st.data(), st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))
def test_what_is_not_finite_shows_where_it_is_decoded_and_nothing_is_kept_of_it(name, data, bad):
    case = data.draw(cases(name, sizes=st.sampled_from([1, 17, 99, 5000, 70_001])))
    codec = case.codec()
    begin, first, second = positions(codec, 3)
    state = codec.state()
    codec.compress(case.values(), state, begin)
    values = case.values(1)
    if codec.traits.summable and not codec.memory and not codec.momentum:
        values[:] = bad  # a single one might not be drawn, and so not even read
    else:
        values[data.draw(st.integers(0, case.n - 1))] = bad

    payload, wrote = codec.compress(values, state, first, threads=case.threads)
    with np.errstate(invalid="ignore"):
        out, read = codec.decompress(payload, first)

    assert wrote.finite == read.finite == 0
    assert not np.isfinite(out).all()
    assert valid(codec, payload) and wrote.bytes <= codec.payload_bytes
    assert same_states(state, codec.state())
    if not codec.traits.summable:
        rows = np.stack([codec.compress(case.values(), codec.state(), begin)[0], payload])
        _, summed = codec.decompress(rows)
        answer, aggregated = aggregate(codec, rows, state, second)
        assert summed.finite == aggregated.finite == 0
        assert codec.decompress(answer, second)[1].finite == 0
        assert same_states(state, codec.state())


def decoded_between_fences(case, codec, payload):
    """Return whether a payload is valid; if so, decode it, and aggregate it if possible."""
    guarded = arrays.Guarded()
    (position,) = positions(codec, 1)
    room = guarded.empty(codec.payload_bytes, np.uint8)
    room[: payload.size] = payload
    poison(codec, 0xFF)
    if not valid(codec, room):
        if codec.isa != "cuda":  # a GPU gets only valid payloads
            with pytest.raises(ValueError, match=f"payload 0 is not one of {case.n} elements"):
                codec.decompress(room, position)
        return False
    with np.errstate(all="ignore"):
        out = guarded.empty(case.n, case.dtype)
        codec.decompress(room, position, out=out, threads=case.threads)
        out[:] = 0
        codec.decompress(room, position, out=out, add=True, threads=case.threads)
        if not codec.traits.summable:
            aggregate(codec, room[None], guard(codec.state(), guarded), position)
    guarded.check()
    return True


@each_compressor
@given(st.data())
def test_flipped_bits_are_refused_or_stay_in_bounds(name, data):
    case = data.draw(cases(name, sizes=st.sampled_from([0, 1, 40, 3000])))
    codec = case.codec()
    payload, status = codec.compress(case.values(), codec.state(), *positions(codec, 1))
    place = st.integers(0, max(int(status.bytes) - 1, 0))
    flips = data.draw(st.lists(st.tuples(place, st.integers(1, 255)), max_size=4))
    for at, bits in flips if status.bytes else ():
        payload[at] ^= bits
    assert decoded_between_fences(case, codec, payload) or flips


@each_compressor
@given(st.data(), st.binary(max_size=300))
def test_random_bytes_are_refused_or_stay_in_bounds(name, data, noise):
    case = data.draw(cases(name, sizes=st.integers(0, 400)))
    codec = case.codec()
    payload = np.zeros(codec.payload_bytes, np.uint8)
    noise = np.frombuffer(noise, np.uint8)[: payload.size]
    payload[: noise.size] = noise
    at = codec.length_at
    if at is not None and data.draw(st.booleans()):
        length = data.draw(st.integers(0, payload.size))
        payload[at : at + 4] = np.array([length], np.uint32).view(np.uint8)[: payload.size - at]
    decoded_between_fences(case, codec, payload)


@each_compressor
@given(st.data())
def test_a_payload_that_is_cut_off_is_refused(name, data):
    case = data.draw(cases(name, sizes=st.integers(1, 300)))
    codec = case.codec()
    payload, status = codec.compress(case.values(), codec.state(), *positions(codec, 1))
    assert valid(codec, arrays.Guarded().copy(payload[: status.bytes]))
    for size in {0, 1, 3, 8, data.draw(st.integers(0, status.bytes - 1)), status.bytes - 1}:
        if size < status.bytes:
            assert not valid(codec, arrays.Guarded().copy(payload[:size]))


@each_compressor
def test_a_position_decides_what_is_drawn_and_a_call_draws_as_many_as_the_codec_says(name):
    n = 20_000
    values = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    codec = kernels.Codec(name, options_of(name)[0], n)

    def payload_at(position):
        payload, status = codec.compress(values, codec.state(), position)
        return payload[: status.bytes].tobytes()

    places = [kernels.position(START, draws) for draws in range(20)]
    payloads = [payload_at(position) for position in places]
    assert payloads == [payload_at(position) for position in places]
    assert (len(set(payloads)) > 1) == (codec.draws > 0)

    moved = np.array(START, np.uint64)
    kernels.jump(moved, 2**40 + codec.draws)
    on = kernels.position(START, 2**40 + codec.draws)
    assert payload_at(kernels.position(moved)) == payload_at(on)
