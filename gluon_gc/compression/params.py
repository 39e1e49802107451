"""Checks compression_params."""

from __future__ import annotations

import difflib
import warnings
from dataclasses import MISSING, dataclass, fields
from typing import Any, Dict, Mapping, Optional, Tuple, Type

import numpy as np

from .base import Compressor, registry
from .option import Option, options

_RATIO_BYTES = 8  # corrected error feedback sends the ratio of learning rates before each payload


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
    nesterov : bool
        Whether momentum is Nesterov's; only dgc has another.
    hierarchical : bool
        Gradients are summed within a node before they are compressed, where there are nodes.
    exchange : str
        "two_way" or "gather".
    """

    compressor: Optional[Compressor] = None
    ef: Optional[str] = None
    mu: Optional[float] = None
    fp16: bool = False
    nesterov: bool = True
    hierarchical: bool = False
    exchange: str = "two_way"

    @property
    def aggregators(self) -> CompressionParams:
        """How the sum of what is compressed so is compressed: momentum is a worker's."""
        return CompressionParams(self.compressor, self.ef)

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

    def part(self, n: int, dtype: str) -> Tuple[int, Optional[int]]:
        """How payloads of n elements with their headers travel, as `MessageRows` has it."""
        length_at = self.header_bytes if self.compressor.variable else None
        return self.payload_bytes(n, dtype), length_at

    def describe(self) -> Dict[str, Any]:
        """As plain values that JSON can carry, and that `parse` reads back."""
        described: Dict[str, Any] = {"fp16": self.fp16}
        if self.compressor is None:
            return described
        described.update(self.compressor.options(), compressor=self.compressor.name)
        described.update(hierarchical=self.hierarchical, exchange=self.exchange)
        if self.ef and not self.compressor.accumulates:
            described["ef"] = self.ef
        return described


def _keys_that_are_on(params: Mapping[str, Any], known: Mapping[str, Option]) -> Dict[str, Any]:
    """What is not off; a switch may be False."""
    on = {}
    for key, value in params.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0)[0]
            raise ValueError(
                f"compression_params has no key {key!r}; did you mean '{near}'? "
                f"The keys are {', '.join(known)}"
            )
        off = value is None or (isinstance(value, str) and not value)
        if isinstance(value, (bool, np.bool_)) and not value:
            off = bool not in known[key].types
        if not off:
            on[key] = value
    return on


def ignored(params: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """The keys of valid compression_params that are for other compressors and do nothing.

    What BytePS's scripts pass for a key that they do not mean is not among them.
    """
    known = options()
    on = _keys_that_are_on(params or {}, known)
    name = on.get("compressor")
    return {
        key: value
        for key, value in on.items()
        if not known[key].is_for(name) and value and value != known[key].unused
    }


def warn_of_ignored(*several: Optional[Mapping[str, Any]]) -> None:
    """Give one warning, at the caller's caller, of all keys that are ignored in these params."""
    told = []
    for params in several:
        for key, value in ignored(params).items():
            name = params.get("compressor")
            why = f"is not for {name}" if name else "needs a compressor"
            text = f"'{key}' {why}, got {value!r}"
            if text not in told:
                told.append(text)
    if told:
        message = f"compression_params has keys that are ignored: {'; '.join(told)}"
        warnings.warn(message, stacklevel=3)


def parse(
    params: Optional[Mapping[str, Any]], mu: Optional[float] = None, nesterov: bool = False
) -> CompressionParams:
    """Check compression_params.

    Keys that are for other compressors are ignored; `warn_of_ignored` says so.

    Parameters
    ----------
    params : mapping, optional
        As `DistributedTrainer` takes it. None, "" and False switch a key off.
    mu : float, optional
        The optimizer's momentum, which the compressor is to apply if asked to.
    nesterov : bool
        Whether that is Nesterov's.

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
    on = _keys_that_are_on(params, known)
    name = on.pop("compressor", None)
    if name is not None:
        known["compressor"].check(name)
    if on.get("ef") == "sparse" and name not in (None, "randomk"):
        raise ValueError(
            f"compression_params['ef'] 'sparse' is for randomk, not for {name}; "
            "'vanilla' and 'corrected' are for any compressor but dgc"
        )
    given = {key: value for key, value in on.items() if known[key].is_for(name)}
    for key, value in given.items():
        known[key].check(value)
    fp16 = bool(given.pop("fp16", False))
    if name is None:
        return CompressionParams(fp16=fp16)
    kind = registry[name]
    ef = given.pop("ef", "vanilla" if kind.accumulates else None)
    asked = given.pop("momentum", None) is not None
    if asked and not mu:
        raise ValueError(
            "compression_params['momentum'] needs 'momentum' in optimizer_params, or an optimizer "
            f"that has momentum; got {mu!r}"
        )
    exchange = given.pop("exchange", "gather" if kind.accumulates else "two_way")
    if kind.accumulates and exchange != "gather":
        raise ValueError(f"compression_params['exchange'] must be 'gather' for {name}")
    hierarchical = bool(given.pop("hierarchical", kind.hierarchical))
    return CompressionParams(
        compressor=kind(**_own_options(kind, given, known)),
        ef=ef,
        mu=float(mu) if mu and (asked or kind.accumulates) else None,
        fp16=fp16,
        nesterov=asked or nesterov or not kind.accumulates,
        hierarchical=hierarchical,
        exchange=exchange,
    )


def _own_options(
    kind: Type[Compressor], given: Mapping[str, Any], known: Mapping[str, Option]
) -> Dict[str, Any]:
    """The options of one compressor, as plain Python values.

    Raises
    ------
    ValueError
        Two of them are the same.
    KeyError
        One that it needs is missing.
    """
    own = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in given.items()
    }
    ratio = own.pop("compress_ratio", None)
    if ratio is not None:
        if "k" in own:
            raise ValueError("compression_params have 'k' and 'compress_ratio', which are the same")
        own["k"] = ratio if ratio < 1 else 1 / ratio
    for field in fields(kind):
        if field.default is MISSING and field.name not in own:
            raise KeyError(
                f"compression_params['{field.name}'] is missing; {kind.name} needs "
                f"{known[field.name].allowed}"
            )
    return own
