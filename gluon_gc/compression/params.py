"""Checks compression_params."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Dict, Mapping, Optional, Type

import numpy as np

from .. import kernels
from .base import Compressor, registry
from .known_keys import AUTO, common, is_for, keys_that_are_on


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
        Momentum that the compressor applies, None without.
    fp16 : bool
        What no compressor handles travels as float16.
    nesterov : bool
        Whether momentum is Nesterov's; only a compressor that accumulates has another.
    hierarchical : bool
        Where a machine has several workers, they sum what they have before it travels.
    exchange : str
        "two_way" or "gather".
    accuracy : str, optional
        How much of it "auto" may give up for each tensor, whose compressor is not chosen yet.
    """

    compressor: Optional[Compressor] = None
    ef: Optional[str] = None
    mu: Optional[float] = None
    fp16: bool = False
    nesterov: bool = True
    hierarchical: bool = True
    exchange: str = "two_way"
    accuracy: Optional[str] = None

    @property
    def keeps_state(self) -> bool:
        """Whether a worker keeps a residual or momentum from step to step."""
        accumulates = self.compressor is not None and self.compressor.traits.accumulates
        return bool(self.ef) or self.mu is not None or accumulates

    @property
    def aggregators(self) -> CompressionParams:
        """How the sum of what is compressed so is compressed: momentum is a worker's."""
        return CompressionParams(self.compressor, self.ef)

    @property
    def of_rows(self) -> CompressionParams:
        """How a gradient in rows is compressed, where each worker may have other rows.

        No aggregator can keep what the sum of changing rows loses, so all workers get all payloads.
        Momentum, and a compressor with its own, need values of all rows in every step.
        """
        if self.compressor is None or self.compressor.traits.accumulates:
            return CompressionParams(fp16=self.fp16)
        return replace(self, mu=None, hierarchical=False, exchange="gather")

    @property
    def on_gpu(self) -> CompressionParams:
        """How a gradient on a GPU is compressed, also where the CPU has to do it."""
        if self.compressor is None:
            return self
        return replace(self, compressor=self.compressor.on_gpu())

    def require_chosen(self) -> CompressionParams:
        """The same; ValueError if nobody could choose what "auto" stands for."""
        if self.accuracy is not None:
            raise ValueError(
                "compression_params['compressor'] 'auto' is for what knows all gradients of a "
                "step: DistributedTrainer, or PyTorch's CompressionState and DistributedOptimizer; "
                "a plain Trainer, fully_shard, or a single tensor needs another one"
            )
        return self

    def options(self, epoch: Optional[int] = None) -> Dict[str, Any]:
        """What a codec is told, in an epoch if one was ever set."""
        feedback = dict(ef=self.ef, mu=self.mu, epoch=epoch)
        if self.compressor.traits.accumulates:
            feedback["nesterov"] = self.nesterov
        told = {**self.compressor.options(), **feedback}
        return {name: value for name, value in told.items() if value is not None}

    def codec(
        self, n: int, dtype: str, epoch: Optional[int] = None, isa: Optional[str] = None
    ) -> kernels.Codec:
        """The codec of n elements."""
        return kernels.Codec(self.compressor.name, self.options(epoch), n, dtype, isa)

    def state_layout(self, n: int, dtype: str) -> kernels.Layout:
        """Shape and dtype of each array that a checkpoint keeps of a chunk of n elements."""
        return dict(_saved_layout(self, n, dtype))

    def describe(self) -> Dict[str, Any]:
        """As plain values that JSON can carry, and that `parse` reads back."""
        described: Dict[str, Any] = {"fp16": self.fp16, "hierarchical": self.hierarchical}
        if self.accuracy is not None:
            described.update(compressor=AUTO, accuracy=self.accuracy, ef=self.ef)
        if self.compressor is None:
            return described
        described.update(self.compressor.options(), compressor=self.compressor.name)
        described["exchange"] = self.exchange
        if self.ef:
            described["ef"] = self.ef
        return described

    def given(self) -> Dict[str, Any]:
        """As compression_params, without the common keys that are as usual, for people to read."""
        momentum = "nesterov" if self.mu is not None and self.nesterov else None
        described = {**self.describe(), "momentum": momentum}
        usual = {"hierarchical": True}
        shared = {
            key: described[key]
            for key in common()
            if (described.get(key) or None) != usual.get(key)
        }
        return {**shared, **(self.compressor.options() if self.compressor else {})}

    def identity(self) -> Dict[str, Any]:
        """All that workers, and a run that goes on, must have alike; plain values too."""
        return {**self.describe(), "mu": self.mu, "nesterov": self.nesterov}


