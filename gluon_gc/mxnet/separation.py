"""Takes tensors out of messages that they share with others.

The codec of a message compresses all of its chunks in every exchange. A tensor that took no part in
one would be compressed as zeros: its residual and momentum would change, and the result be lost.
"""

from __future__ import annotations

from typing import Collection, Mapping, Set

from . import tensor_states
from .exchange import Exchange


def separate(exchange: Exchange, names: Collection[str], ratios: Mapping[str, float]) -> bool:
    """Give tensors messages of their own where one that they share cannot be exchanged as it is.

    That is a message with feedback or momentum, of which some tensors are exchanged and others are
    not, or whose tensors have different ratios. Residuals, momentum and random streams go on. All
    workers call this alike.

    Parameters
    ----------
    exchange : Exchange
    names : collection of str
        The tensors that are about to be exchanged.
    ratios : mapping
        Previous learning rate over the current one, by tensor, where it is not 1.

    Returns
    -------
    Whether any tensor was moved.
    """
    torn: Set[str] = set()
    for channel in exchange.channels.of(names):
        if channel.params is not None and channel.params.keeps_state:
            different = len({ratios.get(name, 1.0) for name in channel.tensors}) > 1
            if different or not channel.tensors <= names:
                torn |= channel.tensors
    if not torn:
        return False
    together = _with_all_that_share(exchange, torn)
    arrays = dict(tensor_states.state(exchange, together))
    exchange.declare(exchange.withdraw(together), bundled=False)
    tensor_states.load(exchange, together, arrays)
    return True


def _with_all_that_share(exchange: Exchange, names: Set[str]) -> Set[str]:
    """These tensors and all that share messages with them, directly or through others."""
    while True:
        more = {name for channel in exchange.channels.of(names) for name in channel.tensors}
        if more <= names:
            return names
        names = names | more
