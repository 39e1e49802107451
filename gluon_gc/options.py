"""Options of compressors and algorithms: fields of dataclasses that say what they may be."""

from __future__ import annotations

import difflib
import numbers
from dataclasses import MISSING, dataclass, field
from typing import Any, Callable, Iterable, Sequence, Tuple

import numpy as np


@dataclass(frozen=True)
class Option:
    """What an option may be.

    Parameters
    ----------
    types : tuple of type
    rule : callable
        Whether a value of these types is allowed.
    allowed : str
        The rule in words.
    meaning : str
        One line of help.
    unused : object, optional
        What BytePS's scripts pass for a key that they do not mean.
    choices : tuple of str
        All that it may be, if these are words.
    hint : callable
        What an error adds about a value that is refused.
    """

    types: Tuple[type, ...]
    rule: Callable[[Any], bool]
    allowed: str
    meaning: str
    unused: Any = None
    choices: Tuple[str, ...] = ()
    hint: Callable[[Any], str] = lambda value: ""

    def check(self, name: str, value: Any, argument: str = "compression_params") -> None:
        """Raise TypeError or ValueError if `value` is not allowed for that key of an argument."""
        message = f"{argument}['{name}'] must be {self.allowed}, got {value!r}"
        is_bool = isinstance(value, (bool, np.bool_))
        if not isinstance(value, self.types) or (is_bool and bool not in self.types):
            raise TypeError(f"{message} ({type(value).__name__})")
        if not self.rule(value):
            raise ValueError(f"{message}{self.hint(value)}")

    def from_text(self, text: str) -> Any:
        """The value that words on a command line mean; text that means none is left as it is."""
        word = text.strip().lower()
        if bool in self.types:
            return {"true": True, "1": True, "false": False, "0": False}.get(word, text)
        if self.choices:
            return word
        if list in self.types and "," in word:
            return [number_of(part) for part in word.split(",") if part]
        return number_of(text)

    def field(self, default: Any = MISSING) -> Any:
        """The option as a field of a dataclass; without a default it must be given."""
        return field(default=default, metadata={"option": self})


def number_of(text: str) -> Any:
    """The number that a text means; the text itself if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def listed(names: Sequence[str], word: str) -> str:
    """Names as a sentence has them, with `word` before the last."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def nearest(name: Any, known: Iterable[str]) -> str:
    """The name that somebody may have meant."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]


def is_whole(value: Any) -> bool:
    """Whether a value is an integer, of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def checked_epoch(epoch: Any) -> int:
    """An epoch, counted from 0, as an int; TypeError or ValueError if it is none."""
    if not is_whole(epoch):
        raise TypeError(f"epoch must be a whole number, got {epoch!r}")
    if epoch < 0:
        raise ValueError(f"epoch must be >= 0, got {epoch}")
    return int(epoch)


def one_of(choices: Sequence[str], meaning: str, unused: Any = None) -> Option:
    """A choice between words."""
    allowed = listed([f"'{choice}'" for choice in choices], "or")
    rule = choices.__contains__
    return Option((str,), rule, allowed, meaning, unused, tuple(choices))


def switch(meaning: str) -> Option:
    """True or False."""
    return Option((bool, np.bool_), lambda value: True, "True or False", meaning)


def real(rule: Callable[[Any], bool], allowed: str, meaning: str) -> Option:
    """A number."""
    return Option((numbers.Real,), rule, allowed, meaning)


def whole(least: int, meaning: str) -> Option:
    """A whole number."""
    allowed = f"a whole number >= {least}" if least != 1 else "a whole number > 0"
    return Option((numbers.Integral,), lambda value: value >= least, allowed, meaning)
