"""Compares gluon_gc.torch on this machine's GPUs with the CPU. Two workers may share a GPU.

    GLUON_GC_LIBRARY=build/gpu/libgluon_gc.so torchrun --nproc-per-node 2 \\
      tests/cuda/torch_on_gpu.py [PART OF A CHECK'S NAME]

A loss that is linear in the parameters has the same gradients on CPU and GPU, bit for bit. So the
averages, residuals and momentum must be equal too. Each check prints a line.

With a GPU for each worker, GLUON_GC_PAYLOADS=nccl runs the same checks over NCCL.
"""

import os
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import gluon_gc.torch as bps  # noqa: E402
from gluon_gc import mailbox  # noqa: E402
from tests.torch.common import in_flight_together  # noqa: E402

SIZES = (3_000_017, 70_000, 1001, 4_194_304, 5)
STEPS = 4
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
SETTINGS = {
    "uncompressed": {},
    "fp16": {"fp16": True},
    "onebit": ONEBIT,
    "onebit, nesterov": {**ONEBIT, "momentum": "nesterov"},
    "topk": {"compressor": "topk", "k": 0.001, "ef": "vanilla"},
    "topk, corrected, nesterov": {
        "compressor": "topk",
        "k": 0.01,
        "ef": "corrected",
        "momentum": "nesterov",
    },
    "topk, gathered": {"compressor": "topk", "k": 0.01, "ef": "vanilla", "exchange": "gather"},
    "randomk": {"compressor": "randomk", "k": 0.01, "seed": 5, "ef": "vanilla"},
    "dithering": {
        "compressor": "dithering",
        "k": 4,
        "seed": 3,
        "ef": "vanilla",
        "fixed_width": True,
    },
    "dgc": {"compressor": "dgc", "k": 0.01, "seed": 3},
    "blocktopk": {"compressor": "blocktopk", "ef": "vanilla"},
    "blockwise": {"compressor": "blockwise", "ef": "vanilla", "stochastic": True, "seed": 3},
    "bytegrad": {"compressor": "bytegrad"},
}


class Linear(torch.nn.Module):
    """Parameters whose gradients are given, and a product that keeps the GPU busy meanwhile."""

    def __init__(self, device):
        super().__init__()
        self.values = torch.nn.ParameterList(torch.zeros(n, device=device) for n in SIZES)
        self.busy = torch.ones(2048, 2048, device=device) if device.type == "cuda" else None

    def forward(self, gradients):
        if self.busy is not None:
            for _ in range(20):
                self.busy = (self.busy @ self.busy).clamp_(-1, 1)
        return sum((p * g).sum() for p, g in zip(self.values, gradients))


