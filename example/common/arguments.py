"""Command-line arguments of the training examples, named as in BytePS's examples."""

import argparse
from typing import Any, Dict, List, Optional, Sequence

from gluon_gc.compression import keys, registry, users_of


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of each argument that takes a value and has a default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.nargs == 0 or action.default in (None, ""):
            return action.help
        return super()._get_help_string(action)


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of plain SGD training. Examples change defaults with `set_defaults`."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--num-epochs", "--epochs", type=int, default=20, help="passes over the training data"
    )
    group.add_argument("--batch-size", type=int, default=32, help="images per step and device")
    group.add_argument("--lr", type=float, default=0.1, help="learning rate")
    group.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    group.add_argument("--wd", type=float, default=1e-4, help="weight decay")
    group.add_argument("--seed", type=int, default=0, help="seed of weights and shuffling")
    add_log_arguments(group, "epoch")
    group.add_argument(
        "--stats", action="store_true", help="finally print each tensor's bytes and times"
    )


def add_log_arguments(group: Any, unit: str) -> None:
    """Add the arguments of `EpochLog` to a group of a parser. The log has a record per `unit`."""
    group.add_argument("--logging-file", default="", help=f"write one line of JSON per {unit} here")
    group.add_argument(
        "--tensorboard", default="", metavar="DIR", help="write TensorBoard's event files here"
    )


def epoch_list(text: str) -> List[int]:
    """Parse epochs such as "40,60"; they must be positive and ascending."""
    epochs = [int(epoch) for epoch in text.split(",") if epoch]
    if epochs != sorted(set(epochs)) or any(epoch < 1 for epoch in epochs):
        raise argparse.ArgumentTypeError(f"must be positive and ascending, got {text!r}")
    return epochs


def add_schedule_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `learning_rate_schedule`."""
    group = parser.add_argument_group(
        "learning rate", "The learning rate is --lr times the number of machines."
    )
    group.add_argument(
        "--lr-mode", choices=("step", "poly", "cosine"), default="step", help="kind of decay"
    )
    group.add_argument("--lr-decay", type=float, default=0.1, help="factor of each decay step")
    group.add_argument(
        "--lr-decay-epoch", type=epoch_list, default="40,60", help="epochs before each decay step"
    )
    group.add_argument(
        "--lr-decay-period",
        type=int,
        default=0,
        help="epochs between decay steps; overrides --lr-decay-epoch",
    )
    group.add_argument("--warmup-epochs", type=int, default=0, help="epochs of linear warm-up")
    group.add_argument("--warmup-lr", type=float, default=0.0, help="rate where warm-up starts")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for data, devices and checkpoints."""
    group = parser.add_argument_group("data and devices")
    group.add_argument("--data-dir", help="folder of the data")
    group.add_argument(
        *("-j", "--j", "--num-data-workers"),
        dest="num_workers",
        metavar="N",
        type=int,
        default=4,
        help="processes that load images",
    )
    group.add_argument(
        "--num-gpus", type=int, default=0, help="GPUs of each worker; 0: train on the CPU"
    )
    group.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="dtype of the network"
    )
    group.add_argument(
        "--log-interval", type=int, default=50, help="steps between progress messages"
    )
    group = parser.add_argument_group("checkpoints")
    group.add_argument("--save-dir", default="params", help="folder of the checkpoints")
    group.add_argument(
        *("--save-period", "--save-frequency"),
        type=int,
        default=10,
        help="epochs between checkpoints; 0: save none",
    )
    group.add_argument(
        "--resume",
        choices=("auto",),
        default="",
        help="resume from the last checkpoint in --save-dir that all workers have, if any",
    )
    group.add_argument("--resume-from", default="", help="resume from the checkpoint X.params")
    group.add_argument("--resume-params", default="", help="load these weights")
    group.add_argument(
        "--resume-states", default="", help="load the trainer's state; X.states means X.states.RANK"
    )
    group.add_argument("--resume-epoch", type=int, default=0, help="epochs already done")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a network of GluonCV's zoo."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", required=True, help="name in GluonCV's model zoo")
    group.add_argument(
        "--mode",
        choices=("hybrid", "hybrib", "imperative"),  # BytePS's published scripts have "hybrib"
        default="hybrid",
        help="hybrid compiles the network; hybrib means hybrid",
    )
    group.add_argument("--drop-rate", type=float, default=0.0, help="dropout of wide ResNets")
    group.add_argument("--batch-norm", action="store_true", help="use batch norm in VGG")
    group.add_argument("--use-se", "--use_se", action="store_true", help="SE blocks in ResNeXt")
    group.add_argument("--use-gn", action="store_true", help="group norm instead of batch norm")
    group.add_argument(
        "--last-gamma", action="store_true", help="initialise residual branches to zero"
    )
    group.add_argument(
        "--no-wd", action="store_true", help="no weight decay for biases, gammas and betas"
    )


