"""Options of compressors and algorithms: dataclass fields with a type, a rule and a help text."""

from __future__ import annotations

import difflib
import fnmatch
import json
import numbers
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence, TypeVar

import numpy as np


@dataclass(frozen=True)
class Option:
    """The type, the rule and the help text of an option."""

    types: tuple[type, ...]
    rule: Callable[[Any], bool]  # whether a value of these types is allowed
    allowed: str  # the rule in words, for errors and docs
    meaning: str  # the help text, one line
    unused: Any = None  # the value that BytePS's example scripts pass if they do not use the option
    choices: tuple[str, ...] = ()  # the allowed values, if they are words
    hint: Callable[[Any], str] = lambda value: ""  # the end of the error for a refused value

    def check(self, name: str, value: Any, argument: str = "compression_params") -> None:
        """Raise TypeError or ValueError unless a value is allowed. The error names the key."""
        message = f"{argument}['{name}'] must be {self.allowed}, got {value!r}"
        is_bool = isinstance(value, (bool, np.bool_))
        if not isinstance(value, self.types) or (is_bool and bool not in self.types):
            raise TypeError(f"{message} ({type(value).__name__})")
        if not self.rule(value):
            raise ValueError(f"{message}{self.hint(value)}")

    def from_text(self, text: str) -> Any:
        """Convert text from a command line to a value. Other text is returned as it is."""
        word = text.strip().lower()
        if bool in self.types:
            return {"true": True, "1": True, "false": False, "0": False}.get(word, text)
        if self.choices:
            return word
        if list in self.types and "," in word:
            return [number_of(part) for part in word.split(",") if part]
        if Mapping in self.types:
            try:
                return json.loads(text)
            except ValueError:
                return text
        return number_of(text)

    def field(self, default: Any = MISSING) -> Any:
        """A dataclass field with this option. Without a default, the user must give a value."""
        return field(default=default, metadata={"option": self})


class WithOptions:
    """The base class of dataclasses whose fields are made by `Option.field`."""

    @classmethod
    def keys(cls) -> dict[str, Option]:
        """The options, by name."""
        return {field.name: field.metadata["option"] for field in fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The default values of the options that may be left out."""
        return {field.name: field.default for field in fields(cls) if field.default is not MISSING}

    @classmethod
    def missing(cls, given: Collection[str]) -> str:
        """The first option that must be given and is not; "": there is none."""
        known = {*given, *cls.defaults()}
        return next((key for key in cls.keys() if key not in known), "")


def number_of(text: str) -> Any:
    """Convert text to an int or a float. Text that is not a number is returned as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def plain(value: Any) -> Any:
    """A value, also within mappings, with NumPy scalars as Python numbers."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def listed(names: Sequence[str], word: str) -> str:
    """Join names as in a sentence: "a, b or c" if `word` is "or"."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def nearest(name: Any, known: Iterable[str]) -> str:
    """The known name that is most similar to a misspelt one."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]


def require_arguments(given: Iterable[str], known: Collection[str], function: str) -> None:
    """Raise TypeError unless a function knows each of these arguments."""
    for name in given:
        if name not in known:
            raise TypeError(
                f"{function} has no argument {name!r}; did you mean '{nearest(name, known)}'?"
            )


Value = TypeVar("Value")


def require_matches(patterns: Iterable[str], names: Collection[str], argument: str) -> None:
    """Raise ValueError unless each pattern, such as "*.bias", matches a parameter's name."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"{argument} has {pattern!r}, but there is no such parameter; did you mean "
                f"'{nearest(pattern, names)}'?"
            )


def require_different(names: Iterable[str], subject: str) -> None:
    """Raise ValueError if a name occurs twice. `subject` begins the error."""
    seen = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{subject} has the name '{name}' twice")
        seen.add(name)


def first_match(name: str, by_pattern: Mapping[str, Value], default: Value) -> Value:
    """The value of the first pattern that matches a name, or `default`."""
    matching = (value for p, value in by_pattern.items() if fnmatch.fnmatchcase(name, p))
    return next(matching, default)


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy. A bool is not one."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def checked_epoch(epoch: Any) -> int:
    """An epoch, counted from 0, as an int. Raise TypeError or ValueError for any other value."""
    if not is_whole(epoch):
        raise TypeError(f"epoch must be a whole number, got {epoch!r}")
    if epoch < 0:
        raise ValueError(f"epoch must be >= 0, got {epoch}")
    return int(epoch)


def one_of(choices: Sequence[str], meaning: str, unused: Any = None) -> Option:
    """An option whose value is one of several words."""
    allowed = listed([f"'{choice}'" for choice in choices], "or")
    rule = choices.__contains__
    return Option((str,), rule, allowed, meaning, unused, tuple(choices))


def switch(meaning: str) -> Option:
    return Option((bool, np.bool_), lambda value: True, "True or False", meaning)


def real(rule: Callable[[Any], bool], allowed: str, meaning: str) -> Option:
    return Option((numbers.Real,), rule, allowed, meaning)


def whole(least: int, meaning: str) -> Option:
    """An option that is a whole number of at least `least`."""
    allowed = f"a whole number >= {least}" if least != 1 else "a whole number > 0"
    return Option((numbers.Integral,), lambda value: value >= least, allowed, meaning)


def share_or_whole(
    meaning: str, unused: Any = None, hint: Callable[[Any], str] = lambda value: ""
) -> Option:
    """An option that is a share below 1, or a whole number of at least 1.

    1.0 is refused, because it could mean either.
    """

    def rule(value: Any) -> bool:
        ambiguous = value == 1 and not isinstance(value, numbers.Integral)
        return 0 < value < 1 or (value >= 1 and value % 1 == 0 and not ambiguous)

    allowed = "a share below 1 or a whole number >= 1"
    return Option((numbers.Real,), rule, allowed, meaning, unused, hint=hint)
