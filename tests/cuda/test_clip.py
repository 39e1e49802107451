"""The GPU's clipping factor has the same bits as that of MXNet's operator on the CPU."""

import ctypes

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.kernels.library import Clipping, Values, check, library
from gluon_gc.mxnet.engine import operators
from tests.neutral.kernels import arrays

STREAM, SCALE = 9, 1 / 3
SIZES = (0, 1, 31, 1000, 1024, 1025, 5, 70001, 2**20 + 4321)


def values_of(dtype, sizes, seed=0):
    """Return arrays of all magnitudes whose squares are finite."""
    random = np.random.default_rng(seed)
    most = 4 if dtype == "float16" else 18
    return [
        (random.standard_normal(n) * 10.0 ** random.integers(-most, most, n)).astype(dtype)
        for n in sizes
    ]


def clip(values, max_norm):
    """Return the factor that the GPU computes."""
    guarded = arrays.Guarded()
    copies = [guarded.copy(x) for x in values]
    described = [Values(x.ctypes.data, x.size, x.itemsize) for x in copies]
    described = (Values * len(described))(*described), len(described)
    size = library.gluon_gc_clip_workspace(*described)
    workspace = arrays.Guarded(-size % 64 // 8).empty(size // 8, np.float64)
    factor = guarded.empty(1, np.float64)
    clipping = Clipping(SCALE, max_norm, factor.ctypes.data, workspace.ctypes.data, STREAM)
    check(library.gluon_gc_clip(*described, ctypes.byref(clipping)))
    guarded.check()
    return factor[0]


def expected(values, max_norm):
    given = [mx.nd.array(x, dtype=x.dtype) for x in values if x.size]
    return operators.clip_factor(given, SCALE, max_norm).asnumpy()[0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_factor_is_that_of_the_cpu(gpu, dtype):
    values = values_of(dtype, SIZES)
    for seed, max_norm in enumerate((1e-3, 1.0, 12345.0, 1e300)):
        gpu.emulator_seed(seed)
        assert clip(values, max_norm) == expected(values, max_norm)


def test_many_arrays_of_several_dtypes_take_few_launches(gpu):
    values = [x for dtype in ("float32", "float64") for x in values_of(dtype, [10] * 100, 1)]
    gpu.emulator_queued(ctypes.c_void_p(STREAM))
    assert clip(values, 1.0) == expected(values, 1.0) != 1
    assert gpu.emulator_queued(ctypes.c_void_p(STREAM)) <= 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_change_the_other_gradients(gpu, value):
    values = values_of("float32", (1000, 5000))
    values[1][4321] = value
    assert clip(values, 1.0) == expected(values, 1.0) == 1
