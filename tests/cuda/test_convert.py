"""Array conversions on the GPU give the same bits as MXNet's operators on the CPU."""

import ctypes
import itertools

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.kernels.library import Conversion, check, library
from gluon_gc.mxnet.engine import operators
from tests.neutral.kernels import arrays

DTYPES = ("float16", "float32", "float64")
SCALES = (1.0, 1 / 3, -2.5, 1e-5, np.inf, np.nan)
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)
STREAM = 9


def awkward(dtype):
    """Return all float16 values; for other dtypes also ties, their neighbours, and random bits."""
    if dtype == "float16":
        return HALVES
    exact = np.sort(HALVES[np.isfinite(HALVES)]).astype(dtype)
    ties = (exact[1:] + exact[:-1]) / 2
    beside = [np.nextafter(ties, np.array(end, dtype)) for end in (-np.inf, np.inf)]
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32).view(dtype)
    with np.errstate(invalid="ignore"):
        return np.concatenate([HALVES.astype(dtype), ties, *beside, bits])


def convert(values, out, scale=1.0, factor=None, nonfinite=None):
    """Return the library's description of out = values * scale."""
    return Conversion(
        values.ctypes.data,
        out.ctypes.data,
        values.size,
        values.itemsize,
        out.itemsize,
        scale,
        factor.ctypes.data if factor is not None else None,
        nonfinite.ctypes.data if nonfinite is not None else None,
    )


def run(conversions):
    check(
        library.gluon_gc_convert(
            (Conversion * len(conversions))(*conversions), len(conversions), STREAM
        )
    )


def on_the_cpu(values, dtype, scale):
    """Convert an array on the CPU with gluon_gc_fuse."""
    x = mx.nd.array(values, dtype=values.dtype)
    fused = operators.call(
        "fuse",
        (x,),
        gradients=1,
        tensors="0,",
        begins="0,",
        sizes=f"{x.size},",
        dtype=dtype,
        scale=repr(scale),
    )
    return fused.asnumpy()


def same_bits(a, b):
    return np.array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


@pytest.mark.parametrize("made, dtype", itertools.product(DTYPES, DTYPES))
def test_every_value_becomes_the_bits_that_it_becomes_on_the_cpu(made, dtype):
    values = awkward(made)
    for scale in SCALES:
        if np.isnan(scale):
            values = values[~np.isnan(values)]  # the CPU may return either of two NaNs
        out = np.empty(values.size, dtype)
        run([convert(values, out, scale)])
        assert same_bits(out, on_the_cpu(values, dtype, scale)), f"times {scale}"


def test_many_arrays_of_all_dtypes_take_one_launch(gpu):
    guarded = arrays.Guarded(0)
    sizes = (0, 1, 5, 1023, 1024, 1025, 60_000)
    kinds = [(n, *dtypes) for n in sizes for dtypes in itertools.product(DTYPES, DTYPES)]
    given = [guarded.copy(awkward(dtype)[-n:][:n].copy()) for n, dtype, _ in kinds]
    outs = [guarded.copy(np.zeros(n, dtype)) for n, _, dtype in kinds]
    factor = guarded.copy(np.array([0.3]))
    conversions = [convert(x, out, 0.7, factor) for x, out in zip(given, outs)]
    assert len(conversions) == 63
    gpu.emulator_queued(ctypes.c_void_p(STREAM))
    run(conversions)
    assert gpu.emulator_queued(ctypes.c_void_p(STREAM)) == 1
    run(conversions * 2)
    assert gpu.emulator_queued(ctypes.c_void_p(STREAM)) == 2
    for x, out in zip(given, outs):
        assert not x.size or same_bits(out, on_the_cpu(x, out.dtype.name, 0.7 * 0.3))
    guarded.check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_said_to_be_there(dtype, bad):
    values = np.full(5000, np.finfo(dtype).max, dtype)
    said, out = np.zeros(3, np.uint64), np.empty(5000, "float16")
    spoilt = values.copy()
    spoilt[4321] = bad
    run(
        [convert(x, out, nonfinite=said[i:]) for i, x in enumerate((values, spoilt, spoilt[:4321]))]
    )
    assert said.tolist() == [0, 1, 0]


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="itemsize must be 2 .*, got 1$"):
        run([convert(np.zeros(3, np.int8), np.zeros(3))])
