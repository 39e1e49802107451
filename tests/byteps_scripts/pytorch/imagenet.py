"""The arguments and calls of BytePS's train_imagenet_resnet50_byteps.py."""

import math
import os

import synthetic
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import gluon_gc.torch as bps

args = synthetic.arguments(
    {
        "train-dir": "train",
        "val-dir": "validation",
        "log-dir": "./logs",
        "checkpoint-format": "./checkpoint-{epoch}.pth.tar",
        "fp16-pushpull": False,
        "batches-per-pushpull": 1,
        "batch-size": 32,
        "val-batch-size": 32,
        "epochs": 90,
        "base-lr": 0.0125,
        "warmup-epochs": 5.0,
        "momentum": 0.9,
        "wd": 0.00005,
        "no-cuda": False,
        "seed": 42,
    }
)
pushpull_batch_size = args.batch_size * args.batches_per_pushpull
bps.init()
torch.manual_seed(args.seed)

resume_from_epoch = 0
for try_epoch in range(args.epochs, 0, -1):
    if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break


def loader(seed, batch_size):
    images = synthetic.images(seed)
    sampler = DistributedSampler(images, num_replicas=bps.size(), rank=bps.rank())
    return sampler, DataLoader(images, batch_size=batch_size, sampler=sampler)


train_sampler, train_loader = loader(0, pushpull_batch_size)
val_sampler, val_loader = loader(1, args.val_batch_size)
model = synthetic.net()
optimizer = torch.optim.SGD(
    model.parameters(),
    lr=args.base_lr * args.batches_per_pushpull * bps.size(),
    momentum=args.momentum,
    weight_decay=args.wd,
)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    backward_passes_per_step=args.batches_per_pushpull,
)
if resume_from_epoch > 0 and bps.rank() == 0:
    checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)


def adjust_learning_rate(epoch, batch_idx):
    epoch += float(batch_idx + 1) / len(train_loader)
    lr_adj = 1.0 / bps.size() * (epoch * (bps.size() - 1) / args.warmup_epochs + 1)
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * bps.size() * args.batches_per_pushpull * lr_adj


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        adjust_learning_rate(epoch, batch_idx)
        optimizer.zero_grad()
        for i in range(0, len(data), args.batch_size):  # the last step may have fewer
            data_batch = data[i : i + args.batch_size]
            target_batch = target[i : i + args.batch_size]
            loss = F.cross_entropy(model(data_batch), target_batch)
            loss.div_(math.ceil(float(len(data)) / args.batch_size))
            loss.backward()
        optimizer.step()


def validate():
    model.eval()
    right = torch.zeros(1)
    with torch.no_grad():
        for data, target in val_loader:
            right += (model(data).argmax(1) == target).sum()
    return bps.push_pull(right / len(val_sampler), name="val_accuracy").item()


def save_checkpoint(epoch):
    if bps.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


for epoch in range(resume_from_epoch, args.epochs):
    train(epoch)
    accuracy = validate()
    save_checkpoint(epoch)
