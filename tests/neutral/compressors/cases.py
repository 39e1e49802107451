"""Runs the common tests on every compressor of the library; test_NAME.py describes a compressor.

Such a test file has

- OPTIONS: a list of example options, each a dict for `kernels.Codec`
- Replay: a `replay.Replay` that encodes as the compressor does
- PARAMS (optional): named compression_params for training, if the first of OPTIONS does not suit
- on_cuda (optional): a function that returns whether a GPU supports given options

The tests in test_codec.py, and those of messages, trainers and clusters, use these.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from gluon_gc import kernels
from gluon_gc.kernels.library import Call, check, library
from tests.cuda import emulator
from tests.neutral.kernels import arrays

from .replay import Replay

START = (2**63 + 12345, 987654321)
RATIOS = (1.0, 1.0, 0.5)
"""The learning-rate ratios of some steps."""

each_compressor = pytest.mark.parametrize("name", kernels.names())


def isas_of(name: str) -> tuple[str, ...]:
    """Return a compressor's instruction sets, and "cuda" if its GPU kernels can be emulated."""
    emulated = emulator.RUNS and name in emulator.COMPRESSORS
    return (*kernels.isas(), *["cuda"] * emulated)


def tests_of(name: str) -> Any:
    """Return the test module of a compressor."""
    return importlib.import_module(f".test_{name}", __package__)


def options_of(name: str, isa: str | None = None) -> list[dict[str, Any]]:
    """Return example options of a compressor that an instruction set or a GPU supports."""
    tests = tests_of(name)
    takes = getattr(tests, "on_cuda", None) if isa == "cuda" else None
    return [options for options in tests.OPTIONS if takes is None or takes(options)]


class Case(NamedTuple):
    """A codec, how to run it, and the seed of its input."""

    name: str
    options: dict[str, Any]
    n: int
    dtype: type
    isa: str
    threads: int
    seed: int

    def codec(self) -> kernels.Codec:
        return kernels.Codec(self.name, self.options, self.n, self.dtype, self.isa)

    def replay(self) -> Replay:
        return tests_of(self.name).Replay(self.options, self.n, self.dtype, START)

    def values(self, step: int = 0) -> np.ndarray:
        return arrays.awkward(self.n, self.dtype, self.seed + step)

    @property
    def ratio_bytes(self) -> int:
        """The number of bytes that the ratio takes in front of a payload."""
        return (
            8 if self.options.get("ef") == "corrected" and not self.codec().traits.summable else 0
        )


def accumulates(name: str) -> bool:
    return kernels.Codec(name, options_of(name)[0], 1).traits.accumulates


@st.composite
def cases(draw: Any, name: str, sizes: Any = arrays.sizes, **fixed: Any) -> Case:
    """Draw codecs of a compressor, with and without momentum and feedback; `fixed` are options."""
    isa = draw(st.sampled_from(isas_of(name)))
    options = dict(draw(st.sampled_from(options_of(name, isa))))
    alike = ["sparse"] if kernels.compressors()[name].draws_alike else []
    feedback = draw(st.sampled_from([None, "vanilla", "corrected", *alike]))
    mu = draw(st.sampled_from([None, 0.9]))
    decay = draw(st.sampled_from([None, 0.95]))
    if feedback and not accumulates(name):
        options["ef"] = feedback
        if decay:
            options["ef_decay"] = decay
    if mu:
        options["mu"] = mu
    if not accumulates(name):
        options.update(fixed)
    return Case(
        name,
        options,
        draw(sizes),
        draw(arrays.dtypes),
        isa,
        draw(arrays.threads),
        draw(arrays.seeds),
    )


def positions(codec: kernels.Codec, steps: int) -> list[kernels.Position]:
    """Return the position in the random stream for each of some steps."""
    return [kernels.position(START, step * codec.draws) for step in range(steps)]


def compressed(
    case: Case,
    codec: kernels.Codec,
    count: int,
    state: kernels.State | None = None,
    padding: int = 0,
) -> np.ndarray:
    """Return the payloads of some arrays as rows; all use the start of the random stream."""
    rows = np.full((count, codec.payload_bytes + padding), 255, np.uint8)
    for i, row in enumerate(rows):
        kept = codec.state() if state is None else state
        payload, status = codec.compress(case.values(i), kept, *positions(codec, 1))
        row[: status.bytes] = payload[: status.bytes]
    return rows


@contextmanager
def together(function: str) -> Iterator[None]:
    """Collect calls of a function of the C interface, and make all in one call at the end."""
    name, held = "gluon_gc_" + function, []
    real = getattr(library, name)
    setattr(library, name, lambda call, count: held.append(call._obj))
    try:
        yield
    finally:
        setattr(library, name, real)
    check(real((Call * len(held))(*held), len(held)))


def poison(codec: kernels.Codec, value: int) -> arrays.Guarded:
    """Fill a codec's workspace with a byte value, between guards."""
    size = codec.workspace_bytes
    guarded = arrays.Guarded(-size % 64)  # aligns it to 64 bytes
    codec._workspace = guarded.copy(np.full(size, value, np.uint8))
    return guarded


def guard(state: kernels.State, guarded: arrays.Guarded) -> kernels.State:
    """Return a state whose arrays are guarded."""
    momentum = None if state.momentum is None else guarded.copy(state.momentum)
    return kernels.State(momentum, tuple(guarded.copy(array) for array in state.memory))


def copy_of(state: kernels.State) -> kernels.State:
    momentum = None if state.momentum is None else state.momentum.copy()
    return kernels.State(momentum, tuple(array.copy() for array in state.memory))


def garbage_like(state: kernels.State) -> kernels.State:
    """Return a state of the same sizes, filled with NaN."""
    momentum = None if state.momentum is None else np.full_like(state.momentum, np.nan)
    return kernels.State(momentum, tuple(np.full_like(array, np.nan) for array in state.memory))


def aligned_garbage(codec: kernels.Codec) -> kernels.State:
    """Return a state in the codec's own memory, which is aligned, filled with NaN."""
    state = codec.state()
    for array in (state.momentum, *state.memory):
        if array is not None:
            array[:] = np.nan
    return state


def same_states(a: kernels.State, b: kernels.State) -> bool:
    pairs = list(zip(a.memory, b.memory))
    if a.momentum is not None:
        pairs.append((a.momentum, b.momentum))
    return all(arrays.same_bits(x, y) for x, y in pairs)
