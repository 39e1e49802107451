"""Train on handwritten digits with Lightning: two workers, gradients of one bit."""

import argparse
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from gluon_gc.torch.integrations.lightning import CompressionCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.digits import load_images


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss(self, batch: tuple) -> torch.Tensor:
        pixels, labels = batch
        return nn.functional.cross_entropy(self.net(pixels), labels)

    def training_step(self, batch: tuple, index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple, index: int) -> None:
        self.log("validation_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--resume", help="a checkpoint of an earlier run")
    parser.add_argument("--folder", default="params/lightning", help="for checkpoints")
    args = parser.parse_args()

    torch.manual_seed(0)
    training, validation = (
        torch.utils.data.TensorDataset(
            torch.from_numpy(images.pixels), torch.from_numpy(images.labels).long()
        )
        for images in load_images()
    )
    params = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
    compression = CompressionCallback(params)
    trainer = Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[compression],
        default_root_dir=args.folder,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(
        Digits(),
        torch.utils.data.DataLoader(training, batch_size=32, shuffle=True),
        torch.utils.data.DataLoader(validation, batch_size=32),
        ckpt_path=args.resume,
    )
    if trainer.is_global_zero:
        sent = compression.compression.state.compression_stats()["total"]["pushed_bytes"]
        print(f"validation loss {trainer.callback_metrics['validation_loss']:.3f}")
        print(f"each worker sent {sent:.0f} bytes in a step")


if __name__ == "__main__":
    main()
