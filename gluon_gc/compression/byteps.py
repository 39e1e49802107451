"""BytePS's names for the keys of compression_params, such as "byteps_compressor_type".

BytePS's trainer sets them as attributes of parameters, and passes them on when it declares a
gradient. A script may do the same. Most values are strings. `COMMON` lists the names for all
compressors. The names for a compressor's own options are derived from these options:
"byteps_seed", "byteps_compressor_k", "byteps_compressor_onebit_scaling".
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple

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
"""The names that belong to all compressors, with their keys in compression_params."""


class Spelling(NamedTuple):
    key: str  # in compression_params
    option: Option
    compressor: str | None = None  # the only one that the name belongs to; None: any


@dataclass(frozen=True)
class Spelled:
    """compression_params after the translation of BytePS's names."""

    params: Mapping[str, Any] | None
    mu: float | None = None  # the value of "byteps_momentum_mu"

    def parse(
        self, mu: float | None = None, nesterov: bool = False, optimizer: str = ""
    ) -> CompressionParams:
        """Check the params, with the optimizer's momentum `mu`. See `params.parse`.

        Raises ValueError too if "byteps_momentum_mu" differs from `mu`, or if no compressor applies
        it.
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


def spellings() -> dict[str, Spelling]:
    """All names except `MOMENTUM`, with their meanings."""
    shared = common()
    table = {name: Spelling(key, shared[key]) for name, key in COMMON.items()}
    for compressor, kind in registry.items():
        for key, option in kind.keys().items():
            for group in ("", "compressor_"):
                table.setdefault(f"{PREFIX}{group}{key}", Spelling(key, option))
                own = Spelling(key, option, compressor)
                table[f"{PREFIX}{group}{compressor}_{key}"] = own
    return table


def translate(given: Mapping[str, Any], of_all: Mapping[str, Any] | None = None) -> Spelled:
    """Translate BytePS's names to keys of compression_params. Other keys stay as they are.

    If `given` names no compressor, `of_all`, the trainer's compression_params, supplies it and all
    keys that are not in `given`.
    """
    table = spellings()
    known = [*table, MOMENTUM]
    params: dict[str, Any] = {}
    names: dict[str, str] = {}  # the given name of each key
    for name, value in given.items():
        if name == MOMENTUM:
            continue
        spelling = table.get(name)
        if spelling is None and str(name).startswith(PREFIX):
            raise ValueError(
                f"{name!r} is not an option of BytePS; did you mean '{nearest(name, known)}'?"
            )
        key = spelling.key if spelling else name
        if key in names:
            raise ValueError(f"'{names[key]}' and '{name}' mean the same; give one of them")
        names[key] = name
        params[key] = _read(spelling, value) if spelling else value
    if "compressor" not in params:
        params = {**(of_all or {}), **params}
    for name in names.values():
        only = table[name].compressor if name in table else None
        if only not in (None, params.get("compressor")):
            got = params.get("compressor") or None
            raise ValueError(f"'{name}' is an option of '{only}', but the compressor is {got!r}")
    return Spelled(params, _momentum(given.get(MOMENTUM)))


def of_parameter(param: Any, of_all: Mapping[str, Any] | None) -> Spelled | None:
    """The compression_params in the attributes of a parameter, or None if it has none.

    The attribute is `compression_params`, or attributes have BytePS's names. It is a ValueError to
    have both. `of_all` is the trainer's compression_params.
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
    """Convert a value, often a string, to the option's type. `parse` refuses wrong values later."""
    option, text = spelling.option, str(value).strip()
    numbered = option.choices and spelling.key not in COMMON.values() and text.isdecimal()
    if numbered and int(text) < len(option.choices):
        return option.choices[int(text)]  # BytePS numbers the choices of an option
    if isinstance(value, str) or bool in option.types:
        read = option.from_text(text)
        return value if read == text else read
    return value


def _momentum(value: Any) -> float | None:
    number = number_of(value) if isinstance(value, str) else value
    if number is None or number == "":
        return None
    is_number = isinstance(number, numbers.Real) and not isinstance(number, (bool, np.bool_))
    if not is_number or not number >= 0:
        raise ValueError(f"{MOMENTUM} must be a number >= 0, got {value!r}")
    return float(number)
