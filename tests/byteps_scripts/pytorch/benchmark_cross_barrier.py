"""The arguments and calls of BytePS's benchmark_cross_barrier_byteps.py."""

import synthetic
import torch

import gluon_gc.torch.cross_barrier as bps

args = synthetic.benchmark_arguments("fp16-allreduce")
bps.init()
model = synthetic.net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
compression = bps.Compression.fp16 if args.fp16_allreduce else bps.Compression.none
optimizer = bps.CrossBarrier(
    model,
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    num_steps=args.num_warmup_batches + args.num_iters * args.num_batches_per_iter,
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
synthetic.log(bps, "Number of workers: %d", bps.size())
synthetic.benchmark(bps, args, model, optimizer)
