"""Code that the workers' jobs share: a network, training loops, and checks."""

import copy
import gc
import itertools
import logging
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from gluon_gc.log import logger

ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
SIGNS = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
TOPK = {"compressor": "topk", "k": 0.05, "ef": "vanilla"}
DGC = {"compressor": "dgc", "k": 0.05, "seed": 3}
DITHERING = {"compressor": "dithering", "k": 4, "seed": 3, "ef": "corrected"}
AUTO = {"compressor": "auto", "accuracy": "aggressive", "momentum": "nesterov"}
_numbers = itertools.count()
SETTINGS = (ONEBIT, TOPK, DGC, DITHERING, {"compressor": "randomk", "k": 0.2, "seed": 5}, {})


class Net(torch.nn.Module):
    """Three layers; one of them is optional."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(20, 90)
        self.second = torch.nn.Linear(90, 90)
        self.last = torch.nn.Linear(90, 5)

    def forward(self, x, short=False):
        x = self.first(x).relu()
        return self.last(x if short else self.second(x).relu())


def replicas_and_shards(replicas=2):
    """Return a mesh of replicas and shards.

    Its names are new, because PyTorch caches the groups of equal meshes beyond their job.
    """
    from torch.distributed.device_mesh import init_device_mesh

    number, shape = next(_numbers), (replicas, dist.get_world_size() // replicas)
    names = f"replicas{number}", f"shards{number}"
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def data(step, rows=16):
    """Return this worker's part of a step's batch."""
    rng = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(rows, 20, generator=rng), torch.randint(5, (rows,), generator=rng)


def loss_of(model, step, **more):
    x, y = data(step)
    return torch.nn.functional.cross_entropy(model(x, **more), y)


def sgd(net, **more):
    options = dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    return torch.optim.SGD(net.parameters(), **{**options, **more})


def wrapped(params, ddp_options=None, net=None, **more):
    """Return a network, its optimizer, its DistributedDataParallel, and the compression state."""
    net = net or Net()
    optimizer = sgd(net)
    ddp = DistributedDataParallel(net, **(ddp_options or {}))
    state = bps.CompressionState(net.named_parameters(), params, optimizer, **more)
    ddp.register_comm_hook(state, bps.compression_hook)
    return net, optimizer, ddp, state


def train(net, optimizer, ddp, steps, **more):
    for step in steps:
        optimizer.zero_grad()
        loss_of(ddp, step, **more).backward()
        optimizer.step()
    return flat(net)


def train_compiled(net, optimizer, model, steps):
    """Like `train`, with forward, backward and the optimizer's step in a compiled function."""

    def step(x, y):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    compiled = torch.compile(step, backend="eager")
    for number in steps:
        compiled(*data(number))
    return flat(net)


def step_with_closures(net, optimizer, steps):
    """Train with closures, whose losses `step` must return."""
    for step in steps:

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(net, step)
            loss.backward()
            return loss

        with torch.no_grad():
            expected = loss_of(net, step)
        assert torch.equal(optimizer.step(closure), expected)


def flat(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def trained(params, steps=8, ddp_options=None, **more):
    net, optimizer, ddp, state = wrapped(params, ddp_options)
    weights = train(net, optimizer, ddp, range(steps), **more)
    state.close()
    return weights


def assert_alike(tensor):
    """Check that the tensor has the same bits on all workers."""
    everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, tensor)
    assert all(torch.equal(one, tensor) for one in everybody)


def raised(kind, said, function):
    try:
        function()
    except kind as error:
        assert said in str(error), error
        return
    raise AssertionError(f"nothing said {said}")


def settled(read):
    """What `read` returns once it has been the same for half a second: what has been closed before
    ends on its own time."""
    found = read()
    for _ in range(60):
        gc.collect()
        time.sleep(0.5)
        before, found = found, read()
        if found == before:
            return found
    raise AssertionError(f"it changes all the time, at last to {found}")


def in_flight_together(exchanges, steps):
    """Return the results of objects whose exchanges are started together in each step."""
    for step in range(steps):
        for exchange in exchanges:
            exchange.start(step)
        for exchange in exchanges:
            exchange.finish()
    return [result for exchange in exchanges for result in exchange.close()]


def other_parameters_are_told(distributed):
    """Check that workers with other parameters are told. `distributed` makes the optimizer."""
    net = Net()
    optimizer = distributed(net)
    if dist.get_rank():
        torch.nn.init.zeros_(net.second.bias)
    loss_of(net, 0).backward()
    raised(RuntimeError, "for parameter second.bias, but worker 0 has", optimizer.step)
    optimizer.compression_state.close()


@contextmanager
def logged():
    """Collect the log lines of the block, from level warning on."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def arrays_of(state, layer):
    """Return copies of all states of a layer's parameters."""
    arrays = copy.deepcopy(state.state_dict()["arrays"])
    return {name: states for name, states in arrays.items() if name.startswith(layer)}


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name][key], other[name][key]) for name in one for key in one[name]
    )


def train_once(net, optimizer, step=0):
    optimizer.zero_grad()
    loss_of(net, step).backward()
    optimizer.step()


def sharded(params):
    from torch.distributed.fsdp import fully_shard

    net = Net()
    for layer in net.children():
        fully_shard(layer)
    fully_shard(net)
    params = {**params, "momentum": None}
    return net, torch.optim.SGD(net.parameters(), lr=0.1), bps.compress_reduce_scatter(net, params)


def hooked(params):
    net, optimizer, ddp, state = wrapped(params)
    return ddp, optimizer, state


def distributed(params):
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), params)
    return net, optimizer, optimizer.compression_state


def full(parameter):
    whole = getattr(parameter, "full_tensor", lambda: parameter)()
    return whole.detach().clone()
