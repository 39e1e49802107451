"""The arguments and calls of BytePS's elastic_benchmark_byteps.py and benchmark_byteps.py.

benchmark_byteps.py ends where elastic_benchmark_byteps.py suspends.
"""

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

rank = bps.rank()
bps.suspend()
synthetic.log(bps, "bps is suspended.")
bps.resume(2, 1, rank)  # the published script passes worker id 0
synthetic.log(bps, "bps is resumed, with %d workers.", bps.size())
synthetic.benchmark(bps, args, model, optimizer)  # not in BytePS's script
