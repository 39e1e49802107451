"""BytePS's own spellings of compression_params: "byteps_compressor_type" and its like.

BytePS's trainer sets them as attributes of parameters and declares each gradient with them, as a
script may do itself; most values are text. The common ones are in a table, and a compressor's own
follow from its options: "byteps_seed", "byteps_compressor_k", "byteps_compressor_onebit_scaling".
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Optional

import numpy as np

from ..options import Option, nearest, number_of
from .base import registry
from .known_keys import common
from .params import CompressionParams, parse

PREFIX = "byteps_"
MOMENTUM = "byteps_momentum_mu"
COMMON = {
    "byteps_compressor_type": "compressor",
    "byteps_ef_type": "ef",
    "byteps_compressor_ef_type": "ef",
    "byteps_error_feedback_type": "ef",
    "byteps_momentum_type": "momentum",
}
"""The spellings for all compressors, with their keys of compression_params."""


class Spelling(NamedTuple):
    """The meaning of a spelling.

    Parameters
    ----------
    key : str
        The key of compression_params.
    option : Option
    compressor : str, optional
        The compressor that it is for, if it is for one only.
    """

    key: str
    option: Option
    compressor: Optional[str] = None


@dataclass(frozen=True)
class Spelled:
    """compression_params that were, or may have been, spelled as BytePS does.

    Parameters
    ----------
    params : mapping, optional
        The params in our spelling.
    mu : float, optional
        The momentum, if it was given.
    """

    params: Optional[Mapping[str, Any]]
    mu: Optional[float] = None

    def parse(
        self, mu: Optional[float] = None, nesterov: bool = False, optimizer: str = ""
    ) -> CompressionParams:
        """Check them, with the optimizer's momentum `mu`; see `params.parse`.

        Raises
        ------
        ValueError
            As `params.parse`; or the given momentum is not the optimizer's, or is not applied.
        """
        if self.mu and mu and self.mu != mu:
            raise ValueError(
                f"{MOMENTUM} must be the optimizer's momentum, {mu}, if that is not 0; "
                f"got {self.mu}"
            )
        params = parse(self.params, mu or self.mu, nesterov, optimizer)
        if self.mu and params.mu is None:
            raise ValueError(
                f"{MOMENTUM} needs a compressor and 'byteps_momentum_type'; got {self.mu}"
            )
        return params


def spellings() -> Dict[str, Spelling]:
    """All spellings except `MOMENTUM`."""
    shared = common()
    table = {name: Spelling(key, shared[key]) for name, key in COMMON.items()}
    for compressor, kind in registry.items():
        for key, option in kind.keys().items():
            for group in ("", "compressor_"):
                table.setdefault(f"{PREFIX}{group}{key}", Spelling(key, option))
                own = Spelling(key, option, compressor)
                table[f"{PREFIX}{group}{compressor}_{key}"] = own
    return table


def translate(given: Mapping[str, Any], of_all: Optional[Mapping[str, Any]] = None) -> Spelled:
    """Translate keys of compression_params from BytePS's spelling to ours.

    Parameters
    ----------
    given : mapping
    of_all : mapping, optional
        compression_params that these complete, unless these name a compressor.

    Raises
    ------
    ValueError
        A "byteps_" name that there is not, or one for another compressor; a key that is given
        twice; a momentum that is no number >= 0.
    """
    table = spellings()
    known = [*table, MOMENTUM]
    params: Dict[str, Any] = {}
    names: Dict[str, str] = {}  # the spelling of each key
    for name, value in given.items():
        if name == MOMENTUM:
            continue
        spelling = table.get(name)
        if spelling is None and str(name).startswith(PREFIX):
            raise ValueError(
                f"{name!r} is no name of BytePS's; did you mean '{nearest(name, known)}'?"
            )
        key = spelling.key if spelling else name
        if key in names:
            raise ValueError(f"'{names[key]}' and '{name}' are the same; give one of them")
        names[key] = name
        params[key] = _read(spelling, value) if spelling else value
    if "compressor" not in params:
        params = {**(of_all or {}), **params}
    for name in names.values():
        only = table[name].compressor if name in table else None
        if only not in (None, params.get("compressor")):
            got = params.get("compressor") or None
            raise ValueError(f"'{name}' is for the compressor '{only}', which is {got!r} here")
    return Spelled(params, _momentum(given.get(MOMENTUM)))


def of_parameter(param: Any, of_all: Optional[Mapping[str, Any]]) -> Optional[Spelled]:
    """The compression_params in a parameter's attributes; None if there are none.

    Parameters
    ----------
    param : object
        With an attribute `compression_params`, or with some of BytePS's.
    of_all : mapping, optional
        The trainer's compression_params.

    Raises
    ------
    ValueError
        As `translate`; or there are both.
    """
    given = {name: value for name, value in vars(param).items() if name.startswith(PREFIX)}
    if not hasattr(param, "compression_params"):
        return translate(given, of_all) if given else None
    if given:
        raise ValueError(
            f"parameter {param.name} has compression_params and '{next(iter(given))}'; "
            "give one of them"
        )
    return Spelled(param.compression_params)


def _read(spelling: Spelling, value: Any) -> Any:
    """A value, which may be text, in the option's type. A wrong one is refused later."""
    option, text = spelling.option, str(value).strip()
    numbered = option.choices and spelling.key not in COMMON.values() and text.isdecimal()
    if numbered and int(text) < len(option.choices):
        return option.choices[int(text)]  # BytePS's registry numbers them
    if isinstance(value, str) or bool in option.types:
        read = option.from_text(text)
        return value if read == text else read
    return value


def _momentum(value: Any) -> Optional[float]:
    number = number_of(value) if isinstance(value, str) else value
    if number is None or number == "":
        return None
    is_number = isinstance(number, numbers.Real) and not isinstance(number, (bool, np.bool_))
    if not is_number or not number >= 0:
        raise ValueError(f"{MOMENTUM} must be a number >= 0, got {value!r}")
    return float(number)
