"""Options that several compressors have."""

from __future__ import annotations

import numbers
from typing import Any

from ..options import Option, whole


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
