"""Prints a digest of each result of the library, to compare with those of another machine.

The inputs are BytePS's golden vectors, and the compressors' example options on awkward values.
"""

from __future__ import annotations

import hashlib
from typing import Iterator, Optional, Tuple

import numpy as np

from gluon_gc import kernels
from tests.neutral.compressors import golden
from tests.neutral.compressors.cases import RATIOS, START, accumulates, options_of
from tests.neutral.kernels.arrays import awkward

SIZES = (17, 20001)
"""The second one is more than a block of a thread."""
N, THREADS = 70001, 2

Results = Iterator[Tuple[str, np.ndarray]]


def of_golden_vectors() -> Results:
    """Yield the payload and the decoded values of each golden vector, and the states after it."""
    for name in kernels.names():
        if not (golden.GOLDEN / f"{name}_compress.npz").exists():
            continue
        for number, (options, x, _) in enumerate(golden.compressions(name)):
            if name == "randomk" and x.size < int(options["k"]):
                continue
            codec = kernels.Codec(name, options, x.size)
            seed = int(options.get("state_seed", 0))
            position = kernels.position((seed, seed))
            yield from _step(f"golden {name} {number}", codec, x, codec.state(), position)
    for name, run in golden.all_runs():
        codec = kernels.Codec(name, run.options, run.size)
        seed, state = int(run.options.get("state_seed", 0)), codec.state()
        for number, (vectors, ratio) in enumerate(run.steps()):
            position = kernels.position((seed, seed), number * codec.draws)
            what = f"golden {run.name} {number}"
            yield from _step(what, codec, vectors["g"], state, position, ratio)


def of_compressors() -> Results:
    """Yield the results of each compressor's example options, with momentum and error feedback."""
    for name in kernels.names():
        feedback = {} if accumulates(name) else {"ef": "corrected"}
        for (number, options), n, dtype in (
            (case, n, dtype)
            for case in enumerate(options_of(name))
            for n in SIZES
            for dtype in (np.float32, np.float64)
        ):
            codec = kernels.Codec(name, {**options, **feedback, "mu": 0.9}, n, dtype)
            state = codec.state()
            for step, ratio in enumerate(RATIOS):
                position = kernels.position(START, step * codec.draws)
                what = f"{name} {number} of {n} {np.dtype(dtype)} {step}"
                values = awkward(n, dtype, number + step)
                yield from _step(what, codec, values, state, position, ratio)


def of_other_kernels() -> Results:
    """Yield random draws, float16, sums of squares and products of low rank."""
    yield "draws", kernels.draw(kernels.position(START), 1000)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    yield "float32 of every float16", kernels.float_from_half(halves)
    for seed in range(2):
        values = awkward(N, np.float32, seed)
        yield f"float16 {seed}", kernels.half_from_float(values, 0.3).view(np.uint16)
        for dtype in (np.float32, np.float64):
            x = awkward(N, dtype, seed)
            what = f"{np.dtype(dtype)} {seed}"
            yield f"squares {what}", np.array(kernels.sum_of_squares(x, threads=THREADS))
            rows, columns, rank = 37, 1891, 5
            matrix = x[: rows * columns].reshape(rows, columns).copy()
            p, q = x[: rank * rows].reshape(rank, rows), x[: rank * columns].reshape(rank, columns)
            left, right = np.zeros_like(p), np.zeros_like(q)
            gradient = x[: matrix.size].reshape(matrix.shape)
            kernels.accumulate(gradient, p, q, q, matrix, left, threads=THREADS)
            kernels.project(p, matrix, right, threads=THREADS)
            kernels.orthonormalise(left)
            yield from ((f"low rank {what}", array) for array in (matrix, left, right))


def _step(
    what: str,
    codec: kernels.Codec,
    values: np.ndarray,
    state: kernels.State,
    position: kernels.Position,
    ratio: Optional[float] = 1.0,
) -> Results:
    payload, status = codec.compress(values, state, position, ratio=ratio, threads=THREADS)
    yield f"{what}: payload", payload[: status.bytes]
    yield f"{what}: decoded", codec.decompress(payload, position, threads=THREADS)[0]
    for array in (state.momentum, *state.memory):
        if array is not None:
            yield f"{what}: state", array


if __name__ == "__main__":
    for results in (of_golden_vectors(), of_compressors(), of_other_kernels()):
        for name, array in results:
            if array.dtype.kind == "f":
                array = np.where(np.isnan(array), np.nan, array)  # a NaN's bits are not defined
            print(hashlib.sha256(array.tobytes()).hexdigest()[:16], name)
