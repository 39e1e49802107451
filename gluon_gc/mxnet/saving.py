"""What `DistributedTrainer.save_states` saves, and `load_states` loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Sequence

import numpy as np

from .. import checkpoint
from ..compression import CompressionParams
from . import carried

if TYPE_CHECKING:
    from .trainer import DistributedTrainer

_MOMENTUM = "momentum/"  # what the names of the trainer's own arrays begin with


def save(trainer: DistributedTrainer, fname: str) -> None:
    """Write the optimizer's states, residuals and momentum; see `DistributedTrainer`."""
    indices = trainer._declare_all()
    arrays = carried.state(trainer._store, trainer._names(indices))
    if trainer._momentum is not None:
        momentum = trainer._momentum.state().items()
        arrays.update((_MOMENTUM + place, array) for place, array in momentum)
    header = {**_described(trainer, indices), "learning_rate": trainer._learning_rate}
    optimizer = trainer._updaters[0].get_states(dump_optimizer=True)
    checkpoint.write(fname, checkpoint.States(header, arrays, optimizer))


def load(trainer: DistributedTrainer, fname: str) -> None:
    """Go on from what `save` wrote, once all of it was checked; see `DistributedTrainer`."""
    indices = trainer._declare_all()
    names = trainer._names(indices)
    states = checkpoint.read(fname)
    checkpoint.check_header(fname, states.header, _described(trainer, indices))
    of_codecs = {k: a for k, a in states.arrays.items() if not k.startswith(_MOMENTUM)}
    momentum = {k[len(_MOMENTUM) :]: a for k, a in states.arrays.items() if k not in of_codecs}
    checkpoint.check_arrays(fname, of_codecs, carried.layout(trainer._store, names))
    for updater in trainer._updaters:
        updater.set_states(states.optimizer)
        updater.optimizer = trainer._updaters[0].optimizer
    trainer._optimizer = trainer._updaters[0].optimizer
    trainer._optimizer.param_dict = dict(enumerate(trainer._params))
    carried.load(trainer._store, names, of_codecs)
    if trainer._momentum is not None:
        trainer._momentum.load_state(momentum)
    trainer._learning_rate = states.header["learning_rate"]


def _described(trainer: DistributedTrainer, indices: Sequence[int]) -> Dict[str, Any]:
    """What a file must have alike to be loaded, but for the names of parameters.

    `indices` are those of the parameters that have gradients.
    """
    return {
        "world_size": trainer._store.num_workers,
        "rank": trainer._store.rank,
        "momentum": trainer._momentum and trainer._momentum.mu,
        "parameters": [
            {
                "name": param.name,
                "shape": param.shape,
                "dtype": np.dtype(param.dtype).name,
                "compression": _compression(trainer, i) if i in indices else None,
            }
            for i, param in enumerate(trainer._params)
        ],
    }


def _compression(trainer: DistributedTrainer, index: int) -> Dict[str, Any]:
    """How a gradient travels."""
    params = trainer._declared[index].params
    if trainer._travels_plain(index):
        params = CompressionParams(fp16=params.fp16)
    return params.identity()
