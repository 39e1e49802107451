"""Command-line arguments of the training examples, named as in BytePS's examples."""

import argparse
from typing import Any, Dict, List, Optional, Sequence

from gluon_gc.compression import keys, registry, users_of


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Says the default of each argument that takes a value and has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.nargs == 0 or action.default in (None, ""):
            return action.help
        return super()._get_help_string(action)


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of plain SGD training. `set_defaults` gives an example its own defaults."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--num-epochs", "--epochs", type=int, default=20, help="passes over the training data"
    )
    group.add_argument("--batch-size", type=int, default=32, help="images a step on each device")
    group.add_argument("--lr", type=float, default=0.1, help="learning rate")
    group.add_argument("--momentum", type=float, default=0.9, help="of the optimizer")
    group.add_argument("--wd", type=float, default=1e-4, help="weight decay")
    group.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    group.add_argument("--logging-file", default="", help="gets a line of JSON an epoch")
    group.add_argument("--tensorboard", default="", metavar="DIR", help="gets TensorBoard's files")
    group.add_argument(
        "--stats", action="store_true", help="print what each gradient's way took, at the end"
    )


def epoch_list(text: str) -> List[int]:
    """Parse epochs such as "40,60", which must be positive and ascend."""
    epochs = [int(epoch) for epoch in text.split(",") if epoch]
    if epochs != sorted(set(epochs)) or any(epoch < 1 for epoch in epochs):
        raise argparse.ArgumentTypeError(f"must be positive and ascend, got {text!r}")
    return epochs


def add_schedule_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `learning_rate_schedule`."""
    group = parser.add_argument_group(
        "learning rate", "--lr is that of one machine: the rate is --lr times their number."
    )
    group.add_argument(
        "--lr-mode", choices=("step", "poly", "cosine"), default="step", help="how the rate falls"
    )
    group.add_argument("--lr-decay", type=float, default=0.1, help="factor of each step")
    group.add_argument(
        "--lr-decay-epoch", type=epoch_list, default="40,60", help="epochs done before each step"
    )
    group.add_argument(
        "--lr-decay-period", type=int, default=0, help="epochs between steps, instead of a list"
    )
    group.add_argument("--warmup-epochs", type=int, default=0, help="epochs of a linear rise")
    group.add_argument("--warmup-lr", type=float, default=0.0, help="rate that it starts from")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the data is, what it is trained on, and where checkpoints are kept."""
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
        "--num-gpus", type=int, default=0, help="GPUs of each worker; 0: it computes on the CPU"
    )
    group.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="of the network"
    )
    group.add_argument(
        "--log-interval", type=int, default=50, help="steps between lines of progress"
    )
    group = parser.add_argument_group("checkpoints")
    group.add_argument("--save-dir", default="params", help="folder that they are saved in")
    group.add_argument(
        *("--save-period", "--save-frequency"),
        type=int,
        default=10,
        help="epochs between them; 0: none are saved",
    )
    group.add_argument(
        "--resume",
        choices=("auto",),
        default="",
        help="go on from the last checkpoint in --save-dir that all workers have, if there is one",
    )
    group.add_argument("--resume-from", default="", help="X.params: go on where it was saved")
    group.add_argument("--resume-params", default="", help="file of weights to start from")
    group.add_argument(
        "--resume-states", default="", help="X.states, where each worker finds X.states.RANK"
    )
    group.add_argument("--resume-epoch", type=int, default=0, help="epochs that were done")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what chooses a network of GluonCV's zoo, and how it runs."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", required=True, help="name in GluonCV's model zoo")
    group.add_argument(
        "--mode",
        choices=("hybrid", "hybrib", "imperative"),  # the second as in BytePS's published scripts
        default="hybrid",
        help="whether the network is compiled; hybrib is hybrid",
    )
    group.add_argument("--drop-rate", type=float, default=0.0, help="dropout of wide ResNets")
    group.add_argument("--batch-norm", action="store_true", help="in VGG")
    group.add_argument("--use-se", "--use_se", action="store_true", help="SE blocks in ResNeXt")
    group.add_argument("--use-gn", action="store_true", help="group norm instead of batch norm")
    group.add_argument(
        "--last-gamma", action="store_true", help="residual branches start from zero"
    )
    group.add_argument("--no-wd", action="store_true", help="decay no biases, gammas and betas")


def share_or_count(text: str) -> float:
    """Parse "0.01", a share, and "1", a whole number, which is not 1.0."""
    return int(text) if text.isdecimal() else float(text)


def meaning_of(key: str) -> str:
    """Help for a key of `compression_params`, in the words of the compressors that it is for."""
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
"""BytePS's arguments, by key of `compression_params`."""


def flags_of(key: str) -> Sequence[str]:
    """The arguments that mean a key; what only one compressor has, begins with its name."""
    users = list(users_of(key))
    words = [*(users if len(users) == 1 else ()), *key.split("_")]
    return FLAGS.get(key, ("--" + "-".join(words),))


def add_compression_arguments(parser: argparse.ArgumentParser, clip: bool = True) -> None:
    """Add the arguments that choose how gradients are compressed; all are off by default.

    Parameters
    ----------
    parser : ArgumentParser
    clip : bool
        Whether --clip is among them, which MXNet's trainer heeds.
    """
    group = parser.add_argument_group("gradient compression")
    for key, option in keys().items():
        flags, how = flags_of(key), dict(dest=f"compression_{key}", help=meaning_of(key))
        if bool in option.types and key in FLAGS:
            group.add_argument(*flags, action="store_true", **how)
        elif key == "k":
            group.add_argument(*flags, type=share_or_count, metavar="K", **how)
        else:
            metavar = key.rpartition("_")[2].upper()
            group.add_argument(*flags, type=option.from_text, metavar=metavar, **how)
    if clip:
        group.add_argument(
            "--clip",
            type=float,
            default=0.0,
            help="largest l2 norm of a worker's whole gradient, times workers^-1/2, as in "
            "Deep Gradient Compression; 0: any",
        )


def compression_params(args: argparse.Namespace) -> Dict[str, Any]:
    """Turn parsed arguments into the `compression_params` of `DistributedTrainer`.

    Returns
    -------
    dict
        None or False means that the feature is off. The trainer checks the values.
    """
    return {key: getattr(args, f"compression_{key}") for key in keys()}


def max_grad_norm(args: argparse.Namespace, workers: int) -> Optional[float]:
    """What --clip means for one of so many workers."""
    return args.clip / workers**0.5 if args.clip else None
