"""Objects with a state_dict, as two workers of PyTorch saved it.

`python -m tests.saved.torch_states` writes the file.
The file has for each case the state_dicts of both workers. Where another number of workers can load
them, it also has the checksums of these workers' state_dicts after loading.
"""

import io
import lzma
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import gluon_gc.torch as bps
from gluon_gc.algorithms import in_full
from tests.link import link_of
from tests.torch.workers import run

FILE = Path(__file__).with_name("torch.pt.xz")
WORKERS, OTHERS = 2, (1, 3)
STEPS = 3
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
AUTO = {"compressor": "auto", "accuracy": "aggressive"}
SLOW, FAST = 1e4, 1e15  # bytes per second


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x).relu())


def gradients(params, **more):
    """Return a network and its DistributedOptimizer, which averages gradients."""
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    named = net.named_parameters()
    return net, bps.DistributedOptimizer(sgd, named, compression_params=params, **more)


def algorithm(algorithm, params, optimizer=torch.optim.SGD):
    net = Net()
    inner = optimizer(net.parameters(), lr=0.1)
    named = net.named_parameters()
    options = {"compression_params": params, "algorithm": algorithm}
    return net, bps.DistributedOptimizer(inner, named, **options)


def sharded(compress, params, **more):
    """Return a network whose gradients or parameters are compressed, and its optimizer."""
    net = Net()
    for module in (net.first, net.last):
        fully_shard(module)
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.compression_state = compress(net, params, **more)
    return net, optimizer


_blockwise = {"compressor": "blockwise"}
_adam = torch.optim.AdamW
_zero_one_adam = {"name": "zero_one_adam", "var_freeze_step": 2}

CASES = {
    "onebit": lambda: gradients(
        {**ONEBIT, "momentum": "nesterov"},
        overrides={"last.*": None, "first.bias": {"compressor": "topk", "k": 2, "ef": "corrected"}},
    ),
    "topk": lambda: gradients({"compressor": "topk", "k": 0.2, "ef": "vanilla"}),
    "dgc": lambda: gradients({"compressor": "dgc", "k": 0.2, "seed": 3}),
    "dithering": lambda: gradients({"compressor": "dithering", "k": 4, "seed": 3, "ef": "vanilla"}),
    "auto": lambda: gradients({**AUTO, "momentum": "nesterov"}),
    "local_steps": lambda: algorithm(
        {"name": "local_steps", "every": 2, "outer_momentum": 0.9}, ONEBIT
    ),
    "auto_local_steps": lambda: algorithm(
        {"name": "local_steps", "outer_momentum": 0.9}, AUTO, _adam
    ),
    "zero_one_adam": lambda: algorithm(_zero_one_adam, None, _adam),
    "powersgd": lambda: algorithm({"name": "powersgd", "rank": 1, "start": 1}, None),
    "reduce_scatter": lambda: sharded(bps.compress_reduce_scatter, {**_blockwise, "ef": "vanilla"}),
    "all_gather": lambda: sharded(bps.compress_all_gather, _blockwise),
}
RESHARDED = [name for name in CASES if name not in ("reduce_scatter", "all_gather")]
"""The cases that another number of workers can load."""


def train(net, optimizer, steps):
    for step in range(steps):
        rng = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = net(torch.randn(4, 3, generator=rng)).square().mean()
        loss.backward()
        optimizer.step()


def gathered(state):
    """Return the state_dicts of all workers."""
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state.state_dict())
    return states


def closed(optimizer):
    state = optimizer.compression_state
    if hasattr(state, "close"):
        state.close()


def written(file):
    """Write the state_dicts of each case."""
    found = {}
    for name, make in CASES.items():
        with link_of(SLOW):
            net, optimizer = make()
            train(net, optimizer, 8 if name == "auto_local_steps" else STEPS)
        found[name] = gathered(optimizer.compression_state)
        closed(optimizer)
    if dist.get_rank() == 0:
        torch.save(found, file)


def loaded(name, given):
    """Return the state_dicts of all workers after they have loaded those that are given, without
    options, kinds of state and entries that the version that saved them did not have yet.

    `given`: this worker's state_dict, or those of all workers.
    """
    with link_of(FAST):
        net, optimizer = CASES[name]()
        if name in ("reduce_scatter", "all_gather"):
            train(net, optimizer, 1)
    state = optimizer.compression_state
    state.load_state_dict(given)
    states = gathered(state)
    closed(optimizer)
    saved = given[0] if isinstance(given, list) else given
    for own in states:
        if "entries" not in saved:
            own.pop("entries", None)
        if "algorithm" in own:
            assert own["algorithm"] == in_full(saved["algorithm"])
            own["algorithm"] = saved["algorithm"]
            own["state"] = {kind: own["state"][kind] for kind in saved["state"]}
    return states


def resharded(file):
    """Add the checksums of this number of workers' states after loading those of two workers."""
    found = torch.load(file)
    for name in RESHARDED:
        found[f"{name} of {dist.get_world_size()}"] = checksums(loaded(name, found[name]))
    if dist.get_rank() == 0:
        torch.save(found, file)


def checksums(states):
    """Return a checksum of each entry of each worker's state_dict."""
    return [{key: _checksum(value, 0) for key, value in state.items()} for state in states]


def _checksum(value, so_far):
    if isinstance(value, torch.Tensor):
        so_far = zlib.crc32(f"{value.dtype} {value.shape}".encode(), so_far)
        return zlib.crc32(value.numpy().tobytes(), so_far)
    if not isinstance(value, (dict, list, tuple)):
        return zlib.crc32(repr(value).encode(), so_far)
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        so_far = _checksum(part, zlib.crc32(repr(name).encode(), so_far))
    return so_far


def read():
    """Return the state_dicts of the file."""
    return torch.load(io.BytesIO(lzma.decompress(FILE.read_bytes())), weights_only=True)


if __name__ == "__main__":
    from tests.saved import torch_states

    plain = FILE.with_suffix("")
    run(torch_states.written, WORKERS, file=str(plain))
    for workers in OTHERS:
        run(torch_states.resharded, workers, file=str(plain))
    FILE.write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
