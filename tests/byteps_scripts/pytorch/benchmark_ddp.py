"""The arguments and calls of BytePS's benchmark_byteps_ddp.py."""

import synthetic
import torch

import gluon_gc.torch as bps
from gluon_gc.torch.parallel import DistributedDataParallel as DDP

args = synthetic.benchmark_arguments()
bps.init()
model = synthetic.net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = DDP(model, device_ids=[bps.local_rank()])
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
synthetic.benchmark(bps, args, model, optimizer)
