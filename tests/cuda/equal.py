"""Checks that a compressor's codecs on the GPU and the CPU give the same bits."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

from gluon_gc import kernels
from tests.neutral.compressors.cases import (
    START,
    accumulates,
    copy_of,
    garbage_like,
    guard,
    options_of,
    poison,
    positions,
    same_states,
    together,
)
from tests.neutral.compressors.distributions import DISTRIBUTIONS
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import aggregate

SIZES = (0, 1, 31, 32, 33, 1023, 1024, 1025, 3 * 1024 + 40, 9 * 1024)
RATIOS = (1.0, 0.5, 1.0, 2.0, 2.0)
"""The ratios of the steps. The last two are equal, because their steps' payloads are summed."""
MANY = (5, 0, 70000, 1024, 1, 1023, 1025, *range(31, 300, 41))
OPTIONS = 4
"""The largest number of example options of a compressor to compare."""
SAMPLED = {"topk": {"k": 0.01}, "dgc": {}}
"""Compressors that sample if there are N_SAMPLED elements, and the options for that."""

N_SAMPLED = 20_011


def large_where_sampled(random: np.random.Generator, n: int) -> np.ndarray:
    """Put 104 large values in topk_threshold.cuh's sample, so it expects more than are sent."""
    distance, values = n // 512, random.standard_normal(n)
    for place in range(13):
        start = place * distance + ((place * 2654435761 % 2**32) * (distance - 7) >> 32)
        values[start : start + 8] += 100
    return values


MISLEADING = {**DISTRIBUTIONS, "large ones just in the sample": large_where_sampled}


