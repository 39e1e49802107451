"""The keys of compression_params: `options` is the one place that says what is allowed."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

from .base import registry


@dataclass(frozen=True)
class Option:
    """One key of compression_params.

    `compressors` names those that the key is for (None: any, and none). With another it is ignored,
    with a warning; without one if it is `unused`, which is what BytePS's scripts pass for a key
    that they do not mean.
    """

    name: str
    types: Tuple[type, ...]
    rule: Callable[[Any], bool]
    allowed: str
    meaning: str
    compressors: Optional[Tuple[str, ...]] = None
    unused: Any = None

    def is_for(self, compressor: Optional[str]) -> bool:
        """Whether the key means anything with a compressor of that name, or without one."""
        return self.compressors is None or compressor in self.compressors

    def check(self, value: Any) -> None:
        """Raise TypeError or ValueError if `value` is not allowed."""
        message = f"compression_params['{self.name}'] must be {self.allowed}, got {value!r}"
        is_bool = isinstance(value, (bool, np.bool_))
        if not isinstance(value, self.types) or (is_bool and bool not in self.types):
            raise TypeError(f"{message} ({type(value).__name__})")
        if not self.rule(value):
            raise ValueError(message)


def listed(names: Sequence[str], word: str) -> str:
    """Names as a sentence has them, with `word` before the last."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def _one_of(name: str, choices: Tuple[str, ...], meaning: str, **more: Any) -> Option:
    allowed = listed([f"'{choice}'" for choice in choices], "or")
    return Option(name, (str,), lambda v: v in choices, allowed, meaning, **more)


def _switch(name: str, meaning: str, **more: Any) -> Option:
    return Option(name, (bool, np.bool_), lambda v: True, "True or False", meaning, **more)


def _is_warmup_coeff(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return bool(values) and all(isinstance(v, numbers.Real) and 0 < v < 1 for v in values)


def _options_of_dgc() -> Tuple[Option, ...]:
    """The options that only dgc has, with the names of its reference implementation."""
    real, whole, dgc = (numbers.Real,), (numbers.Integral,), ("dgc",)
    return (
        Option(
            "compress_ratio",
            real,
            lambda v: v > 0 and v != 1,
            "a share between 0 and 1 or its reciprocal",
            "the share of the elements that is sent, instead of k: 0.001 and 1000 mean the same",
            compressors=dgc,
        ),
        Option(
            "warmup_epochs",
            whole,
            lambda v: v >= -1,
            "a whole number >= -1",
            "epochs in which more is sent, less and less; `trainer.set_epoch` says which it is",
            compressors=dgc,
        ),
        Option(
            "warmup_coeff",
            (numbers.Real, list, tuple),
            _is_warmup_coeff,
            "a number between 0 and 1 or a list of them",
            "the share of epoch e of the warm-up: the list's, or the number to the power of e + 1; "
            "by default k to the power of 1 / (warmup_epochs + 1)",
            compressors=dgc,
        ),
        Option(
            "sample_ratio",
            real,
            lambda v: 0 < v <= 1,
            "0 < sample_ratio <= 1",
            "share of the elements that the threshold is estimated from, at least 0.01",
            compressors=dgc,
        ),
        _switch(
            "strided_sample",
            "take the sample at even distances instead of at random",
            compressors=dgc,
        ),
        Option(
            "compress_upper_bound",
            real,
            lambda v: v >= 1,
            "a number >= 1",
            "times k: more elements above the threshold are too many",
            compressors=dgc,
        ),
        Option(
            "compress_lower_bound",
            real,
            lambda v: 0 < v <= 1,
            "0 < compress_lower_bound <= 1",
            "times k: fewer elements above the threshold are too few",
            compressors=dgc,
        ),
        Option(
            "max_adaptation_iters",
            whole,
            lambda v: v >= 0,
            "a whole number >= 0",
            "how often the threshold is multiplied by one of these bounds",
            compressors=dgc,
        ),
        _switch(
            "resample",
            "of too many elements take the largest, instead of a higher threshold",
            compressors=dgc,
        ),
        _switch("fp16_values", "values travel as float16", compressors=dgc),
        _switch(
            "int32_indices",
            "accepted, without effect: indices always travel in 32 bits",
            compressors=dgc,
        ),
        _switch("momentum_masking", "momentum restarts where a value was sent", compressors=dgc),
        Option(
            "gradient_clipping",
            real,
            lambda v: v > 0,
            "a number > 0",
            "largest l2 norm of a chunk of what a worker adds: its gradient divided by batch size "
            "and number of workers",
            compressors=dgc,
        ),
    )


def options() -> Dict[str, Option]:
    """The keys of compression_params, in the order in which the docs list them."""
    every = tuple(registry)
    table = (
        _one_of("compressor", tuple(registry), "the algorithm; falsy: none"),
        Option(
            "k",
            (numbers.Real,),
            lambda v: 0 < v < 1 or (v >= 1 and v % 1 == 0),
            "a share between 0 and 1 or a whole number >= 1",
            "share of the elements of a chunk (0 < k < 1, at least one) or number of them "
            "(all where there are fewer; 1.0, which could mean either, is refused); number of "
            "levels for dithering",
            compressors=("topk", "randomk", "dithering", "dgc"),
            unused=1,
        ),
        _one_of(
            "ef",
            ("vanilla", "corrected", "sparse"),
            "error feedback; corrected: by the ratio of learning rates; sparse: for randomk, where "
            "the aggregator corrects what was drawn, which is all that it has",
            compressors=tuple(name for name in every if not registry[name].accumulates),
        ),
        _one_of(
            "momentum",
            ("nesterov",),
            "momentum before the compressor, with the value of the optimizer's, which then applies "
            "none. dgc always does so, in the optimizer's form unless this asks for Nesterov's",
            compressors=every,
        ),
        _switch("scaling", "scale the signs by the mean magnitude", compressors=("onebit",)),
        _one_of(
            "partition",
            ("linear", "natural"),
            "how the levels are spaced",
            compressors=("dithering",),
            unused="linear",
        ),
        _one_of(
            "normalize",
            ("max", "l2"),
            "the norm that the levels divide",
            compressors=("dithering",),
            unused="max",
        ),
        Option(
            "seed",
            (numbers.Integral,),
            lambda v: v > 0,
            "a whole number > 0",
            "seed of the random stream; none: another one in every run",
            compressors=("randomk", "dithering", "dgc"),
        ),
        _switch("fp16", "what no compressor handles travels as float16"),
        _switch(
            "hierarchical",
            "over Horovod: sum within each node first, and compress between nodes; by default for "
            "bytegrad",
            compressors=every,
        ),
        _one_of(
            "exchange",
            ("two_way", "gather"),
            "two_way: aggregators sum, and compress the sum; gather: all workers get all payloads "
            "and sum them, by default (and always) for dgc. What randomk sends is summed as it is",
            compressors=every,
        ),
        *_options_of_dgc(),
    )
    return {option.name: option for option in table}
