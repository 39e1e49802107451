"""The optimizers of PyTorch that some features know by name."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Known(NamedTuple):
    """The properties of one optimizer's class."""

    kind: type
    is_linear: bool = False  # in the gradient, so compression may apply its momentum
    is_separable: bool = False  # it updates each parameter independently, as CrossBarrier does
    is_adam: bool = False  # algorithms may use its moments
    decouples_decay: bool = False  # weight decay does not pass through its moments


KNOWN = (
    Known(torch.optim.SGD, is_linear=True, is_separable=True),
    Known(torch.optim.Adam, is_adam=True, is_separable=True),
    Known(torch.optim.AdamW, is_adam=True, decouples_decay=True),
    Known(torch.optim.RMSprop, is_separable=True),
)
