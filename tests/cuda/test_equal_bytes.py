"""Every compressor with CUDA kernels gives the CPU's bytes, and its calls only queue work."""

import ctypes

import numpy as np
import pytest

from gluon_gc import kernels
from tests.neutral.compressors.cases import options_of, positions, together
from tests.neutral.compressors.distributions import DISTRIBUTIONS

from . import emulator, equal

START = kernels.position((2**63 + 12345, 987654321), 5)

each_compressor = pytest.mark.parametrize("name", emulator.COMPRESSORS)


def test_the_library_knows_which_compressors_have_kernels_for_cuda():
    found = {name for name, traits in kernels.compressors().items() if traits.cuda}
    assert found == set(emulator.COMPRESSORS)


@each_compressor
def test_the_bytes_are_those_of_the_cpu(gpu, name):
    gpu.emulator_seed(0)
    equal.check_all(name)


@pytest.mark.parametrize("distribution", equal.MISLEADING)
@pytest.mark.parametrize("name", equal.SAMPLED)
def test_no_distribution_defeats_the_sample(gpu, name, distribution):
    gpu.emulator_seed(len(distribution))
    equal.check_distribution(
        name, distribution, {"topk": {"ef": "vanilla"}, "dgc": {"mu": 0.9}}[name]
    )


@pytest.mark.parametrize(
    "n, k",
    [(1, 1), (1, 10**6), (1025, 7), (1025, 0.9999)]
    + [(equal.N_SAMPLED, k) for k in (1, 0.3, 10**6)],
)
def test_topk_sends_one_or_all_of_them(n, k):
    equal.check("topk", {"k": k}, n, np.float32, n)
    equal.check("topk", {"k": k, "ef": "corrected", "mu": 0.9}, n, np.float64, n)


@pytest.mark.parametrize("k", [100, 5000])
def test_topk_of_a_large_tensor_has_a_larger_sample(k):
    n = 2**20 + 1
    values = np.random.default_rng(k).standard_normal(n).astype(np.float32)
    cpu, gpu = (kernels.Codec("topk", {"k": k}, n, np.float32, isa) for isa in (None, "cuda"))
    assert np.array_equal(gpu.compress(values)[0], cpu.compress(values)[0])


@pytest.mark.parametrize("options", options_of("dgc"), ids=str)
def test_all_options_of_dgc_give_the_bytes_of_the_cpu(options):
    equal.check("dgc", options, equal.N_SAMPLED, np.float32, 1, ratios=(1.0, 1.0))
    equal.check("dgc", {**options, "mu": 0.9}, 5000, np.float64, 2)


def with_many_nans(random, n):
    values = random.standard_normal(n)
    values[random.random(n) < 0.3] = -np.nan
    values[random.random(n) < 0.1] = np.nan
    values[random.random(n) < 0.1] = -np.inf
    return values


