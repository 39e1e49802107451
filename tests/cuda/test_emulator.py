"""The emulator: valid kernels give a GPU's results, and invalid kernels give errors."""

import ctypes
import re

import numpy as np
import pytest

from . import emulator

THREADS = 256


@pytest.fixture(scope="module")
def run(gpu, tmp_path_factory):
    """Launch a kernel of kernels.cu on an array; returns the driver's error, or None."""
    folder = tmp_path_factory.mktemp("kernels")
    compiled = emulator.compile_module(emulator.HERE / "kernels.cu", folder)
    image, module = compiled.read_bytes(), ctypes.c_void_p()
    assert gpu.cuModuleLoadData(ctypes.byref(module), image) == 0

    def launch(name, out, blocks=8, calls=1, threads=THREADS):
        kernel, address = ctypes.c_void_p(), ctypes.c_void_p(out.ctypes.data)
        assert gpu.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode()) == 0
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        sizes = (blocks, calls, 1, threads, 1, 1, 0)
        if gpu.cuLaunchKernel(kernel, *sizes, None, parameters, None) == 0:
            return None
        text = ctypes.c_char_p()
        gpu.cuGetErrorString(719, ctypes.byref(text))
        return text.value.decode()

    return launch


@pytest.mark.parametrize(
    "name, error",
    [
        ("two_barriers", r"threads of a block wait at .*kernels.cu:\d+ and at .*kernels.cu:\d+"),
        ("thread_that_leaves", r"not all threads of a block come to .*kernels.cu:\d+"),
        ("lane_that_leaves", "not all lanes of a warp come to a ballot"),
        ("two_operations", "lanes of a warp meet in a (ballot and a shuffle|shuffle and a ballot)"),
        ("some_lanes", "a warp's operation is not one of all lanes"),
        ("without_a_fence", "tells others of what was written without a fence"),
    ],
)
def test_what_a_gpu_does_not_allow_is_an_error(run, name, error):
    said = run(name, np.zeros(4, np.uint32))
    assert re.search(error, said)
    assert run("grid", np.zeros(1, np.uint32)) is None  # the next launch works again


def test_a_warp_votes_and_exchanges_values(run):
    out = np.zeros((7, THREADS), np.uint32)
    assert run("operations", out) is None
    thread = np.arange(THREADS)
    assert (out[0] == 0b01001001001001001001001001001001).all()
    assert (out[1] == 70).all()
    assert np.array_equal(out[2], 2 * (thread ^ 5) + 1)
    lane = thread % 32
    assert np.array_equal(out[3], np.where(lane < 4, thread, thread - 4))
    lowest = np.array([0, *[(i & -i).bit_length() + 2 for i in range(1, 32)]])
    assert np.array_equal(out[4], 800 + lowest[lane])
    assert np.array_equal(out[6], 31 - lane)


def test_threads_run_in_any_order_and_blocks_in_between_each_other(run):
    orders, mixed = set(), False
    for _ in range(10):
        out = np.zeros(1 + 3 * 8 * THREADS, np.uint32)
        assert run("order", out, calls=3) is None
        seen = out[1 : 1 + out[0]]
        assert np.array_equal(np.sort(seen), np.arange(seen.size))
        orders.add(seen.tobytes())
        mixed |= np.count_nonzero(np.diff(seen // THREADS)) > 8
    assert len(orders) == 10 and mixed


def test_a_grid_has_any_number_of_blocks(run):
    out, seen = np.zeros(1, np.uint32), set()
    for _ in range(30):
        assert run("grid", out, blocks=4) is None
        seen.add(int(out[0]))
    assert len(seen) > 3


def test_each_block_has_its_shared_memory_which_is_not_zero_to_begin_with(run):
    for _ in range(10):
        out = np.zeros(2, np.uint32)
        assert run("shared_memory", out) is None
        assert out.tolist() == [0, 0]


def test_blocks_of_another_size_are_refused(run):
    assert (
        run("grid", np.zeros(1, np.uint32), threads=128) == "blocks must have 256 threads, not 128"
    )
