"""Memory of states: aligned zeros, in blocks that are freed with the last array."""

import threading
import weakref

import numpy as np
import pytest

from gluon_gc.kernels.memory import aligned_zeros

SIZES = [0, 1, 1000, 16_383, 16_384, 256_000, 1_000_003, 1_048_576, 3_000_000]  # float32


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_memory_is_aligned_and_zero(n, dtype):
    for _ in range(3):  # the second time perhaps in memory that was used before
        array = aligned_zeros(n, dtype)
        assert array.shape == (n,) and array.dtype == dtype
        assert address(array) % 64 == 0 and array.flags.writeable
        assert not array.any()
        array.fill(1)


def test_arrays_do_not_overlap():
    sizes = np.random.default_rng(0).integers(1, 400_000, 300)
    arrays = [aligned_zeros(size, "float32") for size in sizes]
    for number, array in enumerate(arrays):
        array.fill(number)
    assert all((array == number).all() for number, array in enumerate(arrays))
    in_order = sorted(arrays, key=address)
    assert all(address(a) + a.nbytes <= address(b) for a, b in zip(in_order, in_order[1:]))


def test_neighbours_share_a_block_which_ends_with_them():
    arrays = [aligned_zeros(100_000, "float32") for _ in range(200)]
    blocks = {id(array.base): weakref.ref(array.base) for array in arrays}
    assert len(blocks) <= 4 and all(block().nbytes >= 4 * 1024 * 1024 for block in blocks.values())
    kept = arrays[100]
    del arrays
    (last,) = (block for block in blocks.values() if block() is not None)
    assert last() is kept.base
    del kept
    assert last() is None


def test_threads_have_their_own_blocks():
    bases = []

    def allocate():
        bases.append(aligned_zeros(100_000, "float32").base)

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    allocate()
    assert bases[0] is not bases[1]
