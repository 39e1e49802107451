"""One key of compression_params, and how a compressor declares its own: as fields with metadata."""

from __future__ import annotations

import difflib
import numbers
from dataclasses import MISSING, dataclass, field
from typing import Any, Callable, Iterable, Sequence, Tuple

import numpy as np


@dataclass(frozen=True)
class Option:
    """What a key may be.

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

    def check(self, name: str, value: Any) -> None:
        """Raise TypeError or ValueError if `value` is not allowed."""
        message = f"compression_params['{name}'] must be {self.allowed}, got {value!r}"
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
        """The option as a field of a compressor; without a default it must be given."""
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


def share_or_count() -> Option:
    """k of a compressor that sends some of the elements."""

    def rule(k: Any) -> bool:
        of_all = k == 1 and not isinstance(k, numbers.Integral)  # where 1 means one of them
        return 0 < k < 1 or (k >= 1 and k % 1 == 0 and not of_all)

    return Option(
        (numbers.Real,),
        rule,
        "a share below 1 or a whole number >= 1",
        "share of the elements of a chunk (0 < k < 1, at least one) or number of them (all where "
        "there are fewer); 1.0, which could mean either, is refused",
        unused=1,
        hint=lambda k: (
            ", which could be the share of all elements or the number of one: write 1 for one "
            "element of each chunk; to send all, leave out the compressor"
            if k == 1
            else ""
        ),
    )


def seed() -> Option:
    """The seed of a compressor that draws."""
    return whole(1, "seed of the random stream; none: another one in every run")