@lru_cache(maxsize=1024)
def _saved_layout(params: CompressionParams, n: int, dtype: str) -> kernels.Layout:
    """`Codec.saved_layout` of a codec that is made to be asked."""
    return params.codec(n, dtype).saved_layout()


def parse(
    params: Optional[Mapping[str, Any]],
    mu: Optional[float] = None,
    nesterov: bool = False,
    optimizer: str = "",
) -> CompressionParams:
    """Check compression_params.

    Keys that are for other compressors are ignored; `warn_of_ignored` says so.

    Parameters
    ----------
    params : mapping, optional
        As `DistributedTrainer` takes it. None, "" and False switch a key off.
    mu : float, optional
        The optimizer's momentum, which the compressor is to apply if asked to.
    nesterov : bool
        Whether that is Nesterov's.
    optimizer : str
        What errors call the optimizer.

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
    on = keys_that_are_on(params)
    shared = common()
    name = on.pop("compressor", None)
    if name is not None:
        shared["compressor"].check("compressor", name)
    kind = registry.get(name)
    if on.get("ef") == "sparse" and name is not None and not (kind and kind.traits.draws_alike):
        alike = ", ".join(other for other in registry if registry[other].traits.draws_alike)
        raise ValueError(
            f"compression_params['ef'] 'sparse' is for {alike}, not for {name}; "
            "'vanilla' and 'corrected' are for any compressor that does not accumulate"
        )
    given = {key: value for key, value in on.items() if is_for(key, name)}
    for key, value in given.items():
        (shared.get(key) or kind.keys()[key]).check(key, value)
    fp16, hierarchical = given.pop("fp16", False), given.pop("hierarchical", True)
    for_all = dict(fp16=bool(fp16), hierarchical=bool(hierarchical))
    if name is None:
        return CompressionParams(**for_all)
    asked = given.pop("momentum", None) is not None
    if asked and not mu:
        of = f" of {optimizer}" if optimizer else ""
        raise ValueError(
            "compression_params['momentum'] needs the momentum of an optimizer, as of SGD or NAG "
            f"with 'momentum', or 'byteps_momentum_mu' of a single tensor; got {mu!r}{of}. Leave "
            "it out with optimizers that have no momentum"
        )
    if kind is None:
        momentum, ef = (float(mu) if asked else None), given.get("ef", "vanilla")
        accuracy = given.get("accuracy", "safe")
        return CompressionParams(mu=momentum, ef=ef, accuracy=accuracy, **for_all)
    accumulates = kind.traits.accumulates
    exchange = given.pop("exchange", "gather" if accumulates else "two_way")
    if accumulates and exchange != "gather":
        raise ValueError(f"compression_params['exchange'] must be 'gather' for {name}")
    return CompressionParams(
        ef=given.pop("ef", None),
        mu=float(mu) if mu and (asked or accumulates) else None,
        **for_all,
        nesterov=asked or nesterov or not accumulates,
        exchange=exchange,
        compressor=_made(kind, given),
    )


def _made(kind: Type[Compressor], given: Mapping[str, Any]) -> Compressor:
    """A compressor with its own options, as plain Python values; KeyError if one is missing."""
    own = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in given.items()
    }
    for field in fields(kind):
        if field.default is MISSING and field.name not in own:
            raise KeyError(
                f"compression_params['{field.name}'] is missing; {kind.name} needs "
                f"{kind.keys()[field.name].allowed}"
            )
    return kind(**own)
