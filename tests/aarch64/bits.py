"""Prints a digest of each result of BytePS's golden vectors, to compare with another machine's."""

from __future__ import annotations

import hashlib
from typing import Iterator, Tuple

import numpy as np

from gluon_gc import kernels
from tests.neutral.compressors import golden

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
            yield from _step(f"{name} {number}", codec, x, codec.state(), position)
    for name, run in golden.all_runs():
        codec = kernels.Codec(name, run.options, run.size)
        seed, state = int(run.options.get("state_seed", 0)), codec.state()
        for number, (vectors, ratio) in enumerate(run.steps()):
            position = kernels.position((seed, seed), number * codec.draws)
            yield from _step(f"{run.name} {number}", codec, vectors["g"], state, position, ratio)


def _step(
    what: str,
    codec: kernels.Codec,
    values: np.ndarray,
    state: kernels.State,
    position: kernels.Position,
    ratio: float | None = 1.0,
) -> Results:
    payload, status = codec.compress(values, state, position, ratio=ratio)
    yield f"{what}: payload", payload[: status.bytes]
    yield f"{what}: decoded", codec.decompress(payload, position)[0]
    for array in (state.momentum, *state.memory):
        if array is not None:
            yield f"{what}: state", array


if __name__ == "__main__":
    for name, array in of_golden_vectors():
        print(hashlib.sha256(array.tobytes()).hexdigest()[:16], name)