@pytest.mark.parametrize("value_bits", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocktopk_chooses_and_rounds_as_the_cpu(value_bits, dtype):
    inputs = {**DISTRIBUTIONS, "with many NaNs": with_many_nans}
    for seed, (name, distribution) in enumerate(inputs.items()):
        feedback = {"ef": "vanilla", "ef_decay": 0.9} if seed % 2 else {}
        options = {"k": (64, 0.9)[seed % 3 == 0], "block": 4096, "value_bits": value_bits}

        def values_of(n, dtype, seed, distribution=distribution):
            values = distribution(np.random.default_rng(seed), n)
            return np.ascontiguousarray(values).astype(dtype)

        try:
            equal.check(
                "blocktopk", {**options, **feedback}, 10_011, dtype, seed, values_of=values_of
            )
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@each_compressor
def test_a_million_elements_are_summed_in_several_levels_as_on_the_cpu(name):
    options = {**options_of(name, "cuda")[0], "ef": "vanilla"}
    equal.check(name, options, 2**20 + 4321, np.float32, ratios=(1.0, 1.0))


def test_dithering_draws_for_longer_segments_of_larger_arrays_what_the_cpu_draws():
    n, options = 2**21 + 4321, {"k": 5, "fixed_width": True}
    values = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    codecs = [kernels.Codec("dithering", options, n, isa=isa) for isa in (None, "cuda")]
    (cpu, _), (gpu, _) = (codec.compress(values, position=START) for codec in codecs)
    assert np.array_equal(cpu, gpu)


@each_compressor
def test_calls_for_many_sizes_that_are_made_together_give_the_bytes_of_the_cpu(name):
    equal.check_all_together(name)


@each_compressor
def test_sixteen_calls_take_as_many_launches_as_one(gpu, name):
    def launches(count):
        options = {**options_of(name, "cuda")[0], "mu": 0.9}
        codecs = [
            kernels.Codec(name, options, n, isa="cuda", stream=7) for n in range(1, count + 1)
        ]
        gpu.emulator_queued(ctypes.c_void_p(7))
        states = [codec.state() for codec in codecs]
        with together("compress"):
            payloads = [
                codec.compress(np.ones(codec.n, np.float32), state)[0]
                for codec, state in zip(codecs, states)
            ]
        compress = gpu.emulator_queued(ctypes.c_void_p(7))
        with together("decompress"):
            for codec, payload in zip(codecs, payloads):
                codec.decompress(payload)
        return compress, gpu.emulator_queued(ctypes.c_void_p(7))

    assert launches(16) == launches(1)
    one, many = np.array(launches(1)), np.array(launches(64))
    assert (one < many).all() and (many <= 4 * one).all()


def test_calls_that_are_made_together_are_queued_in_one_stream():
    codecs = [kernels.Codec("onebit", {}, 5, isa="cuda", stream=stream) for stream in (7, 8)]
    with pytest.raises(ValueError, match="queued together must have one stream"):
        with together("compress"):
            for codec in codecs:
                codec.compress(np.ones(5, np.float32))


@each_compressor
def test_calls_queue_in_the_callers_stream_and_nothing_waits_for_what_they_compute(gpu, name):
    options, n, stream = {**options_of(name, "cuda")[0], "ef": "corrected", "mu": 0.9}, 5000, 0x1234
    cpu = kernels.Codec(name, options, n)
    codec = kernels.Codec(name, options, n, isa="cuda", stream=stream)
    values = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    state, expected = codec.state(), cpu.state()
    rows = np.full((2, codec.payload_bytes), 0xA5, np.uint8)
    out = np.zeros(n, np.float32)

    gpu.emulator_queued(ctypes.c_void_p(stream))
    gpu.emulator_hold()
    kept = [
        codec.compress(x, state, position, ratio=0.5, payload=row)
        for row, x, position in zip(rows, values, positions(codec, 2))
    ]
    count = 1 if codec.traits.summable else 2
    kept.append(codec.decompress(rows[:count], *positions(codec, 1), out=out))
    untouched = (rows == 0xA5).all() and not out.any()
    released = gpu.emulator_release()

    assert untouched and released == 0
    assert all(status.finite and status.bytes for _, status in kept)
    assert gpu.emulator_queued(ctypes.c_void_p(stream)) >= 3
    for row, x, position in zip(rows, values, positions(cpu, 2)):
        payload, status = cpu.compress(x, expected, position, ratio=0.5)
        assert np.array_equal(row[: status.bytes], payload[: status.bytes])
    assert np.array_equal(out, cpu.decompress(rows[:count], *positions(cpu, 1))[0])


def test_tickets_become_zeros_in_the_stream(gpu):
    tickets = np.full(4 * 64, 0xA5, np.uint8)
    gpu.emulator_queued(ctypes.c_void_p(7))
    assert kernels.library.gluon_gc_clear(tickets.ctypes.data, 3 * 64, 7) is None
    assert not tickets[: 3 * 64].any() and (tickets[3 * 64 :] == 0xA5).all()
    assert gpu.emulator_queued(ctypes.c_void_p(7)) == 1


@pytest.mark.parametrize("name", ["onebit", "blocktopk"])
def test_compress_is_one_launch_and_decompress_too(gpu, name):
    options = {**options_of(name)[0], "ef": "vanilla", "mu": 0.9}
    codec = kernels.Codec(name, options, 5000, isa="cuda", stream=7)
    gpu.emulator_queued(ctypes.c_void_p(7))
    payload, _ = codec.compress(np.ones(5000, np.float32), codec.state())
    assert gpu.emulator_queued(ctypes.c_void_p(7)) == 1
    codec.decompress(np.stack([payload, payload]))
    assert gpu.emulator_queued(ctypes.c_void_p(7)) == 1


@pytest.mark.parametrize(
    "name, options, n, width",
    [
        ("onebit", {}, 0, 1),
        ("onebit", {}, 8 * 1024, 1),
        ("onebit", {}, 8 * 1024 + 1, 2),
        ("blocktopk", {"block": 256}, 0, 1),
        ("blocktopk", {"block": 256}, 5 * 256, 5),
        ("blocktopk", {"block": 4096}, 2 * 4096 + 1, 3),
        ("blocktopk", {"block": 256}, 70_000, 6),  # no more than run at the same time
    ],
)
def test_a_warp_takes_a_tile_and_a_thread_block_takes_a_block_of_blocktopk(
    gpu, name, options, n, width
):
    codec = kernels.Codec(name, {**options_of(name)[0], **options}, n, isa="cuda")
    payload, _ = codec.compress(np.ones(n, np.float32))
    assert gpu.emulator_width() == width
    codec.decompress(payload)
    assert gpu.emulator_width() == width


@pytest.mark.parametrize(
    "name, options, launches",
    [
        ("topk", {"k": 0.01, "ef": "vanilla"}, 7),
        ("dgc", {"max_adaptation_iters": 2}, 12),
        ("dgc", {"max_adaptation_iters": 2, "resample": False, "gradient_clipping": 1.0}, 10),
    ],
)
def test_how_many_launches_a_search_takes_does_not_depend_on_the_values(
    gpu, name, options, launches
):
    n, stream = equal.N_SAMPLED, 7
    options = {**options_of(name)[0], **options}
    codec = kernels.Codec(name, options, n, isa="cuda", stream=stream)
    gpu.emulator_queued(ctypes.c_void_p(stream))
    for values in (np.ones(n, np.float32), np.arange(n, dtype=np.float32)):
        payload, _ = codec.compress(values, codec.state())
        assert gpu.emulator_queued(ctypes.c_void_p(stream)) == launches
    codec.decompress(np.stack([payload] * 3))
    assert gpu.emulator_queued(ctypes.c_void_p(stream)) == 1 + 3
