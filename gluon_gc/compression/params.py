"""Checks compression_params; the table `options` is the one place that says what is allowed."""

from __future__ import annotations

import difflib
import numbers
from dataclasses import MISSING, dataclass, fields
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np

from ..operators import MessageRows
from .base import Compressor, registry

_RATIO_BYTES = 8  # corrected error feedback sends the ratio of learning rates before each payload


@dataclass(frozen=True)
class Option:
    """One key of compression_params.

    `compressors` names those that the key is for (None: any). `unused` is what BytePS's scripts
    pass for a key that they do not mean; like a falsy value, it is no contradiction.
    """

    name: str
    types: Tuple[type, ...]
    rule: Callable[[Any], bool]
    allowed: str
    meaning: str
    compressors: Optional[Tuple[str, ...]] = None
    unused: Any = None

    def check(self, value: Any) -> None:
        """Raise TypeError or ValueError if `value` is not allowed."""
        message = f"compression_params['{self.name}'] must be {self.allowed}, got {value!r}"
        is_bool = isinstance(value, (bool, np.bool_))
        if not isinstance(value, self.types) or (is_bool and bool not in self.types):
            raise TypeError(f"{message} ({type(value).__name__})")
        if not self.rule(value):
            raise ValueError(message)


def _one_of(name: str, choices: Tuple[str, ...], meaning: str, **more: Any) -> Option:
    *most, last = [f"'{choice}'" for choice in choices]
    allowed = f"{', '.join(most)} or {last}" if most else last
    return Option(name, (str,), lambda v: v in choices, allowed, meaning, **more)


def _switch(name: str, meaning: str, **more: Any) -> Option:
    return Option(name, (bool, np.bool_), lambda v: True, "True or False", meaning, **more)


def options() -> Dict[str, Option]:
    """The keys of compression_params, in the order in which the docs list them."""
    table = (
        _one_of("compressor", tuple(registry), "the algorithm; falsy: none"),
        Option(
            "k",
            (numbers.Real,),
            lambda v: 0 < v < 1 or (v >= 1 and v % 1 == 0),
            "a share between 0 and 1 or a whole number >= 1",
            "share of the elements of a chunk (0 < k < 1, at least one) or number of them "
            "(all where there are fewer); number of levels for dithering",
            compressors=("topk", "randomk", "dithering", "dgc"),
            unused=1,
        ),
        _one_of(
            "ef",
            ("vanilla", "corrected", "sparse"),
            "error feedback; corrected: by the ratio of learning rates; sparse: for randomk, where "
            "the aggregator corrects what was drawn, which is all that it has",
        ),
        _one_of(
            "momentum",
            ("nesterov",),
            "momentum before the compressor; takes the value of "
            "optimizer_params['momentum'], which the optimizer then no longer applies",
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
            compressors=("randomk", "dithering"),
        ),
        _switch("fp16", "what no compressor handles travels as float16"),
    )
    return {option.name: option for option in table}


