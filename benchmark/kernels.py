"""Measures the speed of each CPU kernel, compared with the simplest loop that moves the same bytes.

That loop is the kernel's limit. For each kernel, size and number of threads, the script prints
GB/s of float32 data for the kernel and for its limit, and the ratio time(limit) / time(kernel).
The two run alternately on the same arrays.

    python benchmark/kernels.py [--json FILE] [--seconds S] [--isa ISA] [--sizes N [N ...]]
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
from typing import (
    Any,
    Callable,
    Iterator,
    Mapping,
    NamedTuple,
    Sequence,
)

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
    """Return a copy that starts at a different offset in its page than any other array.

    A load waits for an earlier store to the same offset in another page. The allocator gives all
    large arrays the same offset, so without this copy the benchmark would measure that wait.
    """
    room = np.empty(array.nbytes + 2 * PAGE, np.uint8)
    start = -room.ctypes.data % PAGE + next(_started) * 9 * 64 % PAGE
    copy = room[start : start + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


Loop = Callable[[], object]


class Bench(NamedTuple):
    """A function of the C interface. ``bind(n, threads, isa)`` returns a call for n elements."""

    name: str
    bind: Callable[[int, int, str], Loop]


def plain(name: str, arguments: Callable[[int], tuple]) -> Bench:
    """Bind a C function; arguments(n) gives all its arguments except threads and isa."""
    function = getattr(kernels.library, "gluon_gc_" + name)

    def bind(n: int, threads: int, isa: str) -> Loop:
        given = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments(n)]
        number = kernels.isas().index(isa)
        return lambda: function(*given, threads, number)

    return Bench(name, bind)


def limit(name: str, *arrays: np.ndarray) -> Bench:
    """Return a plain loop over up to three arrays."""
    given = (name.encode(), *arrays, None, None)[:4]
    return Bench(name, plain("limit", lambda n: (*given, n)).bind)


class Coding(NamedTuple):
    """A call of a compressor on given arrays. Some compressors' speed depends on the values.

    Two copies of the state take turns, as in an exchange: a call reads one and writes the other.

    Parameters
    ----------
    compressor : str
    options : mapping
        The codec's options.
    gradient : array
        The input of compress.
    out : array, optional
        The output of decompress. None: measure compress.
    add : bool
        Whether decompress adds to `out`.
    """

    compressor: str
    options: Mapping[str, Any]
    gradient: np.ndarray
    out: np.ndarray | None = None
    add: bool = False

    def bind(self, n: int, threads: int, isa: str) -> Loop:
        codec = kernels.Codec(self.compressor, self.options, n, isa=isa)
        payload = staggered(codec.compress(self.gradient[:n], codec.state(), START)[0])
        workspace = staggered(np.empty(codec.workspace_bytes + 64, np.uint8))
        values = self.gradient if self.out is None else self.out
        arrays = dict(values=values, payload=payload, payloads=payload)
        states = [_staggered_state(codec), _staggered_state(codec)]
        addresses = [kernels.addresses(codec, state) for state in states]
        calls = [
            Call(
                codec=codec.handle,
                scale=1,
                ratio=1,
                state=state,
                earlier=ctypes.pointer(earlier),
                position=START,
                stride=payload.size,
                count=1,
                add=self.add,
                workspace=workspace.ctypes.data + -workspace.ctypes.data % 64,
                threads=threads,
                **{name: array.ctypes.data for name, array in arrays.items()},
            )
            for state, earlier in (addresses, reversed(addresses))
        ]
        library = kernels.library
        entry = library.gluon_gc_compress if self.out is None else library.gluon_gc_decompress
        keep = codec, workspace, states, addresses, arrays  # the calls have pointers into these
        for call in calls:
            check(entry(ctypes.byref(call), 1))
        turns = itertools.cycle(map(ctypes.byref, calls))
        return lambda keep=keep: entry(next(turns), 1)


def _staggered_state(codec: kernels.Codec) -> kernels.State:
    state = codec.state()
    momentum = None if state.momentum is None else staggered(state.momentum)
    return kernels.State(momentum, tuple(map(staggered, state.memory)))


def settings(n: int) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return each compressor's options, keyed by the suffix of the row's name."""
    dgc = dict(k=0.001, sample_ratio=0.01, strided_sample=True, max_adaptation_iters=10)
    dgc.update(compress_upper_bound=1.3, compress_lower_bound=0.8, resample=True)
    named = {
        "onebit": {"": dict(scaling=True)},
        "topk": {"": dict(k=n // 1000)},
        "blocktopk": {"": dict(k=64, block=4096, value_bits=2)},
        "randomk": {"": dict(k=n // 1000)},
        "blockwise": {"": dict(bits=4, block=128, symmetric=True)},
        "dithering": {"": dict(k=2, fixed_width=True), "_elias": dict(k=2)},
        "dgc": {"": dict(dgc, nesterov=True, momentum_masking=True)},
    }
    return {name: named.get(name, {"": {}}) for name in kernels.compressors()}


def codings(n: int, x: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Coding, Bench]]:
    """Yield the name, the call and the limit of each compressor's calls."""
    z, w = staggered(np.tile(x, 2)), staggered(np.tile(x, 2))  # a state before and after a call
    reads, fills, adds = (
        limit("sum", x, np.empty(1, np.float32)),
        limit("fill", y),
        limit("add", z, x),
    )
    increments, adds_twice = limit("add_constant", y), limit("add_twice", z, w, x)
    feedback, momentum = dict(ef="vanilla"), dict(ef="vanilla", mu=0.9)
    for name, variants in settings(n).items():
        accumulates = kernels.compressors()[name].accumulates
        for suffix, options in variants.items():
            compress = f"{name}_compress{suffix}"
            if not accumulates:
                yield compress, Coding(name, options, x), reads
                yield compress + "_ef", Coding(name, {**options, **feedback}, x), adds
            with_momentum = {**options, **momentum}
            yield compress + "_ef_nesterov", Coding(name, with_momentum, x), adds_twice
            yield f"{name}_decompress{suffix}", Coding(name, options, x, y), fills
            if (
                kernels.Codec(name, options, n).payload_bytes > n // 64
            ):  # not sparse: adds to all elements
                coding = Coding(name, options, x, y, add=True)
                yield f"{name}_decompress_add{suffix}", coding, increments


def cases(n: int) -> Iterator[tuple[str, Bench | Coding, Bench]]:
    """Yield each kernel's name, the kernel and its limit."""
    x = staggered(np.random.default_rng(0).standard_normal(n, np.float32))
    y = staggered(x)
    yield from codings(n, x, y)
    halves = staggered(x.astype(np.float16))
    words = staggered(kernels.frame(x.view(np.uint8)))
    narrows, copies = limit("narrow", x, halves), limit("copy", x, y)
    yield "half_from_float", plain("half_from_float", lambda n: (x, n, 1.0, halves)), narrows
    widens = limit("widen", halves, y)
    yield "float_from_half", plain("float_from_half", lambda n: (halves, n, y)), widens
    yield "frame", plain("frame", lambda n: (x, 4 * n, words)), copies
    yield "unframe", plain("unframe", lambda n: (words, 4 * n, y)), copies


def measure(
    benches: Sequence[Bench | Coding], n: int, threads: int, isa: str, seconds: float
) -> list[float]:
    """Return the median seconds of one call of each, less the time of a call on 0 elements."""
    calls = [bench.bind(n, threads, isa) for bench in benches]
    empty = [bench.bind(0, threads, isa) for bench in benches]
    repeats = 1 + int(200e-6 / _time(calls[0], 3))
    samples: list[list[float]] = [[] for _ in benches]
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


def results(sizes: Sequence[int], isa: str, seconds: float) -> Iterator[dict[str, Any]]:
    for n in sizes:
        for kernel, bench, least_work in cases(n):
            for threads in THREADS:
                took, least = measure((bench, least_work), n, threads, isa, seconds)
                yield {
                    "kernel": kernel,
                    "n": n,
                    "threads": threads,
                    "gbps": 4e-9 * n / took,
                    "limit": least_work.name,
                    "limit_gbps": 4e-9 * n / least,
                    "ratio": least / took,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="file to write the results to")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time for each measurement (default 1)"
    )
    parser.add_argument("--isa", choices=kernels.isas(), default=kernels.isas()[-1])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="elements")
    options = parser.parse_args()

    print(
        f"{'kernel':30} {'n':>9} {'threads':>7} {'GB/s':>7}   {'limit':12} {'GB/s':>7} {'ratio':>6}"
    )
    rows = []
    for row in results(options.sizes, options.isa, options.seconds):
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
