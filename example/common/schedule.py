"""The learning rate of every step: a linear warm-up, then steps, a power or a cosine."""

import argparse

from mxnet.lr_scheduler import CosineScheduler, LRScheduler, MultiFactorScheduler, PolyScheduler


def learning_rate_schedule(
    args: argparse.Namespace, steps: int, machines: int, decay_after_warmup: bool = False
) -> LRScheduler:
    """Return the schedule that the arguments of `add_schedule_arguments` describe.

    The warm-up rises from --warmup-lr to --lr times `machines`; "poly" and "cosine" then fall to
    zero at the end of the last epoch.

    Parameters
    ----------
    args : Namespace
        With --lr and --num-epochs.
    steps : int
        Of an epoch.
    machines : int
        That train together.
    decay_after_warmup : bool
        Whether --lr-decay-epoch counts epochs from the end of the warm-up on.

    Raises
    ------
    ValueError
        --warmup-lr is above the rate that the warm-up ends at.
    """
    rate = args.lr * machines
    warmup = {"base_lr": rate}
    if args.warmup_epochs:
        if args.warmup_lr > rate:
            raise ValueError(f"--warmup-lr must be at most {rate}, got {args.warmup_lr}")
        warmup["warmup_steps"] = args.warmup_epochs * steps
        warmup["warmup_begin_lr"] = args.warmup_lr
    if args.lr_mode == "step":
        epochs = args.lr_decay_epoch
        if args.lr_decay_period:
            epochs = range(args.lr_decay_period, args.num_epochs, args.lr_decay_period)
        before = args.warmup_epochs if decay_after_warmup else 0
        changes = [(before + epoch) * steps for epoch in epochs] or [args.num_epochs * steps]
        return MultiFactorScheduler(changes, args.lr_decay, **warmup)
    # A run that ends within its warm-up has no fall.
    last = max(args.num_epochs, args.warmup_epochs + 1) * steps
    return {"poly": PolyScheduler, "cosine": CosineScheduler}[args.lr_mode](last, **warmup)
