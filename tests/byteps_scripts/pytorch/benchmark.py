"""The arguments and calls of BytePS's benchmark_byteps.py."""

import synthetic
import torch

import gluon_gc.torch as bps

args = synthetic.benchmark_arguments()
bps.init()
model = synthetic.net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=compression
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
synthetic.log(bps, "Number of workers: %d", bps.size())
synthetic.benchmark(bps, args, model, optimizer)
