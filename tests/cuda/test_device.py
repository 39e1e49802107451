"""Compressors on a GPU with its own memory; `make test-gpu` runs these tests on a real GPU."""

import numpy as np
import pytest

from tests.neutral.compressors.cases import options_of

from . import emulator, equal
from .device import Device, DeviceCodec, Memory

each_compressor = pytest.mark.parametrize("name", emulator.COMPRESSORS)


@pytest.fixture(scope="module")
def make(gpu):
    """Return a function that creates codecs on the first GPU."""
    device = Device()
    print(f"on {device.name}, compute capability {device.capability / 10}")
    return lambda *codec: DeviceCodec(device, *codec)


@each_compressor
def test_the_bytes_are_those_of_the_cpu(make, on_gpu, name):
    if on_gpu:
        for turn in range(4):
            equal.check_all(name, turn, make)
    else:  # only a part, because other tests cover the emulator
        equal.check(
            name,
            {**options_of(name, "cuda")[0], "ef": "corrected", "mu": 0.9},
            3000,
            np.float32,
            1,
            make,
        )


@each_compressor
def test_blocks_that_run_at_the_same_time_give_the_same_bytes_each_time(make, on_gpu, name):
    given = {**options_of(name, "cuda")[0], "ef": "vanilla", "mu": 0.9}
    for seed in range(5 if on_gpu else 1):
        for dtype in (np.float32, np.float64):
            equal.check(name, given, 2**20 + 4321 if on_gpu else 20000, dtype, seed, make)


def test_what_is_written_around_memory_is_found(gpu):
    device = Device()
    memory, byte = Memory(device, 100), np.zeros(1, np.uint8)
    memory.check()
    for before in (-1, 100):
        beside = Memory(device, 100)
        beside.address += before
        beside._size = 1
        beside.write(byte.ctypes.data)
        beside.address -= before
        beside._size = 100
        with pytest.raises(AssertionError, match="written (before|past)"):
            beside.check()
