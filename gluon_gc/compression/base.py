"""The base class of the compressors, their registry, and the options that several share."""

from __future__ import annotations

import numbers
from dataclasses import asdict, dataclass
from typing import ClassVar

from .. import kernels
from ..options import Option, WithOptions, share_or_whole, whole

registry: dict[str, type["Compressor"]] = {}
"""The compressors by name, as in compression_params["compressor"]."""


def register(compressor: type["Compressor"]) -> type["Compressor"]:
    """Class decorator: add a compressor to the registry."""
    registry[compressor.name] = compressor
    compressor.traits = kernels.compressors()[compressor.name]
    return compressor


@dataclass(frozen=True)
class Compressor(WithOptions):
    """The options of a compressor. The compressor itself is operators/core/compressors/NAME.cpp.

    Each option of a subclass is a field that `Option.field` returns.

    Attributes
    ----------
    name, description : str
    traits : kernels.Traits
        Properties of the compressor, which the compiled library reports.
    full : bool
        Whether payloads of varying length nearly always have their maximum length.
    aggregator_repeats : bool
        Whether the aggregator draws the random numbers of worker 0 if there is a seed, as in
        BytePS. This makes the average biased.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    traits: ClassVar[kernels.Traits]
    full: ClassVar[bool] = False
    aggregator_repeats: ClassVar[bool] = False

    def on_gpu(self) -> Compressor:
        """This compressor with the options for gradients on a GPU."""
        return self

    def runs_on_gpu(self) -> bool:
        """Whether a GPU can run this compressor with these options.

        If its kernels cannot run, the log gives the reason.
        """
        fits = self.traits.cuda and self == self.on_gpu()
        return fits and kernels.runs_on_gpu(self.name)

    def options(self) -> dict[str, object]:
        """The options, by their keys in compression_params. Options that are None are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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
