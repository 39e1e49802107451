"""Learning-rate schedules: a linear warm-up, then steps, a polynomial or a cosine."""

import argparse

from mxnet.lr_scheduler import CosineScheduler, LRScheduler, MultiFactorScheduler, PolyScheduler


def learning_rate_schedule(
    args: argparse.Namespace, steps: int, machines: int, decay_after_warmup: bool = False
) -> LRScheduler:
    """Return the schedule that the arguments of `add_schedule_arguments` describe.

    During warm-up, the rate rises from --warmup-lr to --lr times `machines`. "poly" and "cosine"
    then fall to zero at the end of the last epoch.

    Parameters
    ----------
    args : Namespace
        Needs --lr and --num-epochs too.
    steps : int
        Steps per epoch.
    machines : int
        The number of machines that train together.
    decay_after_warmup : bool
        Whether --lr-decay-epoch counts epochs from the end of the warm-up.

    Raises
    ------
    ValueError
        If --warmup-lr is above the rate at the end of the warm-up.
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
    # The schedulers need at least one epoch after the warm-up, even if the run ends before it.
    last = max(args.num_epochs, args.warmup_epochs + 1) * steps
    return {"poly": PolyScheduler, "cosine": CosineScheduler}[args.lr_mode](last, **warmup)
