"""The arguments and calls of BytePS's train_imagenet_resnet_byteps_ddp.py."""

import os

import synthetic
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import gluon_gc.torch as bps
from gluon_gc.torch.parallel import DistributedDataParallel as DDP

args = synthetic.arguments(
    {
        "arch": "resnet18",
        "workers": 4,
        "epochs": 90,
        "start-epoch": 0,
        "batch-size": 256,
        "learning-rate": 0.1,
        "momentum": 0.9,
        "weight-decay": 1e-4,
        "print-freq": 10,
        "resume": "",
        "evaluate": False,
        "pretrained": False,
        "world-size": -1,
        "rank": -1,
        "dist-url": "tcp://224.66.41.62:23456",
        "dist-backend": "nccl",
        "seed": 0,
        "gpu": 0,
        "no_broadcast_buffers": False,
        "multiprocessing-distributed": False,
    },
    "data",
)
bps.init()
args.gpu = bps.local_rank()
torch.manual_seed(args.seed + bps.rank())  # each worker starts with different parameters
model = synthetic.net()
model = DDP(model, device_ids=[args.gpu], broadcast_buffers=not args.no_broadcast_buffers)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(
    model.parameters(), args.learning_rate, momentum=args.momentum, weight_decay=args.weight_decay
)
if os.path.isfile(args.resume):
    checkpoint = torch.load(args.resume)
    args.start_epoch = checkpoint["epoch"]
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])

train_dataset = synthetic.images(0)
train_sampler = DistributedSampler(train_dataset, num_replicas=bps.size(), rank=bps.rank())
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
val_loader = DataLoader(synthetic.images(1), batch_size=args.batch_size)


def train():
    model.train()
    for images, target in train_loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        model.synchronize()
        optimizer.step()


def validate():
    model.eval()
    right = 0
    with torch.no_grad():
        for images, target in val_loader:
            right += (model(images).argmax(1) == target).sum().item()
    return right / len(val_loader.dataset)


for epoch in range(args.start_epoch, args.epochs):
    train_sampler.set_epoch(epoch)
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.learning_rate * (0.1 ** (epoch // 30))
    train()
    accuracy = validate()
    if bps.rank() == 0:
        state = {
            "epoch": epoch + 1,
            "arch": args.arch,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, "checkpoint.pth.tar")