def gradients(step):
    """Return this worker's gradients of a step, in host memory."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return [torch.randn(n, generator=generator) for n in SIZES]


def trained(device, params, steps, saved=None):
    """Return the averages of each step, and this worker's state after the last one."""
    net = Linear(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    state = bps.CompressionState(net.named_parameters(), params, optimizer)
    if saved is not None:
        state.load_state_dict(saved)
    ddp.register_comm_hook(state, bps.compression_hook)
    averages = []
    for step in steps:
        optimizer.zero_grad()
        ddp([g.to(device) for g in gradients(step)]).backward()
        averages.append([p.grad.cpu().clone() for p in net.values])
        optimizer.step()
    saved = state.state_dict()
    state.close()
    return averages, saved


def require_equal(one, other, what):
    """Compare tensors in lists, tuples and dictionaries, bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), what
        for key in one:
            require_equal(one[key], other[key], f"{what}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), what
        for i, pair in enumerate(zip(one, other)):
            require_equal(*pair, f"{what}[{i}]")
    elif isinstance(one, torch.Tensor):
        one, other = one.cpu().contiguous(), other.cpu().contiguous()
        same = torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        assert same, f"{what}: {(one != other).sum()} of {one.numel()} differ"


def check_hook(device, params):
    """Train on the CPU and on the GPU; and on the GPU from a checkpoint of the CPU."""
    cpu = torch.device("cpu")
    expected, saved = trained(cpu, params, range(STEPS))
    averages, state = trained(device, params, range(STEPS))
    require_equal(averages, expected, "averages")
    require_equal(state, saved, "state")
    more = range(STEPS, STEPS + 2)
    expected, last = trained(cpu, params, more, saved)
    averages, state = trained(device, params, more, saved)
    require_equal(averages, expected, "averages after a checkpoint")
    require_equal(state, last, "state after a checkpoint")


class Racer:
    """Averages given gradients, which one busy stream writes, and another one uses and overwrites.

    Nothing but the exchange's future orders the two streams.
    """

    SIZES = {"first": 300_000, "second": 70_000}  # their payloads travel in one transfer

    def __init__(self, device, params, seed, steps):
        self._cuda = device.type == "cuda"
        random = torch.Generator().manual_seed(10 * seed + dist.get_rank())
        self._given = [
            [torch.randn(n, generator=random).to(device) for n in self.SIZES.values()]
            for _ in range(steps)
        ]
        zeros = {name: torch.zeros(n, device=device) for name, n in self.SIZES.items()}
        self.parameters = {name: torch.nn.Parameter(values) for name, values in zeros.items()}
        self._optimizer = torch.optim.SGD(self.parameters.values(), lr=0.01)
        self.state = bps.CompressionState(self.parameters.items(), params, self._optimizer)
        self._streams = [torch.cuda.Stream(device) if self._cuda else None for _ in range(2)]
        self._busy = torch.ones(2048, 2048, device=device) if self._cuda else None
        if self._cuda:
            torch.cuda.synchronize(device)
        self.averages = []

    @contextmanager
    def _stream(self, number):
        """Queue work in a stream behind other work."""
        with torch.cuda.stream(self._streams[number]) if self._cuda else nullcontext():
            if self._cuda:
                for _ in range(5):
                    (self._busy @ self._busy).clamp_(-1, 1)
            yield

    def start(self, step):
        with self._stream(0):
            self._gradients = {n: g.clone() for n, g in zip(self.SIZES, self._given[step])}
            self._future = self.state.average(self._gradients)

    def finish(self):
        with self._stream(1):
            self._future.wait()
            for name, parameter in self.parameters.items():
                parameter.grad = self._gradients[name].clone()
            self.averages += [parameter.grad.clone() for parameter in self.parameters.values()]
            self.state.gradients.undo.delivered()
            self._optimizer.step()
            for gradient in self._gradients.values():
                gradient.fill_(float("nan"))
            self._gradients = {}  # the allocator may reuse them at once

    def close(self):
        if self._cuda:
            torch.cuda.synchronize()
        self.state.close()
        return self.averages


def raced(device, params, steps=30):
    """Return the averages of two exchanges that are always in flight together."""
    return in_flight_together([Racer(device, params, seed, steps) for seed in range(2)], steps)


def check_races(device, params):
    """Compare exchanges in streams without any other order with the CPU, over many steps."""
    require_equal(raced(device, params), raced(torch.device("cpu"), params), "averages")


def check_waits(device):
    """Check how often the host waits in a step, and that PyTorch finds no other synchronization."""
    expected = 2 if os.environ.get("GLUON_GC_PAYLOADS") == "nccl" else 3
    racer, waits, wait = Racer(device, ONEBIT, 0, 8), [], torch.cuda.Event.synchronize

    def counted(event):
        waits.append(event)
        wait(event)

    with mock.patch.object(torch.cuda.Event, "synchronize", counted):
        for step in range(8):
            if step == 4:
                torch.cuda.synchronize(device)
                waits.clear()
            torch.cuda.set_sync_debug_mode("error" if step >= 4 else "default")
            try:
                racer.start(step)
                racer.finish()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    racer.close()
    assert len(waits) == 4 * expected, f"{len(waits)} waits in 4 steps"


def check_alike(net, what):
    """Check that the weights have the same bits on all workers."""
    flat = torch.cat([p.detach().reshape(-1).cpu() for p in net.parameters()])
    assert flat.isfinite().all(), what
    everybody = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, flat)
    require_equal(everybody, [flat] * len(everybody), what)


def network(device):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device)


def loss_of(net, device, step):
    generator = torch.Generator().manual_seed(10 * (step % 4) + dist.get_rank())
    x = torch.randn(64, 64, generator=generator).to(device)
    y = torch.randint(10, (64,), generator=generator).to(device)
    return torch.nn.functional.cross_entropy(net(x), y)


def check_optimizer(device, optimizer, params=None, algorithm=None, wrap=lambda net: net):
    """Train with an algorithm of DistributedOptimizer. The loss must fall by a third."""
    net = network(device)
    wrapped = wrap(net)
    optimizer = bps.DistributedOptimizer(
        optimizer(net.parameters()),
        net.named_parameters(),
        compression_params=params,
        algorithm=algorithm,
    )
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = loss_of(wrapped, device, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    check_alike(net, "weights")
    assert sum(losses[-4:]) / 4 < losses[0] / 1.5, losses[::10]


def check_mailbox(device, optimizer):
    """Train with the rounds of both workers, as one site, in a folder."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    bps.init(mailbox=folder[0], grace=5)
    local_steps = {"name": "local_steps", "every": 4}
    check_optimizer(device, optimizer, ONEBIT, local_steps, DistributedDataParallel)
    mailbox.disconnect()


def check_fsdp(device, residual_bits):
    """Train a model with fully_shard. The loss must fall to less than a half."""
    from torch.distributed.fsdp import fully_shard

    net = network(device)
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(net)
    params = {"compressor": "blockwise", "ef": "vanilla"}
    bps.compress_reduce_scatter(net, params, residual_bits=residual_bits)
    bps.compress_all_gather(net, {"compressor": "blockwise", "bits": 8})
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(net, device, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses[::10]


def check_nonfinite(device):
    """A NaN on the GPU must be an error that names the parameter."""
    net = Linear(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ddp = DistributedDataParallel(net)
    state = bps.CompressionState(net.named_parameters(), ONEBIT, optimizer)
    ddp.register_comm_hook(state, bps.compression_hook)
    given = [g.to(device) for g in gradients(0)]
    given[1][3] = float("nan")
    try:
        ddp(given).backward()
        raise AssertionError("a NaN was not found")
    except RuntimeError as error:
        assert "values.1" in str(error), error
    state.close()


def checks(device):
    """Return functions by their names."""
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    adam = lambda parameters: torch.optim.Adam(parameters, lr=1e-3)  # noqa: E731
    found = {f"hook, {name}": lambda p=p: check_hook(device, p) for name, p in SETTINGS.items()}
    found["a NaN"] = lambda: check_nonfinite(device)
    for name in ("onebit", "topk", "blockwise", "uncompressed"):
        found[f"races, {name}"] = lambda p=SETTINGS[name]: check_races(device, p)
    found["waits of the host"] = lambda: check_waits(device)
    local = {"name": "local_steps", "every": 4}
    for name, arguments in {
        "onebit in DistributedOptimizer": (sgd, ONEBIT),
        "local_steps": (sgd, ONEBIT, local),
        "powersgd": (sgd, None, {"name": "powersgd", "rank": 4}),
        "onebit_adam": (adam, None, {"name": "onebit_adam", "freeze_step": 10}),
    }.items():
        found[name] = lambda arguments=arguments: check_optimizer(device, *arguments)
    if find_spec("obstore"):
        found["local_steps with a mailbox"] = lambda: check_mailbox(device, sgd)
    for bits in (32, 8):
        found[f"fully_shard, residuals of {bits} bits"] = lambda bits=bits: check_fsdp(device, bits)
    return found


def main():
    dist.init_process_group(
        "gloo", timeout=timedelta(seconds=60)
    )  # NCCL does not let two workers share a GPU
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    bps.init(timeout=60)
    failed, part = 0, "".join(sys.argv[1:])
    for name, check in checks(device).items():
        if part not in name:
            continue
        begin = time.monotonic()
        try:
            check()
            said = "right"
        except Exception as error:
            failed, said = 1, f"FAILED: {type(error).__name__}: {error}"
        seconds = time.monotonic() - begin
        print(f"worker {dist.get_rank()}: {name}: {said} ({seconds:.1f} s)", flush=True)
        dist.barrier()
    if failed:
        sys.exit(1)
    bps.shutdown()


if __name__ == "__main__":
    main()
