"""Compression for Lightning's Trainer."""

from __future__ import annotations

from typing import Any, Mapping

from lightning.pytorch import Callback, LightningModule, Trainer

from .attached import AttachedCompression


class CompressionCallback(Callback):
    """Compresses gradients, or steps the optimizer by an algorithm, in `Trainer.fit`.

    The Trainer needs `strategy="ddp"`. Its checkpoints contain the state of the compression on all
    workers.

    Parameters
    ----------
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
        The compression of the last `fit`, for statistics.

    Examples
    --------
    >>> callback = CompressionCallback({"compressor": "bytegrad", "ef": "vanilla"})
    >>> trainer = Trainer(devices=2, strategy="ddp", callbacks=[callback])
    """

    def __init__(
        self,
        compression_params: Mapping[str, Any] | None = None,
        algorithm: None | str | Mapping[str, Any] = None,
        report: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._arguments = (compression_params, algorithm)
        self._options = {"report": report, **options}
        self.compression: AttachedCompression | None = None
        self._loaded: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the checkpoint of an earlier call. The Trainer reads the next one after this."""
        self._loaded = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the compression, and load its state from the checkpoint."""
        if self.compression is not None:
            self.compression.close()
        optimizers = trainer.optimizers
        self.compression = AttachedCompression(
            trainer.strategy.model,
            optimizers[0] if len(optimizers) == 1 else None,
            *self._arguments,
            grad_scaler=getattr(trainer.precision_plugin, "scaler", None),
            **self._options,
        )
        if self._loaded is not None:
            self.compression.load_state_dict(self._loaded)
            self._loaded = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the epoch to compressors with a warm-up."""
        self.compression.set_epoch(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep gradients local: manual optimization undoes DDP's no_sync after each batch."""
        self.compression.keep_gradients_local()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all workers on the worker that writes the checkpoint."""
        return {} if self.compression is None else self.compression.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's states until the model and the optimizer are ready."""
        self._loaded = state_dict
