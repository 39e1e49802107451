"""ShardedCompression: the state of fully_shard's compression in one direction, for checkpoints."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from ..checkpoint import fitting
from . import state_dicts
from .coder_states import Tensors
from .gathering import gather
from .gradients.undo import Undo
from .shards import Shards


class Unit:
    """The compression of one FSDP module in one direction.

    Attributes
    ----------
    shards : Shards
    undo : Undo, optional
        Takes back exchanges of gradients that no optimizer has applied.
    """

    shards: Shards
    undo: Optional[Undo] = None

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocate memory for parameters or gradients. FSDP calls this."""
        return torch.empty(*size, dtype=dtype, device=device)

    def carried(self) -> Tensors:
        """Return this worker's state by the names of shards; nothing before the first step."""
        raise NotImplementedError

    def empty_state(self) -> Tensors:
        """Return zeros in the shapes and dtypes of `carried`."""
        raise NotImplementedError

    def check(self, tensors: Tensors) -> None:
        """Raise ValueError if these tensors do not fit."""
        raise NotImplementedError

    def load(self, tensors: Tensors) -> None:
        """Continue from the result of `carried`. If there are no tensors, start from zero."""
        raise NotImplementedError


class ShardedCompression:
    """The state that a compressed collective of fully_shard keeps from step to step.

    `torch.distributed.checkpoint` saves and loads it like a model:
    `dcp.save({"compression": compression})`.

    Parameters
    ----------
    function : str
        The public function that made it.
    units : sequence of Unit
    """

    def __init__(self, function: str, units: Sequence[Unit]) -> None:
        self._function, self._units = function, list(units)

    @contextmanager
    def not_applied(self) -> Iterator[None]:
        """Return a context for backward passes whose sums no optimizer applies.

        See `CompressionState.not_applied`.
        """
        with ExitStack() as contexts:
            for unit in self._units:
                if unit.undo is not None:
                    contexts.enter_context(unit.undo.not_applied())
            yield

    def state_dict(self) -> Dict[str, Any]:
        """Return this worker's state, as plain values and tensors.

        The key of its tensors has the rank, so the workers' dicts can be merged. Before the first
        step, tensors of zeros show their shapes. No backward may be running.
        """
        begun, arrays = [], {}
        for unit in self._units:
            carried = unit.carried()
            begun += carried
            arrays.update(carried or unit.empty_state())
        worker = {"begun": tuple(begun), "arrays": arrays}
        workers = {str(dist.get_rank()): worker}
        return {"format": state_dicts.FORMAT, **self._described(), "workers": workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict` on this worker. All workers call this.

        Raises
        ------
        ValueError
            The state_dict is of another worker, model, compression or number of workers. Nothing
            was changed.
        RuntimeError
            The state_dict of another worker does not fit. Nothing was changed.
        """
        tensors = state_dicts.if_all_fit(gather, lambda: self._checked(state))
        for unit, unit_tensors in zip(self._units, tensors):
            unit.load(unit_tensors)

    def _checked(self, state: Mapping[str, Any]) -> Sequence[Tensors]:
        """Return the tensors of each unit, after all checks."""
        state_dicts.require_format(state, "workers", self._function)
        here, rank = self._described(), str(dist.get_rank())
        remedy = "load only the model, and residuals start from zero"
        sizes = state["world_size"], here["world_size"]
        fitting.check(state_dicts.NOUN, "world_size", *sizes, remedy)
        if rank not in state["workers"]:
            fitting.check(state_dicts.NOUN, "rank", ", ".join(state["workers"]), rank)
        state_dicts.check_parameters(state["shards"], here["shards"], strict=True)
        worker = state["workers"][rank]
        tensors = [
            {key: worker["arrays"][key] for key in worker["begun"] if _is_of(key, unit)}
            for unit in self._units
        ]
        for unit, unit_tensors in zip(self._units, tensors):
            if unit_tensors:
                unit.check(unit_tensors)
        return tensors

    def _described(self) -> Dict[str, Any]:
        """Return the values that a state_dict and the loading state must share."""
        shards = tuple(shard for unit in self._units for shard in unit.shards.describe())
        return {"world_size": dist.get_world_size(), "shards": shards}


def _is_of(key: str, unit: Unit) -> bool:
    return key.rpartition("/")[0] in unit.shards.sizes
