"""How fast each kernel is, beside the plainest loop that moves the same bytes.

For each kernel, size and number of threads: GB/s of the elements' float data, the same for the
loop that is its limit, measured in turns with the kernel on the same arrays, and
time(limit) / time(kernel).

    python benchmark/kernels.py [--json FILE] [--seconds S] [--isa ISA]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gluon_gc import kernels  # noqa: E402

SIZES = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)
THREADS = (1, 2)
PAGE = 4096


class Loop(NamedTuple):
    """A function of the C interface and its arguments for n elements, but for threads and isa.

    The first of a compressor's is the size of a float.
    """

    name: str
    arguments: Callable[[int], tuple]

    def bind(self, n: int, threads: int, isa: int) -> Callable[[], object]:
        function = getattr(kernels.library, "gluon_gc_" + self.name)
        arguments = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in self.arguments(n)]
        return lambda: function(*arguments, threads, isa)


_started = itertools.count()


def staggered(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Copies that start at different offsets in their pages.

    A load waits for an earlier store to the same offset in another page. Large arrays all start
    alike as they come from the allocator, and that would be measured instead of the kernel.
    """
    copies = []
    for array in arrays:
        room = np.empty(array.nbytes + 2 * PAGE, np.uint8)
        start = -room.ctypes.data % PAGE + next(_started) * 9 * 64 % PAGE
        copies.append(room[start : start + array.nbytes].view(array.dtype))
        copies[-1][...] = array
    return copies


def dgc_config(n: int) -> kernels.DgcConfig:
    """0.1 % of n elements, by a threshold from every stride-th, which are about 1 % of them."""
    least = max(math.ceil(n * 0.01), 2000)
    stride = math.ceil(n / least / 32) * 32 + 1
    while stride > 1 and n // stride < least:
        stride -= 8
    samples = n // stride
    return kernels.DgcConfig(
        selects=math.ceil(n * 0.001),
        samples=samples,
        top=math.ceil(samples * 0.001),
        stride=stride,
        iterations=10,
        upper=1.3,
        lower=0.8,
        strided=True,
        resample=True,
        nesterov=True,
        momentum_masking=True,
    )


