"""Writes the training log as TensorBoard's event files, with tensorboardX."""

import json
from numbers import Real
from typing import Any, Dict


class Board:
    """Writes event files; view them with ``tensorboard --logdir FOLDER``.

    Parameters
    ----------
    folder : str
        The folder to write to. If it is empty, nothing is written, and tensorboardX is not needed.
    configuration : dict
        The configuration of the run.

    Raises
    ------
    ModuleNotFoundError
        If tensorboardX is not installed.
    """

    def __init__(self, folder: str, configuration: Dict[str, Any]) -> None:
        self._writer = None
        if not folder:
            return
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as missing:
            message = "--tensorboard needs the package tensorboardX: pip install tensorboardX"
            raise ModuleNotFoundError(message) from missing
        self._writer = SummaryWriter(folder, flush_secs=10)
        self._writer.add_text("configuration", f"```\n{json.dumps(configuration, indent=2)}\n```")

    def write(self, record: Dict[str, Any]) -> None:
        """Write the numbers of a record and the loss of each of its steps.

        The record has the key "epoch", or "step" for its last step. Both count from 1.
        """
        if self._writer is None:
            return
        counted = "step" if "step" in record else "epoch"
        number, step_loss = record[counted], record["step_loss"]
        last = number if counted == "step" else number * len(step_loss)
        for name, value in record.items():
            if isinstance(value, Real) and name != counted:
                self._writer.add_scalar(name, value, number)
        for step, loss in enumerate(step_loss, start=1 + last - len(step_loss)):
            self._writer.add_scalar("step_loss", loss, step)

    def close(self) -> None:
        """Close the files. A run that ends without this call may lose its last 10 seconds."""
        if self._writer is not None:
            self._writer.close()
