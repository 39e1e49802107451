"""Checks compression_params."""

from __future__ import annotations

import difflib
from dataclasses import MISSING, dataclass, fields
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from .base import Compressor, registry
from .option import Option, listed, options

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


def _given(params: Mapping[str, Any], known: Mapping[str, Option]) -> Dict[str, Any]:
    """The keys that are not off, each checked by itself; a switch may be False."""
    given = {}
    for name, value in params.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0)[0]
            raise ValueError(
                f"compression_params has no key {name!r}; did you mean '{near}'? "
                f"The keys are {', '.join(known)}"
            )
        off = value is None or (isinstance(value, str) and not value)
        if isinstance(value, (bool, np.bool_)) and not value:
            off = bool not in known[name].types
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
    if name is None:
        for key in ("ef", "momentum", "exchange", "hierarchical"):
            if given.pop(key, None):
                raise ValueError(f"compression_params['{key}'] needs a 'compressor'")
        _own_options(name, given, known)
        return CompressionParams(fp16=fp16)
    kind = registry[name]
    ef = given.pop("ef", None)
    nesterov = given.pop("momentum", None) is not None
    exchange = given.pop("exchange", "gather" if kind.accumulates else "two_way")
    hierarchical = bool(given.pop("hierarchical", kind.hierarchical))
    if ef == "sparse" and name != "randomk":
        raise ValueError(
            f"compression_params['ef'] 'sparse' is for randomk, not for {name}; "
            "'vanilla' and 'corrected' are for any compressor but dgc"
        )
    if kind.accumulates:
        if ef:
            raise ValueError(
                f"compression_params['ef'] is not for {name}, which keeps what it does not send "
                f"anyway; got {ef!r}"
            )
        if exchange != "gather":
            raise ValueError(f"compression_params['exchange'] must be 'gather' for {name}")
        ef = "vanilla"
    compressor = kind(**_own_options(name, given, known))
    mu = (optimizer_params or {}).get("momentum") if nesterov or kind.accumulates else None
    if nesterov and not mu:
        raise ValueError(
            "compression_params['momentum'] needs 'momentum' in optimizer_params, "
            f"got {mu!r} there"
        )
    mu = float(mu) if mu else None
    return CompressionParams(
        compressor, ef, mu, fp16, nesterov or not kind.accumulates, hierarchical, exchange
    )


def _own_options(
    name: Optional[str], given: Mapping[str, Any], known: Mapping[str, Option]
) -> Dict[str, Any]:
    """Of the keys that are for certain compressors, those for this one.

    Raises
    ------
    ValueError
        A key is for another compressor.
    KeyError
        One that this compressor needs is missing.
    """
    own = {}
    for key, value in given.items():
        if name in known[key].compressors:
            own[key] = value.item() if isinstance(value, np.generic) else value
        elif value and value != known[key].unused:
            raise ValueError(
                f"compression_params['{key}'] is for {listed(known[key].compressors, 'and')}, "
                f"not for {name or 'no compressor'}; got {value!r}"
            )
    ratio = own.pop("compress_ratio", None)
    if ratio is not None:
        if "k" in own:
            raise ValueError("compression_params have 'k' and 'compress_ratio', which are the same")
        own["k"] = ratio if ratio < 1 else 1 / ratio
    for field in fields(registry[name]) if name else ():
        if field.default is MISSING and field.name not in own:
            raise KeyError(
                f"compression_params['{field.name}'] is missing; {name} needs "
                f"{known[field.name].allowed}"
            )
    return own
