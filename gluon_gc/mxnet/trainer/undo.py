"""Takes back exchanges whose averages were not applied, so that they leave no trace.

What an exchange changes besides the gradients: residuals, the momentum of compressors, random
streams, the momentum of uncompressed gradients, and the learning rates of the last exchange. Codecs
and momentum then have two sets of arrays: an exchange reads one and writes the other. To take an
exchange back, the set that it has read becomes the current one. Nothing is copied.
"""

from __future__ import annotations

from typing import Collection, Optional, Set

from ...learning_rates import LearningRates
from ..exchange.exchange import Exchange
from .momentum import Momentum


class Undo:
    """The last exchange of a trainer, until its averages are applied.

    Parameters
    ----------
    learning_rates : LearningRates
    momentum : Momentum, optional
        The momentum of uncompressed gradients.

    Attributes
    ----------
    pending : set of str or None
        The tensors of the last exchange, if its averages are not applied and it can be taken back.
    """

    def __init__(self, learning_rates: LearningRates, momentum: Optional[Momentum]) -> None:
        self._learning_rates, self._momentum = learning_rates, momentum
        self._needed = self._ready = False
        self.pending: Optional[Set[str]] = None

    def need(self) -> None:
        """Let all later exchanges be taken back. All workers call this before the same exchange."""
        self._needed = True
        if self._momentum is not None:
            self._momentum.keep_earlier()

    def channels_changed(self) -> None:
        """Some channels are new, and do not keep two states yet."""
        self._ready = False

    def begin(self, exchange: Exchange, declared: Collection[str], names: Set[str]) -> None:
        """Prepare an exchange of the tensors `names`, before it starts.

        `declared` are all tensors of the trainer.
        """
        if not self._needed:
            return
        if not self._ready:
            exchange.keep_earlier(declared)
            self._ready = True
        if self._momentum is not None:
            self._momentum.begin()
        self.pending = names

    def applied(self) -> None:
        """The averages of the last exchange are applied, or cannot be taken back any more."""
        self.pending = None

    def take_back(self, exchange: Exchange) -> None:
        """Return to the state before the last exchange. All workers call this."""
        exchange.take_back(self.pending)
        self._learning_rates.take_back()
        if self._momentum is not None:
            self._momentum.take_back()
        self.pending = None
