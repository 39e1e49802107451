"""Checks compression_params, and turns them into `CompressionParams`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Iterable, Mapping

from .. import kernels
from ..log import logger, warn_once
from ..options import listed, nearest, plain
from .base import Compressor, registry
from .known_keys import AUTO, common, inner_compressors, is_for, keys_that_are_on

_ADAMS = ("Adam", "AdamW")
_SMALL = 0.01  # with Adam, topk must send this share of the elements


@dataclass(frozen=True)
class CompressionParams:
    """The checked compression_params of one gradient.

    Parameters
    ----------
    compressor : Compressor, optional
        The compressor and its own options. None if the gradient is sent uncompressed.
    ef : str, optional
        The error feedback: "vanilla", "corrected", "sparse" or None.
    mu : float, optional
        The momentum coefficient if momentum is applied before compression, else None.
    ef_decay : float
        The factor that multiplies a residual before it is added to the next gradient.
    fp16 : bool
        Whether an uncompressed gradient is sent as float16.
    nesterov : bool
        Whether the momentum is Nesterov's. Always True unless the compressor accumulates (dgc).
    hierarchical : bool
        Whether the workers of a machine sum their gradients before one of them sends the sum.
    exchange : str
        "two_way": an aggregator sums the payloads and compresses the sum. "gather": every worker
        receives and sums all payloads.
    inner : CompressionParams, optional
        The compression of each worker's values inside a machine that sums them first. None: they
        travel uncompressed.
    accuracy : str, optional
        The accuracy that "auto" must keep. None if the compressor is not "auto".
    for_adam : bool
        Whether "auto" chooses for gradients that Adam or AdamW uses.
    """

    compressor: Compressor | None = None
    ef: str | None = None
    mu: float | None = None
    ef_decay: float = 1.0
    fp16: bool = False
    nesterov: bool = True
    hierarchical: bool = True
    exchange: str = "two_way"
    inner: CompressionParams | None = None
    accuracy: str | None = None
    for_adam: bool = False

    @property
    def draws(self) -> bool:
        """Whether the compressor draws random numbers, so that an average may be zero by chance."""
        return self.compressor is not None and self.compressor.traits.draws

    @property
    def keeps_state(self) -> bool:
        """Whether a worker keeps a residual or a momentum array between steps."""
        accumulates = self.compressor is not None and self.compressor.traits.accumulates
        return bool(self.ef) or self.mu is not None or accumulates

    @property
    def aggregators(self) -> CompressionParams:
        """The params with which an aggregator compresses a sum: the same, without momentum."""
        return CompressionParams(self.compressor, self.ef, ef_decay=self.ef_decay)

    @property
    def uncompressed(self) -> CompressionParams:
        """The params of the same gradient, uncompressed as float32 or float64."""
        return CompressionParams(hierarchical=self.hierarchical)

    @property
    def of_rows(self) -> CompressionParams:
        """The params for a row-sparse gradient, whose rows differ between workers and steps.

        An aggregator cannot keep a residual for changing rows, so all workers gather all payloads.
        Momentum needs all rows in every step, so it is not applied.
        """
        if self.compressor is None or self.compressor.traits.accumulates:
            return CompressionParams(fp16=self.fp16)
        return replace(self, mu=None, hierarchical=False, exchange="gather", inner=None)

    @property
    def on_gpu(self) -> CompressionParams:
        """The params for a gradient on a GPU, even if the CPU compresses it."""
        if self.compressor is None:
            return self
        inner = self.inner and self.inner.on_gpu
        return replace(self, compressor=self.compressor.on_gpu(), inner=inner)

    def require_chosen(self) -> CompressionParams:
        """Return these params. Raise ValueError if the compressor is "auto", not yet chosen."""
        if self.accuracy is not None:
            raise ValueError(
                "compression_params['compressor'] 'auto' must know all gradients of a step, as "
                "DistributedTrainer and PyTorch's CompressionState and DistributedOptimizer do: "
                "name a compressor for a plain Trainer, for fully_shard, or for a single tensor"
            )
        return self

    @property
    def follows_rates(self) -> bool:
        """Whether error feedback needs the learning rate of an optimizer."""
        return self.ef in ("corrected", "sparse")

    def require_no_optimizer(self) -> CompressionParams:
        """Return these params. Raise ValueError if they need an optimizer's learning rate."""
        if self.follows_rates:
            raise ValueError(
                f"compression_params['ef'] '{self.ef}' needs the optimizer, whose learning rate it "
                "follows: pass it, or use 'vanilla' for a plain Trainer, for fully_shard, or for a "
                "single tensor"
            )
        return self

    def require_no_inner(self) -> CompressionParams:
        """Return these params. Raise ValueError if they compress inside machines."""
        if self.inner is not None:
            raise ValueError(
                "compression_params['inner'] is for PyTorch's CompressionState, "
                "DistributedOptimizer and push_pull only: leave it out"
            )
        return self

    def options(self, epoch: int | None = None) -> dict[str, Any]:
        """The options of a codec, for an epoch if one was set."""
        decay = self.ef_decay if self.ef_decay != 1 else None
        feedback = dict(ef=self.ef, ef_decay=decay, mu=self.mu, epoch=epoch)
        if self.compressor.traits.accumulates:
            feedback["nesterov"] = self.nesterov
        options = {**self.compressor.options(), **feedback}
        return {name: value for name, value in options.items() if value is not None}

    def codec(
        self, n: int, dtype: str, epoch: int | None = None, isa: str | None = None
    ) -> kernels.Codec:
        """A codec for n elements with these params."""
        return kernels.Codec(self.compressor.name, self.options(epoch), n, dtype, isa)

    def state_layout(self, n: int, dtype: str) -> kernels.Layout:
        """Shape and dtype of each array that a checkpoint saves for a chunk of n elements."""
        return dict(_saved_layout(self, n, dtype))

    def describe(self) -> dict[str, Any]:
        """The params as a dict that JSON can hold and `parse` can read."""
        described: dict[str, Any] = {"fp16": self.fp16, "hierarchical": self.hierarchical}
        if self.accuracy is not None:
            described.update(compressor=AUTO, accuracy=self.accuracy, ef=self.ef)
        if self.ef_decay != 1:
            described["ef_decay"] = self.ef_decay
        if self.compressor is None:
            return described
        described.update(self.compressor.options(), compressor=self.compressor.name)
        described["exchange"] = self.exchange
        if self.inner is not None:
            compressor = self.inner.compressor
            described["inner"] = {"compressor": compressor.name, **compressor.options()}
        if self.ef:
            described["ef"] = self.ef
        return described

    def given(self) -> dict[str, Any]:
        """The compression_params to show to a user, without common keys that have their default."""
        momentum = "nesterov" if self.mu is not None and self.nesterov else None
        described = {**self.describe(), "momentum": momentum}
        usual = {"hierarchical": True}
        shared = {
            key: described[key]
            for key in common()
            if (described.get(key) or None) != usual.get(key)
        }
        return {**shared, **(self.compressor.options() if self.compressor else {})}

    def identity(self) -> dict[str, Any]:
        """The values that must be the same on all workers, and in a checkpoint that is loaded."""
        return {**self.describe(), "mu": self.mu, "nesterov": self.nesterov}