def cases(n: int) -> dict[str, tuple[Loop, Loop]]:
    """Each kernel and its limit."""
    values = np.random.default_rng(0).standard_normal(n, np.float32)
    payload, _ = kernels.onebit.compress(values)
    sparse, _ = kernels.topk.compress(values, n // 1000)
    stream = np.random.default_rng(1).integers(1, 2**64, 2, np.uint64)
    drawn, _ = kernels.randomk.compress(values, n // 1000, stream)
    planes, _ = kernels.dithering.compress(values, 2, stream, fixed_width=True)
    codes, _ = kernels.dithering.compress(values, 2, stream)
    levels, _ = kernels.bytegrad.compress(values)
    # topk's and dgc's own: their speed depends on the values
    residual, late, velocity = (np.zeros_like(values) for _ in range(3))
    momentum, gathered = np.zeros_like(values), np.zeros_like(values)
    sent = np.empty(kernels.dgc.capacity(math.ceil(n * 0.001)), np.uint8)
    halves, words = values.astype(np.float16), kernels.frame(values.view(np.uint8))
    x, y, z, residual, scale = staggered([values, values, values, residual, np.ones(1, np.float32)])
    halves, words, payload, sparse = staggered([halves, words, payload, sparse])
    drawn, planes, codes, levels = staggered([drawn, planes, codes, levels])
    momentum, late = staggered([momentum, late])
    gathered, velocity, sent = staggered([gathered, velocity, sent])

    def onebit(momentum, corrected):
        state = momentum, 0.9, corrected, None if corrected is None else scale, 1.0
        return Loop("onebit_compress", lambda n: (4, x, n, 1.0, *state, 1, payload))

    def topk(momentum, residual):
        state = momentum, 0.9, residual, 1.0
        return Loop("topk_compress", lambda n: (4, x, n, 1.0, *state, n // 1000, sparse))

    def randomk(momentum, residual):
        state = momentum, 0.9, residual, 1.0
        return Loop("randomk_compress", lambda n: (4, x, n, 1.0, *state, n // 1000, stream, drawn))

    def dithering(residual, fixed_width):
        state = None, 0.0, residual, 1.0
        own = 2, 0, 0, fixed_width, stream, np.empty_like(planes)
        return Loop("dithering_compress", lambda n: (4, x, n, 1.0, *state, *own))

    def dgc(n):
        config = ctypes.byref(dgc_config(n))
        return 4, x, n, 1.0, gathered, 0.9, velocity, config, stream, sent

    def bytegrad(momentum, residual):
        state = momentum, 0.9, residual, 1.0
        return Loop("bytegrad_compress", lambda n: (4, x, n, 1.0, *state, levels))

    copy = Loop("limit_copy", lambda n: (x, y, n))
    return {
        "onebit_compress": (onebit(None, None), Loop("limit_sum", lambda n: (x, n))),
        "onebit_compress_ef": (onebit(None, y), Loop("limit_add", lambda n: (y, x, n))),
        "onebit_compress_ef_nesterov": (
            onebit(z, y),
            Loop("limit_add_twice", lambda n: (y, z, x, n)),
        ),
        "onebit_decompress": (
            Loop("onebit_decompress_sum", lambda n: (4, payload, 0, 1, n, y)),
            Loop("limit_fill", lambda n: (y, n)),
        ),
        "onebit_decompress_add": (
            Loop("onebit_decompress_add", lambda n: (4, payload, n, y)),
            Loop("limit_add_constant", lambda n: (y, n)),
        ),
        "topk_compress": (topk(None, None), Loop("limit_sum", lambda n: (x, n))),
        "topk_compress_ef": (topk(None, residual), Loop("limit_add", lambda n: (residual, x, n))),
        "topk_compress_ef_nesterov": (
            topk(momentum, late),
            Loop("limit_add_twice", lambda n: (late, momentum, x, n)),
        ),
        "topk_decompress": (
            Loop("topk_decompress_sum", lambda n: (4, sparse, 0, 1, n, n // 1000, y)),
            Loop("limit_fill", lambda n: (y, n)),
        ),
        "randomk_compress_ef": (randomk(None, y), Loop("limit_add", lambda n: (y, x, n))),
        "randomk_compress_ef_nesterov": (
            randomk(z, y),
            Loop("limit_add_twice", lambda n: (y, z, x, n)),
        ),
        "randomk_decompress": (
            Loop("randomk_decompress", lambda n: (4, drawn, n, n // 1000, stream, y)),
            Loop("limit_fill", lambda n: (y, n)),
        ),
        "dgc_compress": (
            Loop("dgc_compress", dgc),
            Loop("limit_add_twice", lambda n: (velocity, gathered, x, n)),
        ),
        "dithering_compress": (dithering(None, 1), Loop("limit_sum", lambda n: (x, n))),
        "dithering_compress_ef": (dithering(z, 1), Loop("limit_add", lambda n: (z, x, n))),
        "dithering_compress_elias": (dithering(None, 0), Loop("limit_sum", lambda n: (x, n))),
        "dithering_decompress": (
            Loop("dithering_decompress_sum", lambda n: (4, planes, 0, 1, n, 2, 0, y)),
            Loop("limit_fill", lambda n: (y, n)),
        ),
        "dithering_decompress_add": (
            Loop("dithering_decompress_add", lambda n: (4, planes, n, 2, 0, y)),
            Loop("limit_add_constant", lambda n: (y, n)),
        ),
        "dithering_decompress_add_elias": (
            Loop("dithering_decompress_add", lambda n: (4, codes, n, 2, 0, y)),
            Loop("limit_add_constant", lambda n: (y, n)),
        ),
        "bytegrad_compress": (bytegrad(None, None), Loop("limit_sum", lambda n: (x, n))),
        "bytegrad_compress_ef": (bytegrad(None, z), Loop("limit_add", lambda n: (z, x, n))),
        "bytegrad_decompress_add": (
            Loop("bytegrad_decompress_add", lambda n: (4, levels, n, y)),
            Loop("limit_add_constant", lambda n: (y, n)),
        ),
        "half_from_float": (
            Loop("half_from_float", lambda n: (x, n, 1.0, halves)),
            Loop("limit_narrow", lambda n: (x, halves, n)),
        ),
        "float_from_half": (
            Loop("float_from_half", lambda n: (halves, n, y)),
            Loop("limit_widen", lambda n: (halves, y, n)),
        ),
        "frame": (Loop("frame", lambda n: (x, 4 * n, words)), copy),
        "unframe": (Loop("unframe", lambda n: (words, 4 * n, y)), copy),
    }


def measure(loops: tuple[Loop, ...], n: int, threads: int, isa: int, seconds: float) -> list[float]:
    """The median seconds of one call of each, without what a call of no elements takes."""
    calls = [loop.bind(n, threads, isa) for loop in loops]
    empty = [loop.bind(0, threads, isa) for loop in loops]
    repeats = 1 + int(200e-6 / _time(calls[0], 3))
    samples = [[] for _ in loops]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for sample, call, nothing in zip(samples, calls, empty):
            sample.append(_time(call, repeats) - _time(nothing, repeats))
    return [statistics.median(sample) for sample in samples]


def _time(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def results(isa: int, seconds: float) -> Iterator[dict]:
    for n in SIZES:
        for kernel, loops in cases(n).items():
            for threads in THREADS:
                took, least = measure(loops, n, threads, isa, seconds)
                yield {
                    "kernel": kernel,
                    "n": n,
                    "threads": threads,
                    "gbps": 4e-9 * n / took,
                    "limit": loops[1].name[len("limit_") :],
                    "limit_gbps": 4e-9 * n / least,
                    "ratio": least / took,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="how long to measure each (default 1)"
    )
    parser.add_argument("--isa", choices=kernels.isas(), default=kernels.isas()[-1])
    options = parser.parse_args()

    print(
        f"{'kernel':30} {'n':>9} {'threads':>7} {'GB/s':>7}   {'limit':12} {'GB/s':>7} {'ratio':>6}"
    )
    rows = []
    for row in results(kernels.isas().index(options.isa), options.seconds):
        rows.append(row)
        print(
            "{kernel:30} {n:9} {threads:7} {gbps:7.1f}   "
            "{limit:12} {limit_gbps:7.1f} {ratio:6.2f}".format(**row),
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
