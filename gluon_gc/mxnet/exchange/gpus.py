"""Chooses the GPU that compresses each message, if gradients have copies on several GPUs."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import mxnet as mx

from ... import plan
from .channel import Channel
from .gradient import Gradients

_CACHED = 64  # sets of channels whose shares are cached


class GpuShares:
    """Gives each GPU an even share of the elements of the channels that are exchanged together.

    The shares of a set of channels stay the same from step to step.

    Parameters
    ----------
    able : callable
        Whether a GPU can compress a channel. It is called only if there are gradients on GPUs.
    """

    def __init__(self, able: Callable[[Channel], bool]) -> None:
        self._able = able
        self._known: Dict[Any, Dict[Channel, int]] = {}  # indices of GPUs

    def of(self, channels: Sequence[Channel], gradients: Gradients) -> List[Optional[mx.Context]]:
        """The GPU that compresses each channel's gradients; None: the CPU does.

        GPUs compress only if all gradients that they can compress have copies on the same GPUs.
        """
        if not any(gradient.from_gpus for gradient in gradients.values()):
            return [None] * len(channels)
        compressible = [channel for channel in channels if self._able(channel)]
        names = {name for channel in compressible for name in channel.tensors if name in gradients}
        contexts = {gradients[name].gpus for name in names}
        (gpus,) = contexts if len(contexts) == 1 else ((),)
        if not gpus:
            return [None] * len(channels)
        number_of = self._shares(compressible, len(gpus))
        return [gpus[number_of[c]] if c in number_of else None for c in channels]

    def forget(self) -> None:
        """Forget the shares of all sets, because channels have been withdrawn."""
        self._known.clear()

    def _shares(self, channels: Sequence[Channel], gpus: int) -> Dict[Channel, int]:
        key = (gpus, *channels)
        if key not in self._known:
            if len(self._known) == _CACHED:
                self._known.clear()
            owners = plan.spread([channel.size for channel in channels], gpus)
            self._known[key] = dict(zip(channels, owners))
        return self._known[key]