def share_or_count(text: str) -> float:
    """Parse a share such as "0.01" to float and a count such as "1" to int; 1 is not 1.0."""
    return int(text) if text.isdecimal() else float(text)


def meaning_of(key: str) -> str:
    """Return the help for a key of `compression_params`, made of its compressors' descriptions."""
    meanings: Dict[str, List[str]] = {}
    for name, option in users_of(key).items():
        default = registry[name].defaults().get(key) if name in registry else None
        more = "" if default is None else f"; default: {default}"
        allowed = "" if bool in option.types else f" ({option.allowed}{more})"
        meanings.setdefault(option.meaning + allowed, []).append(name)
    if len(meanings) == 1:
        (text,) = meanings
    else:
        text = "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())
    return text.replace("%", "%%")


FLAGS = {
    "compressor": ("--compressor",),
    "accuracy": ("--accuracy",),
    "ef": ("--ef",),
    "momentum": ("--compress-momentum",),
    "scaling": ("--onebit-scaling", "--scaling"),
    "k": ("--k",),
    "partition": ("--partition",),
    "normalize": ("--normalize",),
    "seed": ("--compressor-seed",),
    "fp16": ("--fp16-pushpull",),
}
"""BytePS's argument names, by key of `compression_params`."""


def flags_of(key: str) -> Sequence[str]:
    """Return a key's argument names. If one compressor alone has the key, they start with it."""
    users = list(users_of(key))
    words = [*(users if len(users) == 1 else ()), *key.split("_")]
    return FLAGS.get(key, ("--" + "-".join(words),))


def add_compression_arguments(parser: argparse.ArgumentParser, clip: bool = True) -> None:
    """Add the arguments of gradient compression; all are off by default.

    Parameters
    ----------
    parser : ArgumentParser
    clip : bool
        Whether to add --clip, which only MXNet's trainer supports.
    """
    group = parser.add_argument_group("gradient compression")
    for key, option in keys().items():
        flags, kwargs = flags_of(key), dict(dest=f"compression_{key}", help=meaning_of(key))
        if bool in option.types and key in FLAGS:
            group.add_argument(*flags, action="store_true", **kwargs)
        elif key == "k":
            group.add_argument(*flags, type=share_or_count, metavar="K", **kwargs)
        else:
            metavar = key.rpartition("_")[2].upper()
            group.add_argument(*flags, type=option.from_text, metavar=metavar, **kwargs)
    if clip:
        group.add_argument(
            "--clip",
            type=float,
            default=0.0,
            help="clip each worker's gradient to an l2 norm of CLIP / sqrt(workers), as Deep "
            "Gradient Compression does; 0: do not clip",
        )


def compression_params(args: argparse.Namespace) -> Dict[str, Any]:
    """Turn parsed arguments into the `compression_params` of `DistributedTrainer`.

    Returns
    -------
    dict
        A value of None or False turns the feature off. The trainer checks the values.
    """
    return {key: getattr(args, f"compression_{key}") for key in keys()}


def max_grad_norm(args: argparse.Namespace, workers: int) -> Optional[float]:
    """Return the largest gradient norm of one worker: --clip / sqrt(workers), or None."""
    return args.clip / workers**0.5 if args.clip else None
