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
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gluon_gc import kernels  # noqa: E402
from gluon_gc.kernels.library import Call, check  # noqa: E402

SIZES = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)
THREADS = (1, 2)
PAGE = 4096
START = kernels.position((2**63 + 12345, 987654321))

_started = itertools.count()


def staggered(array: np.ndarray) -> np.ndarray:
    """A copy that starts at an offset in its page which no other has.

    A load waits for an earlier store to the same offset in another page. Large arrays all start
    alike as they come from the allocator, and that would be measured instead of the kernel.
    """
    room = np.empty(array.nbytes + 2 * PAGE, np.uint8)
    start = -room.ctypes.data % PAGE + next(_started) * 9 * 64 % PAGE
    copy = room[start : start + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


Loop = Callable[[], object]


class Bench(NamedTuple):
    """A function of the C interface: ``bind(n, threads, isa)`` is a call of it for n elements."""

    name: str
    bind: Callable[[int, int, str], Loop]


def plain(name: str, arguments: Callable[[int], tuple]) -> Bench:
    """One whose arguments for n elements are given, but for threads and isa."""
    function = getattr(kernels.library, "gluon_gc_" + name)

    def bind(n: int, threads: int, isa: str) -> Loop:
        given = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments(n)]
        number = kernels.isas().index(isa)
        return lambda: function(*given, threads, number)

    return Bench(name, bind)


def limit(name: str, *arrays: np.ndarray) -> Bench:
    """A plain loop over up to three arrays."""
    given = (name.encode(), *arrays, None, None)[:4]
    return Bench(name, plain("limit", lambda n: (*given, n)).bind)


class Coding:
    """A compressor with its options, and the arrays that its calls are given.

    Error feedback is on with `memory`, momentum with `momentum`.
    """

    def __init__(
        self,
        name: str,
        values: np.ndarray,
        memory: Tuple[np.ndarray, ...] = (),
        momentum: Optional[np.ndarray] = None,
        **options: Any,
    ) -> None:
        self.name, self.options, self.values = name, options, values
        self.memory, self.momentum = memory, momentum
        if memory:
            options["ef"] = "vanilla"
        if momentum is not None:
            options["mu"] = 0.9

    def compress(self) -> Bench:
        return self._bench("compress", self.values)

    def decompress(self, out: np.ndarray, add: bool = False) -> Bench:
        return self._bench("decompress", out, count=1, add=add)

    def _bench(self, function: str, values: np.ndarray, **fields: Any) -> Bench:
        entry = getattr(kernels.library, "gluon_gc_" + function)

        def bind(n: int, threads: int, isa: str) -> Loop:
            codec = kernels.Codec(self.name, self.options, n, isa=isa)
            payload = staggered(codec.compress(self.values[:n], codec.state(), START)[0])
            workspace = staggered(np.empty(codec.workspace_bytes + 64, np.uint8))
            arrays = dict(values=values, payload=payload, payloads=payload, momentum=self.momentum)
            addresses = {k: a.ctypes.data for k, a in arrays.items() if a is not None}
            call = Call(
                scale=1,
                ratio=1,
                memory=(ctypes.c_void_p * 2)(*(array.ctypes.data for array in self.memory)),
                position=START,
                stride=payload.size,
                workspace=workspace.ctypes.data + -workspace.ctypes.data % 64,
                threads=threads,
                **addresses,
                **fields,
            )
            keep = self, codec, payload, workspace  # what the call points to
            check(entry(codec._handle, ctypes.byref(call)))
            return lambda keep=keep: entry(codec._handle, ctypes.byref(call))

        return Bench(function, bind)


