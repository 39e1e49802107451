"""The emulated GPUs for MXNet: what works on them, and what must fail."""

import ctypes
import itertools
import os
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest

CONTEXTS = (mx.cpu(), mx.cpu_pinned(), mx.gpu(0), mx.gpu(1))
each_gpu = pytest.mark.parametrize("gpu", [mx.gpu(0), mx.gpu(1)], ids=str)


def said_of(code, **variables):
    """Run code in a new Python; returns its output and errors."""
    command, environment = [sys.executable, "-c", code], {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    return done.stdout, done.stderr


@pytest.mark.parametrize("count", [1, 2])
def test_there_are_as_many_gpus_as_are_asked_for(count):
    code = "import mxnet as mx; print(mx.context.num_gpus())"
    assert said_of(code, EMULATED_GPUS=str(count)) == (f"{count}\n", "")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64"])
@pytest.mark.parametrize("begin, end", itertools.permutations(CONTEXTS, 2), ids=str)
def test_arrays_are_copied_from_each_device_to_each_other(begin, end, dtype):
    values = np.arange(10007).astype(dtype)
    there = mx.nd.array(values, ctx=begin, dtype=dtype).as_in_context(end)
    assert there.context == end
    assert np.array_equal(there.asnumpy(), values)
    kept = mx.nd.array(values[:9], ctx=end, dtype=dtype)
    there[5:14].copyto(kept)
    assert np.array_equal(kept.asnumpy(), values[5:14])


@each_gpu
def test_memory_of_a_gpu_is_not_zero_to_begin_with(gpu):
    assert mx.nd.empty(1000, ctx=gpu).asnumpy().any()


@each_gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64"])
def test_zeros_are_zeros(gpu, dtype):
    mx.nd.array(np.full(1000, 7), ctx=gpu, dtype=dtype).wait_to_read()
    zeros = mx.nd.zeros(1000, ctx=gpu, dtype=dtype)
    assert zeros.dtype == np.dtype(dtype) and not zeros.asnumpy().any()


@each_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_and_multiples_are_what_they_are_on_the_cpu(gpu, dtype):
    a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(dtype)
    x, y = (mx.nd.array(values, ctx=gpu, dtype=dtype) for values in (a, b))
    x += y
    assert np.array_equal(x.asnumpy(), a + b)
    assert np.array_equal((x * 0.5).asnumpy(), (a + b) * 0.5)
    assert (mx.nd.ones(1000, ctx=gpu, dtype=dtype).asnumpy() == 1).all()


def has_protection_keys():
    libc = ctypes.CDLL(None)
    key = libc.pkey_alloc(0, 0)
    return key != -1 and libc.pkey_free(key) == 0


@pytest.mark.skipif(not has_protection_keys(), reason="the processor has no protection keys")
def test_the_host_may_not_touch_the_memory_of_a_gpu():
    code = "import ctypes, mxnet as mx; x = mx.nd.zeros(10, ctx=mx.gpu()); x.wait_to_read()\n"
    code += "address = ctypes.c_void_p()\n"
    code += "mx.base._LIB.MXNDArrayGetData(x.handle, ctypes.byref(address))\n"
    assert said_of(code) == ("", "")
    touched, error = said_of(code + "print(ctypes.string_at(address, 1))")
    assert touched == "" and "Segmentation fault" in error