def options(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield a compressor's example options with each feedback, with and without momentum."""
    decaying = {"ef": "corrected", "ef_decay": 0.95}
    feedback = ({},) if accumulates(name) else ({}, {"ef": "vanilla"}, decaying)
    own_options = options_of(name, "cuda")[: 2 if name in SAMPLED else OPTIONS]
    for own, ef, mu in itertools.product(own_options, feedback, (None, 0.9)):
        yield {**own, **ef, **({"mu": mu} if mu else {})}


MakeCodec = Callable[..., kernels.Codec]
"""Creates a GPU codec from (name, options, n, dtype)."""


def emulated(*codec: Any) -> kernels.Codec:
    """Return a codec whose GPU can access all memory of this process."""
    return kernels.Codec(*codec, isa="cuda")


def sizes(name: str) -> tuple[int, ...]:
    return (*SIZES, N_SAMPLED) if name in SAMPLED else SIZES


def check(
    name: str,
    given: Mapping[str, Any],
    n: int,
    dtype: Any,
    seed: int = 0,
    make: MakeCodec = emulated,
    values_of: Callable[..., np.ndarray] = arrays.awkward,
    ratios: Sequence[float] = RATIOS,
) -> None:
    """Compare CPU and GPU codecs over some steps; the third step has a non-finite value.

    Every other step of the GPU writes its state to other arrays.
    """
    guarded = arrays.Guarded(seed % 3)
    cpu, gpu = kernels.Codec(name, given, n, dtype), make(name, given, n, dtype)
    workspace = poison(gpu, 0xA5)
    state = cpu.state()
    theirs = guard(state, guarded)
    other = guard(garbage_like(state), guarded)
    stride = cpu.payload_bytes + seed % 5
    rows = np.zeros((2, stride), np.uint8)
    for step, ratio in enumerate(ratios):
        values = values_of(n, dtype, seed + step)
        if step == 2 and n:
            values[seed % n] = (np.nan, np.inf, -np.inf)[seed % 3]
        where = kernels.position(START, step * cpu.draws)
        kwargs = dict(scale=0.75, ratio=ratio)
        ours, expected = cpu.compress(values, state, where, **kwargs)
        if step % 2:
            kwargs.update(scale=3.0, factor=guarded.copy(np.array([0.25])))
        room = guarded.empty(cpu.payload_bytes, np.uint8)
        if (step + seed) % 2:
            before, kwargs["earlier"], theirs, other = copy_of(theirs), theirs, other, theirs
        payload, status = gpu.compress(guarded.copy(values), theirs, where, payload=room, **kwargs)
        if "earlier" in kwargs:
            assert same_states(other, before), f"step {step}: the earlier state has changed"
        used = int(expected.bytes)
        assert np.array_equal(payload[:used], ours[:used]), f"step {step}: another payload"
        assert (status.bytes, status.finite) == (expected.bytes, expected.finite), "another status"
        assert same_states(theirs, state), f"step {step}: another state"
        rows[(len(ratios) - 1 - step) % 2, : cpu.payload_bytes] = ours  # the last one is first
        if state.memory:
            residual = cpu.residual(state)
            assert arrays.same_bits(gpu.residual(theirs), residual), "another residual"
            if step == 1:
                again = copy_of(theirs)
                gpu.restore(again, residual)
                expected_again = copy_of(state)
                cpu.restore(expected_again, residual)
                assert same_states(again, expected_again), "restored to another state"
    start = arrays.awkward(n, dtype, seed + 9)
    payloads = guarded.copy(rows.ravel()).reshape(rows.shape)
    counts = (1,) if cpu.traits.summable else (0, 1, 2)
    for count, add in itertools.product(counts, (False, True)):
        out, expected = guarded.copy(start), start.copy()
        with np.errstate(invalid="ignore"):
            _, here = cpu.decompress(rows[:count], where, out=expected, add=add)
        _, there = gpu.decompress(payloads[:count], where, out=out, add=add)
        assert arrays.same_bits(out, expected), f"{count} payloads decode to something else"
        assert (there.bytes, there.finite) == (here.bytes, here.finite), "another status of a sum"
    if not cpu.traits.summable:
        payload, status = aggregate(gpu, payloads, other, where, earlier=theirs)
        ours, expected = aggregate(cpu, rows, state, where)
        used = int(expected.bytes)
        assert np.array_equal(payload[:used], ours[:used]), "another aggregate"
        assert (status.bytes, status.finite) == (expected.bytes, expected.finite), "another status"
        assert same_states(other, state), "another state of the aggregator"
    guarded.check()
    workspace.check()


def check_distribution(
    name: str, distribution: str, given: Mapping[str, Any], make: MakeCodec = emulated
) -> None:
    """Compare codecs on values that mislead a sample; `given` adds options to those in SAMPLED."""

    def values_of(n: int, dtype: Any, seed: int) -> np.ndarray:
        values = MISLEADING[distribution](np.random.default_rng(seed), n)
        return np.ascontiguousarray(values).astype(dtype)

    given = {**options_of(name)[0], **SAMPLED[name], **given}
    dtype = (np.float32, np.float64)[len(distribution) % 2]
    try:
        check(name, given, N_SAMPLED, dtype, len(distribution), make, values_of)
    except (AssertionError, ValueError) as error:
        raise AssertionError(f"{name} {given}, {distribution} of {dtype}: {error}") from error


def check_all(name: str, turn: int = 0, make: MakeCodec = emulated) -> None:
    """Compare codecs of all options, each for half of the sizes and with one dtype.

    Four turns together have all sizes with both dtypes.
    """
    if name in SAMPLED:
        for distribution in ("all equal", "few values", "large ones just in the sample"):
            check_distribution(name, distribution, {}, make)
    cases = itertools.product(enumerate(options(name)), enumerate(sizes(name)))
    for seed, ((i, given), (j, n)) in enumerate(cases):
        if (i + j + turn) % 2:
            continue
        dtype = (np.float32, np.float64)[(i + j + turn) // 2 % 2]
        try:
            check(name, given, n, dtype, seed + turn, make)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{name} {given}, {n} of {np.dtype(dtype)}: {error}") from error


def check_together(name: str, given: Mapping[str, Any], dtype: Any) -> None:
    """Compare batched calls for many sizes; one array has a non-finite value."""
    cpu, gpu = ([kernels.Codec(name, given, n, dtype, isa) for n in MANY] for isa in (None, "cuda"))
    workspaces = [poison(codec, 0xA5) for codec in gpu]
    states, expected = ([codec.state() for codec in codecs] for codecs in (gpu, cpu))
    messages = [np.zeros((2, codec.payload_bytes), np.uint8) for codec in gpu]
    for step in range(2):
        values = [arrays.awkward(n, dtype, step + i) for i, n in enumerate(MANY)]
        if step == 1:
            values[3][77] = np.nan
        where = [positions(codec, 2)[step] for codec in gpu]
        with together("compress"):
            sent = [
                codec.compress(x, state, position, payload=rows[step])
                for codec, x, state, position, rows in zip(gpu, values, states, where, messages)
            ]
        for i, (payload, status) in enumerate(sent):
            ours, wrote = cpu[i].compress(values[i], expected[i], where[i])
            assert np.array_equal(payload[: status.bytes], ours[: wrote.bytes]), "another payload"
            assert status.finite == wrote.finite, "another status"
            assert same_states(states[i], expected[i]), "another state"
    if gpu[0].memory:
        kept = [codec.state() for codec in gpu]
        with together("residual"):
            residuals = [codec.residual(state) for codec, state in zip(gpu, states)]
        with together("restore"):
            for codec, state, residual in zip(gpu, kept, residuals):
                codec.restore(state, residual)
        for codec, state, residual in zip(cpu, kept, residuals):
            assert arrays.same_bits(codec.residual(state), residual), "another residual"
    if gpu[0].traits.summable:
        messages = [rows[1] for rows in messages]
    outs = [arrays.awkward(n, dtype, i) for i, n in enumerate(MANY)]
    totals = [out.copy() for out in outs]
    with together("decompress"):
        for i, codec in enumerate(gpu):
            codec.decompress(messages[i], where[i], out=outs[i], add=bool(i % 2))
    for i, codec in enumerate(cpu):
        with np.errstate(invalid="ignore"):
            codec.decompress(messages[i], where[i], out=totals[i], add=bool(i % 2))
        assert arrays.same_bits(outs[i], totals[i]), "payloads decode to something else"
    if not gpu[0].traits.summable:
        with together("aggregate"):
            answers = [
                aggregate(codec, *given) for codec, *given in zip(gpu, messages, states, where)
            ]
        for i, (payload, status) in enumerate(answers):
            ours, wrote = aggregate(cpu[i], messages[i], expected[i], where[i])
            assert np.array_equal(payload[: status.bytes], ours[: wrote.bytes]), "another aggregate"
            assert same_states(states[i], expected[i]), "another state of the aggregator"
    for workspace in workspaces:
        workspace.check()


def check_all_together(name: str) -> None:
    """Compare batched calls for some options and both dtypes."""
    for i, given in enumerate(list(options(name))[::5]):
        try:
            check_together(name, given, (np.float32, np.float64)[i % 2])
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{name} {given}, many at once: {error}") from error