@lru_cache(maxsize=1024)
def _saved_layout(params: CompressionParams, n: int, dtype: str) -> kernels.Layout:
    """The `Codec.saved_layout` of a codec with these params."""
    return params.codec(n, dtype).saved_layout()


def parse(
    params: Mapping[str, Any] | None,
    mu: float | None = None,
    nesterov: bool = False,
    optimizer: str = "",
) -> CompressionParams:
    """Check compression_params.

    Keys of other compressors are ignored. `warn_of_ignored` warns of them.

    Parameters
    ----------
    params : mapping, optional
        The argument of `DistributedTrainer`. The values None, "" and False switch a key off.
    mu : float, optional
        The optimizer's momentum. It is applied before compression if the key "momentum" is given,
        or if the compressor accumulates.
    nesterov : bool
        Whether the optimizer's momentum is Nesterov's.
    optimizer : str
        The name of the optimizer's class, for errors and for "auto". Empty: there is no optimizer,
        or an algorithm averages other vectors than its gradients.

    Raises
    ------
    TypeError
        A value has the wrong type.
    ValueError
        A key is unknown, a value is wrong, or keys contradict each other.
    KeyError
        A key that the compressor needs is missing.
    """
    if params is None:
        return CompressionParams()
    if not isinstance(params, Mapping):
        raise TypeError(f"compression_params must be a dict, got {type(params).__name__}")
    enabled = keys_that_are_on(params)
    shared = common()
    name = enabled.pop("compressor", None)
    if name is not None:
        shared["compressor"].check("compressor", name)
    kind = registry.get(name)
    if (
        enabled.get("ef") == "sparse"
        and name is not None
        and not (kind and kind.traits.draws_alike)
    ):
        supporting = ", ".join(other for other in registry if registry[other].traits.draws_alike)
        raise ValueError(
            f"compression_params['ef'] 'sparse' is for {supporting}, not for {name}; "
            "'vanilla' and 'corrected' are for any compressor that does not accumulate"
        )
    values = {key: value for key, value in enabled.items() if is_for(key, name)}
    for key, value in values.items():
        (shared.get(key) or kind.keys()[key]).check(key, value)
    fp16, hierarchical = values.pop("fp16", False), values.pop("hierarchical", True)
    common_values = dict(fp16=bool(fp16), hierarchical=bool(hierarchical))
    inner = _inner(values.pop("inner")) if "inner" in values else None
    if name is None:
        return CompressionParams(**common_values)
    has_momentum = values.pop("momentum", None) is not None
    if has_momentum and not mu:
        whose = f" of {optimizer}" if optimizer else ""
        raise ValueError(
            "compression_params['momentum'] needs an optimizer with momentum > 0, such as SGD or "
            f"NAG, or 'byteps_momentum_mu' for a single tensor; got momentum {mu!r}{whose}. Leave "
            "the key out with an optimizer that has no momentum"
        )
    if kind is None:
        momentum, ef = (float(mu) if has_momentum else None), values.get("ef", "vanilla")
        feedback = dict(ef=ef, ef_decay=float(values.get("ef_decay", 1)))
        automatic = dict(accuracy=values.get("accuracy", "safe"), for_adam=is_adam(optimizer))
        return CompressionParams(mu=momentum, **automatic, **feedback, **common_values, inner=inner)
    accumulates = kind.traits.accumulates
    exchange = values.pop("exchange", "gather" if accumulates else "two_way")
    if accumulates and exchange != "gather":
        raise ValueError(f"compression_params['exchange'] must be 'gather' for {name}")
    if "ef_decay" in values and "ef" not in values:
        raise ValueError(
            f"compression_params['ef_decay'] needs 'ef', got {values['ef_decay']!r} without error "
            "feedback: add 'ef': 'vanilla', or leave the key out"
        )
    if kind.aggregator_repeats and values.get("seed") and exchange == "two_way":
        warn_once(
            "%s with a seed makes the average biased, because the sum is rounded with the random "
            "numbers of worker 0, as in BytePS: leave out 'seed', or use 'exchange': 'gather'",
            name,
        )
    return CompressionParams(
        ef=values.pop("ef", None),
        ef_decay=float(values.pop("ef_decay", 1)),
        mu=float(mu) if mu and (has_momentum or accumulates) else None,
        **common_values,
        nesterov=has_momentum or nesterov or not accumulates,
        exchange=exchange,
        inner=inner,
        compressor=_compressor(kind, values),
    )


