"""Every compressor of the library, as its own test file test_NAME.py describes it.

Such a file has

    OPTIONS: a list of example options, each a dict as `kernels.Codec` takes it
    Replay: a `replay.Replay` that encodes as the compressor does
    PARAMS: if the first of OPTIONS will not do to train with, compression_params by a name for each
    on_cuda: if a GPU does not take all of OPTIONS, a function that says whether it takes some

and gets by that the tests of test_codec.py, and those of messages, trainers and clusters.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import pytest
from hypothesis import strategies as st

from gluon_gc import kernels
from gluon_gc.kernels.library import Call, check, library
from tests.cuda import emulator

from . import arrays
from .replay import Replay

START = (2**63 + 12345, 987654321)
RATIOS = (1.0, 1.0, 0.5)
"""Of some steps."""

each_compressor = pytest.mark.parametrize("name", kernels.names())


def isas_of(name: str) -> Tuple[str, ...]:
    """Where a compressor runs: the instruction sets, and the emulated GPU if it has kernels."""
    return (*kernels.isas(), *["cuda"] * (name in emulator.COMPRESSORS))


def tests_of(name: str) -> Any:
    """The test file of a compressor."""
    return importlib.import_module(f".test_{name}", __package__)


def options_of(name: str, isa: Optional[str] = None) -> List[Dict[str, Any]]:
    """Example options of a compressor, which it takes where it is to run."""
    tests = tests_of(name)
    takes = getattr(tests, "on_cuda", None) if isa == "cuda" else None
    return [options for options in tests.OPTIONS if takes is None or takes(options)]


class Case(NamedTuple):
    """A codec, how it is to run, and what is compressed."""

    name: str
    options: Dict[str, Any]
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
        """How many bytes the ratio takes in front of a payload."""
        return (
            8 if self.options.get("ef") == "corrected" and not self.codec().traits.summable else 0
        )


def accumulates(name: str) -> bool:
    return kernels.Codec(name, options_of(name)[0], 1).traits.accumulates


@st.composite
def cases(draw: Any, name: str, sizes: Any = arrays.sizes, **fixed: Any) -> Case:
    """Codecs of a compressor, with and without momentum and feedback; `fixed` are options."""
    isa = draw(st.sampled_from(isas_of(name)))
    options = dict(draw(st.sampled_from(options_of(name, isa))))
    alike = ["sparse"] if kernels.compressors()[name].draws_alike else []
    feedback = draw(st.sampled_from([None, "vanilla", "corrected", *alike]))
    mu = draw(st.sampled_from([None, 0.9]))
    if feedback and not accumulates(name):
        options["ef"] = feedback
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


def positions(codec: kernels.Codec, steps: int) -> List[kernels.Position]:
    """Where each of some steps draws."""
    return [kernels.position(START, step * codec.draws) for step in range(steps)]


def compressed(
    case: Case,
    codec: kernels.Codec,
    count: int,
    state: Optional[kernels.State] = None,
    padding: int = 0,
) -> np.ndarray:
    """Rows of payloads of some arrays, all drawn at the start."""
    rows = np.full((count, codec.payload_bytes + padding), 255, np.uint8)
    for i, row in enumerate(rows):
        kept = codec.state() if state is None else state
        payload, status = codec.compress(case.values(i), kept, *positions(codec, 1))
        row[: status.bytes] = payload[: status.bytes]
    return rows


@contextmanager
def together(function: str) -> Iterator[None]:
    """Hold back calls of this function of the C interface, and make them in one at the end."""
    name, held = "gluon_gc_" + function, []
    real = getattr(library, name)
    setattr(library, name, lambda call, count: held.append(call._obj))
    try:
        yield
    finally:
        setattr(library, name, real)
    check(real((Call * len(held))(*held), len(held)))


def poison(codec: kernels.Codec, value: int) -> arrays.Guarded:
    """Give a codec a workspace of such bytes, between guards."""
    size = codec.workspace_bytes
    guarded = arrays.Guarded(-size % 64)  # which aligns it
    codec._workspace = guarded.copy(np.full(size, value, np.uint8))
    return guarded


def guard(state: kernels.State, guarded: arrays.Guarded) -> kernels.State:
    """A state whose arrays are guarded."""
    momentum = None if state.momentum is None else guarded.copy(state.momentum)
    return kernels.State(momentum, tuple(guarded.copy(array) for array in state.memory))


def copy_of(state: kernels.State) -> kernels.State:
    momentum = None if state.momentum is None else state.momentum.copy()
    return kernels.State(momentum, tuple(array.copy() for array in state.memory))


def same_states(a: kernels.State, b: kernels.State) -> bool:
    pairs = list(zip(a.memory, b.memory))
    if a.momentum is not None:
        pairs.append((a.momentum, b.momentum))
    return all(arrays.same_bits(x, y) for x, y in pairs)
