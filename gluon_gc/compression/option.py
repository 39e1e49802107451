"""Options that several compressors share."""

from __future__ import annotations

import numbers

from ..options import Option, share_or_whole, whole


def share_or_count(group: str = "chunk") -> Option:
    """The option k of a compressor that sends only some elements of a chunk, or of a block."""

    return share_or_whole(
        f"share or number of a {group}'s elements to send: at least one, at most all. 1.0 is "
        "refused, because it could mean either",
        unused=1,
        hint=lambda k: (
            ", which could be the share of all elements or the number of one: write 1 for one "
            f"element of each {group}; to send all, leave out the compressor"
            if k == 1
            else ""
        ),
    )


def value_bits(*choices: int) -> Option:
    """The option value_bits of a compressor that sends the largest elements."""
    return Option(
        (numbers.Integral,),
        choices.__contains__,
        f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}",
        "bits of each value that is sent. 32: values are exact; else rounded, which error feedback "
        "makes up for",
    )


def seed() -> Option:
    """The option seed of a compressor that draws random numbers."""
    return whole(1, "seed of the random numbers. Without it, each run draws others")
