"""The arguments and calls of BytePS's train_mnist_byteps.py."""

import synthetic
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import gluon_gc.torch as bps

args = synthetic.arguments(
    {
        "batch-size": 64,
        "test-batch-size": 1000,
        "epochs": 100,
        "lr": 0.01,
        "momentum": 0.5,
        "no-cuda": False,
        "seed": 42,
        "log-interval": 10,
        "fp16-pushpull": False,
    }
)
bps.init()
torch.manual_seed(args.seed)


def loader(seed, batch_size):
    images = synthetic.images(seed)
    sampler = DistributedSampler(images, num_replicas=bps.size(), rank=bps.rank())
    return sampler, DataLoader(images, batch_size=batch_size, sampler=sampler)


train_sampler, train_loader = loader(0, args.batch_size)
test_sampler, test_loader = loader(1, args.test_batch_size)
model = synthetic.net()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=args.momentum)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=compression
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()


def metric_average(val, name):
    return bps.push_pull(torch.tensor(val), name=name).item()


def test():
    model.eval()
    test_loss = test_accuracy = 0.0
    for data, target in test_loader:
        output = model(data)
        test_loss += F.cross_entropy(output, target, reduction="sum").item()
        test_accuracy += (output.argmax(1) == target).float().sum().item()
    test_loss = metric_average(test_loss / len(test_sampler), "avg_loss")
    test_accuracy = metric_average(test_accuracy / len(test_sampler), "avg_accuracy")
    if bps.rank() == 0:
        print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {100 * test_accuracy:.2f}%")
    return test_accuracy


for epoch in range(1, args.epochs + 1):
    train(epoch)
    accuracy = test()