def cases(n: int) -> Dict[str, Tuple[Bench, Bench]]:
    """Each kernel and its limit."""
    values = np.random.default_rng(0).standard_normal(n, np.float32)
    x, y, z = staggered(values), staggered(values), staggered(values)
    scale = staggered(np.ones(1, np.float32))
    # topk's and dgc's own: their speed depends on the values
    residual, late, velocity, momentum, gathered = (
        staggered(np.zeros_like(values)) for _ in range(5)
    )
    halves = staggered(values.astype(np.float16))
    words = staggered(kernels.frame(values.view(np.uint8)))

    k = n // 1000
    dgc = {
        "k": 0.001,
        "sample_ratio": 0.01,
        "strided_sample": True,
        "compress_upper_bound": 1.3,
        "compress_lower_bound": 0.8,
        "max_adaptation_iters": 10,
        "resample": True,
        "nesterov": True,
        "momentum_masking": True,
    }
    onebit = Coding("onebit", x, scaling=True)
    topk = Coding("topk", x, k=k)
    randomk = Coding("randomk", x, (y,), k=k)
    planes = Coding("dithering", x, k=2, fixed_width=True)
    codes = Coding("dithering", x, k=2)
    bytegrad = Coding("bytegrad", x)

    reads, fills = limit("sum", x, np.empty(1, np.float32)), limit("fill", y)
    increments, copies = limit("add_constant", y), limit("copy", x, y)
    return {
        "onebit_compress": (onebit.compress(), reads),
        "onebit_compress_ef": (
            Coding("onebit", x, (y, scale), scaling=True).compress(),
            limit("add", y, x),
        ),
        "onebit_compress_ef_nesterov": (
            Coding("onebit", x, (y, scale), z, scaling=True).compress(),
            limit("add_twice", y, z, x),
        ),
        "onebit_decompress": (onebit.decompress(y), fills),
        "onebit_decompress_add": (onebit.decompress(y, add=True), increments),
        "topk_compress": (topk.compress(), reads),
        "topk_compress_ef": (
            Coding("topk", x, (residual,), k=k).compress(),
            limit("add", residual, x),
        ),
        "topk_compress_ef_nesterov": (
            Coding("topk", x, (late,), momentum, k=k).compress(),
            limit("add_twice", late, momentum, x),
        ),
        "topk_decompress": (topk.decompress(y), fills),
        "randomk_compress_ef": (randomk.compress(), limit("add", y, x)),
        "randomk_compress_ef_nesterov": (
            Coding("randomk", x, (y,), z, k=k).compress(),
            limit("add_twice", y, z, x),
        ),
        "randomk_decompress": (randomk.decompress(y), fills),
        "dgc_compress": (
            Coding("dgc", x, (velocity,), gathered, **dgc).compress(),
            limit("add_twice", velocity, gathered, x),
        ),
        "dithering_compress": (planes.compress(), reads),
        "dithering_compress_ef": (
            Coding("dithering", x, (z,), k=2, fixed_width=True).compress(),
            limit("add", z, x),
        ),
        "dithering_compress_elias": (codes.compress(), reads),
        "dithering_decompress": (planes.decompress(y), fills),
        "dithering_decompress_add": (planes.decompress(y, add=True), increments),
        "dithering_decompress_add_elias": (codes.decompress(y, add=True), increments),
        "bytegrad_compress": (bytegrad.compress(), reads),
        "bytegrad_compress_ef": (Coding("bytegrad", x, (z,)).compress(), limit("add", z, x)),
        "bytegrad_decompress_add": (bytegrad.decompress(y, add=True), increments),
        "half_from_float": (
            plain("half_from_float", lambda n: (x, n, 1.0, halves)),
            limit("narrow", x, halves),
        ),
        "float_from_half": (
            plain("float_from_half", lambda n: (halves, n, y)),
            limit("widen", halves, y),
        ),
        "frame": (plain("frame", lambda n: (x, 4 * n, words)), copies),
        "unframe": (plain("unframe", lambda n: (words, 4 * n, y)), copies),
    }


def measure(
    benches: Tuple[Bench, ...], n: int, threads: int, isa: str, seconds: float
) -> List[float]:
    """The median seconds of one call of each, without what a call of no elements takes."""
    calls = [bench.bind(n, threads, isa) for bench in benches]
    empty = [bench.bind(0, threads, isa) for bench in benches]
    repeats = 1 + int(200e-6 / _time(calls[0], 3))
    samples: List[List[float]] = [[] for _ in benches]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for sample, call, nothing in zip(samples, calls, empty):
            sample.append(_time(call, repeats) - _time(nothing, repeats))
    return [statistics.median(sample) for sample in samples]


def _time(call: Loop, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def results(isa: str, seconds: float) -> Iterator[Dict[str, Any]]:
    for n in SIZES:
        for kernel, benches in cases(n).items():
            for threads in THREADS:
                took, least = measure(benches, n, threads, isa, seconds)
                yield {
                    "kernel": kernel,
                    "n": n,
                    "threads": threads,
                    "gbps": 4e-9 * n / took,
                    "limit": benches[1].name,
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
    for row in results(options.isa, options.seconds):
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