def _inner(given: Mapping[str, Any]) -> CompressionParams:
    """Check the value of the key "inner", and return its params."""
    argument = "compression_params['inner']"
    options = {key: value for key, value in given.items() if value is not None}
    name = options.pop("compressor", None)
    if name not in inner_compressors():
        allowed = listed([f"'{other}'" for other in inner_compressors()], "or")
        raise ValueError(f"{argument}['compressor'] must be {allowed}, got {name!r}")
    known = registry[name].keys()
    for key, value in options.items():
        if key not in known:
            raise ValueError(
                f"{argument} has no key {key!r} for {name}; did you mean "
                f"'{nearest(key, known)}'? The keys are compressor, {', '.join(known)}"
            )
        known[key].check(key, value, argument)
    compressor = _compressor(registry[name], options, argument)
    return CompressionParams(compressor, exchange="gather")


def _compressor(
    kind: type[Compressor], values: Mapping[str, Any], argument: str = "compression_params"
) -> Compressor:
    """Make a compressor, with NumPy scalars as Python numbers. KeyError if a key is missing."""
    options = plain(values)
    key = kind.missing(options)
    if key:
        allowed = kind.keys()[key].allowed
        raise KeyError(f"{argument}['{key}'] is missing; {kind.name} needs {allowed}")
    return kind(**options)


def is_adam(optimizer: str) -> bool:
    """Whether gradients of this optimizer class lose much accuracy if they are compressed."""
    return optimizer in _ADAMS


def warn_of_plain_adam(optimizer: str, several: Iterable[CompressionParams]) -> None:
    """Warn once if one of these params compresses the gradients of Adam too much.

    Parameters
    ----------
    optimizer : str
        The name of the optimizer's class.
    several : iterable of CompressionParams
        The params of gradients that are averaged in every step.
    """
    if not is_adam(optimizer):
        return
    costly = [params.compressor.name for params in several if _costs_much(params)]
    if costly:
        logger.warning(
            "%s trains much worse if %s compresses its gradients: use algorithm 'onebit_adam', "
            "which compresses its momentum, or 'local_steps' (docs/guides/adam.md)",
            optimizer,
            costly[0],
        )


def _costs_much(params: CompressionParams) -> bool:
    compressor = params.compressor
    if compressor is None:
        return False
    return compressor.name == "onebit" or (compressor.name == "topk" and compressor.k < _SMALL)
