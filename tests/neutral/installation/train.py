"""A PyTorch worker that trains with an installed gluon_gc, and writes its results to a file.

The file has the rank in its name. It contains the number of workers, the compression ratio, and a
digest of the weights.
"""

import hashlib
import importlib.util

import torch
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps

assert importlib.util.find_spec("mxnet") is None
bps.init()
torch.manual_seed(0)
model = torch.nn.Linear(4096, 1)
x = torch.randn(64, 4096)[bps.rank() :: bps.size()]
y = x[:, :1] - x[:, 1:2]
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
ddp = DistributedDataParallel(model)
params = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
state = bps.CompressionState(model.named_parameters(), params, optimizer)
ddp.register_comm_hook(state, bps.compression_hook)
losses = []
for _ in range(20):
    loss = torch.nn.functional.mse_loss(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.9 * losses[0], losses
ratio = state.compression_stats()["total"]["ratio"]
digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
with open(f"rank{bps.rank()}", "w") as file:
    print(bps.size(), round(ratio), digest, file=file)
bps.shutdown()
