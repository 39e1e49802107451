"""The reference of the integrations' tests: loops that are written by hand, and their cases."""

import gluon_gc.torch as bps
from tests.torch.common import ONEBIT, TOPK, Net, flat, loss_of, sgd, wrapped

WARM_UP = {"compressor": "dgc", "k": 0.05, "seed": 3, "warmup_epochs": 2}
LOCAL = {"name": "local_steps", "every": 3, "overlap": 1}
CASES = ((ONEBIT, None), (WARM_UP, None), (TOPK, LOCAL))
"""compression_params, and the algorithm."""
BATCHES = 4  # in an epoch


def trained(params, algorithm=None, epochs=2):
    """Train a Net; returns its parameters in one tensor."""
    if algorithm is None:
        net, optimizer, model, state = wrapped(params)
    else:
        model = net = Net()
        options = dict(compression_params=params, algorithm=algorithm)
        optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), **options)
        state = optimizer.compression_state
    for epoch in range(epochs):
        state.set_epoch(epoch)
        for batch in range(BATCHES):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    weights = flat(net)
    state.close()
    return weights
