"""Train on handwritten digits with Accelerate: two workers, gradients of one bit."""

import argparse
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from gluon_gc.torch.integrations.accelerate import compress

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.digits import load_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--resume", type=int, default=0, help="the epoch of a checkpoint")
    parser.add_argument("--folder", default="params/accelerate", help="for checkpoints")
    args = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    images, validation = load_images()
    pixels, labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels).long()
    training = torch.utils.data.TensorDataset(pixels, labels)
    batches = torch.utils.data.DataLoader(training, batch_size=32, shuffle=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = accelerator.prepare(net, optimizer, batches)
    params = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
    compression = compress(accelerator, model, optimizer, params)
    if args.resume:
        accelerator.load_state(f"{args.folder}/epoch-{args.resume}")

    for epoch in range(args.resume, args.epochs):
        compression.set_epoch(epoch)
        batches.set_epoch(epoch)
        for pixels, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.save_state(f"{args.folder}/epoch-{epoch + 1}")

    predicted = net(torch.from_numpy(validation.pixels)).argmax(dim=1)
    accuracy = (predicted == torch.from_numpy(validation.labels)).float().mean()
    sent = compression.state.compression_stats()["total"]["pushed_bytes"]
    accelerator.print(f"validation accuracy {accuracy:.3f}")
    accelerator.print(f"each worker sent {sent:.0f} bytes in a step")
    accelerator.end_training()


if __name__ == "__main__":
    main()
