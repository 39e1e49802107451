"""What a compressor is to Python, and the registry of those that exist."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import ClassVar, Dict, Type

from .. import kernels
from ..options import Option

registry: Dict[str, Type["Compressor"]] = {}
"""The compressors by the name that compression_params gives them."""


def register(compressor: Type["Compressor"]) -> Type["Compressor"]:
    """Class decorator: make a compressor available under its name."""
    registry[compressor.name] = compressor
    compressor.traits = kernels.compressors()[compressor.name]
    return compressor


@dataclass(frozen=True)
class Compressor:
    """A compressor's options; what it does is in operators/core/compressors/NAME.cpp.

    A subclass has its options as fields, made by `Option.field`.

    Attributes
    ----------
    name, description : str
    traits : kernels.Traits
        What the library says of it.
    full : bool
        Whether payloads whose length may vary are hardly ever shorter than they may be at most.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    traits: ClassVar[kernels.Traits]
    full: ClassVar[bool] = False

    @classmethod
    def keys(cls) -> Dict[str, Option]:
        """The keys of compression_params that are this compressor's own."""
        return {field.name: field.metadata["option"] for field in fields(cls)}

    @classmethod
    def defaults(cls) -> Dict[str, object]:
        """What those of these keys are that need not be given."""
        return {field.name: field.default for field in fields(cls) if field.default is not MISSING}

    def on_gpu(self) -> Compressor:
        """The same for gradients on a GPU."""
        return self

    def runs_on_gpu(self) -> bool:
        """Whether a GPU can, with these options; if kernels are not there, the log says why."""
        fits = self.traits.cuda and self == self.on_gpu()
        return fits and kernels.runs_on_gpu(self.name)

    def options(self) -> Dict[str, object]:
        """The options, as compression_params have them."""
        return {name: value for name, value in asdict(self).items() if value is not None}
