"""Inputs that mislead a threshold that is estimated from a sample."""

import numpy as np

from gluon_gc import kernels

N = 100_000  # large enough for a threshold from a sample, and for several blocks


def normal(random, n):
    return random.standard_normal(n)


def large_where_sampled(random, n, groups=256, runs=5):
    """Put 80 large values in topk/threshold.h's sample for k = 100, so it expects many more."""
    stride = n // groups
    values = normal(random, n)
    for group in range(runs):
        start = group * stride + ((group * 2654435761 % 2**32) * (stride - 15) >> 32)
        values[start : start + 16] += 100
    return values


DISTRIBUTIONS = {
    "normal": normal,
    "all zero": lambda random, n: np.zeros(n),
    "all equal": lambda random, n: np.full(n, -1.5),
    "of one magnitude": lambda random, n: random.choice([-2.0, 2.0], n),
    "half zero": lambda random, n: normal(random, n) * (random.random(n) < 0.5),
    "nearly all zero": lambda random, n: normal(random, n) * (random.random(n) < 2e-4),
    "few values": lambda random, n: random.integers(-3, 4, n),
    "nearly all of few values": lambda random, n: random.integers(-3, 4, n)
    * (1 + 1e-3 * normal(random, n)),
    "ascending": lambda random, n: np.sort(normal(random, n)),
    "descending": lambda random, n: np.sort(np.abs(normal(random, n)))[::-1],
    "periodic": lambda random, n: 1 + np.arange(n) % 128,
    "large ones in one place": lambda random, n: np.where(np.arange(n) // 700 == 3, 1e6, 1)
    * normal(random, n),
    "all equal but a few": lambda random, n: np.where(
        random.random(n) < 2e-3, normal(random, n), 0.1
    ),
    "large ones just in the sample": large_where_sampled,
    "heavy-tailed": lambda random, n: random.standard_cauchy(n),
    "denormal": lambda random, n: normal(random, n) * 1e-40,
    "denormal in float64": lambda random, n: normal(random, n) * 1e-310,
    "of all magnitudes": lambda random, n: normal(random, n) * 10.0 ** random.integers(-37, 37, n),
}


def assert_steps_equal_replay(compressor, replay, options, name, seed, dtype, isa, threads):
    """Assert that two steps with arrays of a distribution give the payloads of a replay."""
    codec = kernels.Codec(compressor, options, N, dtype, isa)
    numpy, state = replay(options, N, dtype), codec.state()
    for step in range(2):
        x = DISTRIBUTIONS[name](np.random.default_rng(seed + step), N)
        x = np.ascontiguousarray(x).astype(dtype)
        payload, _ = codec.compress(x, state, threads=threads)
        assert np.array_equal(payload, numpy.step(x)[0])