@dataclass(frozen=True)
class CompressionParams:
    """Checked compression_params.

    Parameters
    ----------
    compressor : Compressor, optional
        None: values travel as they are.
    ef : str, optional
        "vanilla", "corrected", "sparse" or None.
    mu : float, optional
        Momentum of "nesterov", None without.
    fp16 : bool
        What no compressor handles travels as float16.
    """

    compressor: Optional[Compressor] = None
    ef: Optional[str] = None
    mu: Optional[float] = None
    fp16: bool = False

    @property
    def header_bytes(self) -> int:
        """What feedback sends before a payload that is aggregated."""
        aggregated = self.compressor is not None and not self.compressor.summable
        return _RATIO_BYTES if aggregated and self.ef == "corrected" else 0

    def payload_bytes(self, n: int, dtype: str) -> int:
        """Size of the payload of n elements with its header, or the most that it can be."""
        return self.header_bytes + self.compressor.payload_bytes(n, np.dtype(dtype).itemsize)

    def used_bytes(self, message: np.ndarray) -> int:
        """How much of a message, uint8, with room for the longest is in use.

        Raises
        ------
        ValueError
            The message says that it is longer than that.
        """
        if not self.compressor.variable:
            return message.size
        (length,) = message[self.header_bytes :][:4].view(np.uint32)
        used = self.header_bytes + int(length)
        if used > message.size:
            raise ValueError(f"a message of at most {message.size} bytes says it has {used}")
        return used

    def rows(self, n: int, dtype: str) -> MessageRows:
        """How payloads of n elements with their headers travel in rows."""
        length_at = self.header_bytes if self.compressor.variable else None
        return MessageRows(self.payload_bytes(n, dtype), length_at)

    def describe(self) -> Dict[str, Any]:
        """As plain values that JSON can carry, and that `parse` reads back."""
        described: Dict[str, Any] = {"fp16": self.fp16}
        if self.compressor is not None:
            described.update(self.compressor.attributes(), compressor=self.compressor.name)
        if self.ef:
            described["ef"] = self.ef
        return described


def _given(params: Mapping[str, Any], known: Mapping[str, Option]) -> Dict[str, Any]:
    """The keys that are switched on, each checked by itself."""
    given = {}
    for name, value in params.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0)[0]
            raise ValueError(
                f"compression_params has no key {name!r}; did you mean '{near}'? "
                f"The keys are {', '.join(known)}"
            )
        off = value is None or value is False or (isinstance(value, (str, np.bool_)) and not value)
        if not off:
            known[name].check(value)
            given[name] = value
    return given


def parse(
    params: Optional[Mapping[str, Any]], optimizer_params: Optional[Mapping[str, Any]] = None
) -> CompressionParams:
    """Check compression_params.

    Parameters
    ----------
    params : mapping, optional
        As `DistributedTrainer` takes it. None, "" and False switch a key off.
    optimizer_params : mapping, optional
        Where the value of the momentum is found.

    Raises
    ------
    TypeError
        A value has the wrong type.
    ValueError
        An unknown key, a wrong value, or keys that contradict each other.
    KeyError
        A key that the compressor needs is missing.
    """
    if params is None:
        return CompressionParams()
    if not isinstance(params, Mapping):
        raise TypeError(f"compression_params must be a dict, got {type(params).__name__}")
    known = options()
    given = _given(params, known)
    name = given.pop("compressor", None)
    fp16 = bool(given.pop("fp16", False))
    ef = given.pop("ef", None)
    momentum = given.pop("momentum", None)
    if name is None and (ef or momentum):
        key = "ef" if ef else "momentum"
        raise ValueError(f"compression_params['{key}'] needs a 'compressor'")
    if ef == "sparse" and name != "randomk":
        raise ValueError(
            f"compression_params['ef'] 'sparse' is for randomk, not for {name}; "
            "'vanilla' and 'corrected' are for any compressor"
        )
    own = {}
    for key, value in given.items():
        if name in known[key].compressors:
            own[key] = value.item() if isinstance(value, np.generic) else value
        elif value != known[key].unused:
            raise ValueError(
                f"compression_params['{key}'] is for {' and '.join(known[key].compressors)}, "
                f"not for {name or 'no compressor'}; got {value!r}"
            )
    mu = None
    if momentum:
        mu = (optimizer_params or {}).get("momentum")
        if not mu:
            raise ValueError(
                "compression_params['momentum'] needs 'momentum' in optimizer_params, "
                f"got {mu!r} there"
            )
    if name:
        for field in fields(registry[name]):
            if field.default is MISSING and field.name not in own:
                raise KeyError(
                    f"compression_params['{field.name}'] is missing; {name} needs "
                    f"{known[field.name].allowed}"
                )
    compressor = registry[name](**own) if name else None
    return CompressionParams(compressor, ef, None if mu is None else float(mu), fp16)
