"""Uncompressed gradients on a GPU: the operators give the same values as on the CPU."""

import itertools

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.mxnet.engine import operators
from tests.mxnet.compressors.test_message_coder import failing

DTYPES = ("float16", "float32", "float64")
GPUS = (mx.gpu(0), mx.gpu(1))
SIZES, PLACES = (1500, 1, 70, 3000), ((0, 0), (1, 3), (1, 4), (2, 1))
"""The slices, and their gradients and starts; the gradients have further elements."""
LENGTHS = (1500, 80, 3003)
slices = operators.MessageAttribute(sizes=operators.listed(SIZES))


def gradients(context, dtypes):
    random = np.random.default_rng(0)
    values = [100 * random.standard_normal(n) for n in LENGTHS]
    return [mx.nd.array(x, context, dtype) for x, dtype in zip(values, itertools.cycle(dtypes))]


def fused(arrays, dtype, factor=None):
    factors = [] if factor is None else [mx.nd.array([factor], arrays[0].context, "float64")]
    attributes = dict(metered=0, clipped=len(factors), dtype=dtype)
    now = slices(f"fuse {dtype}", attributes, len(arrays), PLACES, scale=1 / 3)
    return operators.call("fuse", (*arrays, *factors), **now)


def defused(values, results):
    """Return the written arrays, and flags for slices with non-finite values."""
    attributes = dict(metered=0, checked=operators.listed([1, 1, 0, 1]))
    flags = operators.call(
        "defuse", (values, *results), **slices("defuse", attributes, len(results), PLACES)
    )
    return [array.asnumpy() for array in (*results, flags)]


def same(ours, theirs):
    return [one.tobytes() for one in ours] == [one.tobytes() for one in theirs]


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [None, 0.7])
def test_values_are_fused_and_written_back_as_on_the_cpu(gpu, dtype, factor):
    for dtypes in (DTYPES, DTYPES[1:] + DTYPES[:1]):
        here, there = (fused(gradients(ctx, dtypes), dtype, factor) for ctx in (mx.cpu(), gpu))
        assert there.context == gpu and there.dtype == np.dtype(dtype)
        assert same([there.asnumpy()], [here.asnumpy()])
        for bad in (None, 0, 1501, 4000):
            values = here.asnumpy()
            if bad is not None:
                values[bad] = np.inf
            nodes = [mx.nd.array(values, ctx, values.dtype) for ctx in (mx.cpu(), gpu)]
            ours, theirs = (defused(x, gradients(x.context, dtypes)) for x in nodes)
            assert same(theirs, ours)
            found = [bad == 0, False, False, bad == 4000]  # the third slice is not checked
            assert theirs[-1].dtype == np.int64 and theirs[-1].tolist() == found


def test_arrays_that_are_no_floats_are_refused_on_a_gpu():
    arrays = gradients(mx.gpu(), DTYPES[1:])
    arrays[1] = arrays[1].astype("int32")
    with failing("an array on a GPU must be float16, float32 or float64"):
        fused(arrays, "float32").wait_to_read()


def test_a_meter_is_refused_on_a_gpu():
    values = fused(gradients(mx.gpu(), DTYPES), "float32")
    attributes = dict(gradients=1, tensors="0,", begins="0,", sizes="9,", checked="0,", metered=1)
    with failing("there is no meter on a GPU: metered must be 0"):
        operators.call("defuse", (values, mx.nd.zeros(9, mx.gpu())), **attributes).wait_to_read()
