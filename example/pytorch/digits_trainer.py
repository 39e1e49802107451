"""Train a small vision transformer with the Trainer of transformers: two workers, local steps."""

import argparse
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from gluon_gc.torch.integrations.transformers import CompressionCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.digits import Images, load_images


def rows(images: Images) -> list:
    pixels, labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels).long()
    return [{"pixel_values": p, "labels": label} for p, label in zip(pixels, labels)]


def accuracy(predictions) -> dict:
    return {"accuracy": (predictions.predictions.argmax(axis=1) == predictions.label_ids).mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--folder", default="params/trainer", help="for checkpoints")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=10,
    )
    training, validation = map(rows, load_images())
    arguments = TrainingArguments(
        args.folder,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        save_strategy="epoch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        ViTForImageClassification(config),
        arguments,
        train_dataset=training,
        eval_dataset=validation,
        compute_metrics=accuracy,
    )
    params = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
    algorithm = {"name": "local_steps", "every": 5, "outer_lr": 1, "outer_momentum": 0}
    callback = CompressionCallback(trainer, params, algorithm)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=args.resume)
    found = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        sent = callback.compression.state.compression_stats()["total"]["pushed_bytes"]
        print(f"validation accuracy {found:.3f}")
        print(f"each worker sent {sent:.0f} bytes in a step")


if __name__ == "__main__":
    main()
