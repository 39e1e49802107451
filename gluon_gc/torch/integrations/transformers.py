"""Compression for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Mapping

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ...log import logger
from ..byteps.broadcasts import broadcast_object
from ..state.state_dicts import StateDict
from .attached import AttachedCompression

_KEY = "gluon_gc"  # in trainer_state.json


class CompressionCallback(TrainerCallback):
    """Compresses gradients, or steps the optimizer by an algorithm, in `Trainer.train`.

    The Trainer uses DistributedDataParallel if several workers are started. Each worker writes its
    state into the Trainer's checkpoint folders, as gluon_gc_RANK.pt.

    Parameters
    ----------
    trainer : Trainer
    compression_params : dict, optional
        See `CompressionState`.
    algorithm : str or dict, optional
        See `DistributedOptimizer`.
    report : dict, optional
        The arguments of `bps.report`, such as ``{"every": 100, "tensorboard": "runs"}``. None: no
        report.
    **options
        overrides and on_nonfinite; see `CompressionState`.

    Attributes
    ----------
    compression : AttachedCompression, optional
        The compression of the last `train`, for statistics.

    Examples
    --------
    >>> trainer.add_callback(CompressionCallback(trainer, {"compressor": "bytegrad"}))
    """

    def __init__(
        self,
        trainer: Trainer,
        compression_params: Mapping[str, Any] | None = None,
        algorithm: None | str | Mapping[str, Any] = None,
        report: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._trainer, self._options = trainer, {"report": report, **options}
        self._arguments = (compression_params, algorithm)
        self.compression: AttachedCompression | None = None
        self._epoch, self._run = 0, ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach the compression, and load its state from the checkpoint.

        If the Trainer trains the same DistributedDataParallel again, its compression continues.
        """
        if self.compression is None or not self.compression.is_of(self._trainer.model_wrapped):
            self._attach()
        saved = state.stateful_callbacks.get(_KEY)
        if saved is not None:
            folder = self._folder(state.global_step)
            self.compression.load(lambda: _read(args, folder, state.global_step, saved["run"]))
        elif state.global_step:
            logger.warning(
                "the Trainer's checkpoint has no state of the compression: residuals and momentum "
                "start from zero"
            )
        self._epoch, self._run = int(state.epoch or 0), broadcast_object(uuid.uuid4().hex)
        state.stateful_callbacks.pop(_KEY, None)
        if not args.save_only_model:
            state.stateful_callbacks[_KEY] = {"run": self._run}

    def _attach(self) -> None:
        if self.compression is not None:
            self.compression.close()
        self.compression = AttachedCompression(
            self._trainer.model_wrapped,
            self._trainer.optimizer,
            *self._arguments,
            grad_scaler=self._trainer.accelerator.scaler,
            **self._options,
        )

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the epoch to compressors with a warm-up.

        The attribute `state.epoch` lags if the length of the data is unknown.
        """
        self.compression.set_epoch(self._epoch)
        self._epoch += 1

    def _folder(self, step: int) -> Path:
        """Return the folder of a checkpoint. Each trial of a hyperparameter search has its own."""
        run = self._trainer._get_output_dir(getattr(self._trainer, "_trial", None))
        return Path(run, f"{PREFIX_CHECKPOINT_DIR}-{step}")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write this worker's state into the Trainer's checkpoint."""
        if not args.save_only_model:
            folder = self._folder(state.global_step)
            folder.mkdir(parents=True, exist_ok=True)
            saved = {"run": self._run, "step": state.global_step}
            saved["state"] = self.compression.state.state_dict()
            torch.save(saved, folder / _file(dist.get_rank()))


def _file(rank: int | str) -> str:
    return f"gluon_gc_{rank}.pt"


def _read(args: TrainingArguments, usual: Path, step: int, run: str) -> StateDict | list[StateDict]:
    """Return this worker's state in a checkpoint, or all states for another number of workers.

    The Trainer does not tell callbacks the folder of the checkpoint. So the files must be of this
    step of the run that trainer_state.json names. `usual` is the folder where the Trainer saves.
    """
    given = args.resume_from_checkpoint
    if given is True:
        given = get_last_checkpoint(args.output_dir)
    folders = [Path(given)] if given else []
    for folder in (*folders, usual):
        files = sorted(folder.glob(_file("*")))
        own = folder / _file(dist.get_rank())
        state = _state(own, run, step) if own in files else None
        if state is not None and state["world_size"] == dist.get_world_size():
            return state
        found = (_state(file, run, step) for file in files)
        states = [state for state in found if state is not None]
        if states:
            return states
    raise ValueError(
        f"no file {_file('RANK')} of the checkpoint of step {step} is in {folder}: pass the folder "
        "as TrainingArguments(resume_from_checkpoint=...) too"
    )


def _state(file: Path, run: str, step: int) -> StateDict | None:
    """Return the state in a file. Return None if it is of another run or step."""
    saved = torch.load(file, map_location="cpu", weights_only=True)
    return saved["state"] if (saved["run"], saved["step"]) == (run, step) else None
