"""compress_all_gather, alone and with compress_reduce_scatter."""

import functools
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gluon_gc.torch as bps
from gluon_gc.compression import parse
from gluon_gc.exchange.coder import Coder
from gluon_gc.torch.state.small_residuals import Scratch, SmallResiduals
from gluon_gc.torch.transport import groups
from tests.torch.common import SIGNS, Net, assert_alike, loss_of, raised, replicas_and_shards
from tests.torch.test_workers import CountingTransport
from tests.torch.workers import on_workers, run

FOUR_BITS = {"compressor": "blockwise"}
EIGHT_BITS = {"compressor": "blockwise", "bits": 8}
GRADIENTS = {"compressor": "blockwise", "ef": "vanilla"}
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Tied(Net):
    """A network whose first layer is frozen and whose last two weights are one parameter.

    No number of rows is a multiple of 2 or 4.
    """

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(20, 5).requires_grad_(False)
        self.second = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 5)
        self.last.weight = self.second.weight


def sharded(net=None, policy=None, reshard=True, layers=("first", "second", "last"), mesh=None):
    """Return a network with an FSDP module for each of these layers, and its optimizer."""
    net, policy = Net() if net is None else net, policy or MixedPrecisionPolicy()
    options = {"mp_policy": policy, "reshard_after_forward": reshard, "mesh": mesh}
    for name in layers:
        fully_shard(getattr(net, name), **options)
    fully_shard(net, **options)
    return net, torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=3e-3)


def train(net, optimizer, steps):
    """Train, and return the losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(net, step % 3)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def local(net):
    """Return this worker's shards as one vector."""
    return torch.cat([p.to_local().detach().reshape(-1) for p in net.parameters()])


def whole(net):
    """Return the exact parameters of all workers by name."""
    return {name: p.detach().full_tensor() for name, p in net.named_parameters()}


@contextmanager
def computed_with(net):
    """Collect the parameters that the layers of a network compute with, by name."""
    seen = {}

    def record(name, layer, inputs):
        own = layer.named_parameters(recurse=False)
        seen.update((f"{name}.{n}", p.detach().clone()) for n, p in own)

    handles = [
        layer.register_forward_pre_hook(functools.partial(record, name))
        for name, layer in net.named_children()
    ]
    yield seen
    for handle in handles:
        handle.remove()


@contextmanager
def counted():
    """Count the bytes that this worker sends in messages of gluon_gc."""
    ours, groups.TRANSPORT = groups.TRANSPORT, CountingTransport()
    try:
        yield groups.TRANSPORT
    finally:
        groups.TRANSPORT = ours


class Replay:
    """The rule of the differences, in NumPy, for all workers' shards of a parameter."""

    def __init__(self, value, workers):
        self.shape, self.workers = value.shape, workers
        rows = -(-value.shape[0] // workers)
        self.size = rows * value[0].numel()
        self.copy = self.padded(value)
        self.sent = self.copy.clone()
        self.codec = parse(FOUR_BITS).codec(self.size, "float32")

    def padded(self, value):
        flat = torch.zeros(self.workers * self.size, dtype=value.dtype)
        flat[: value.numel()] = value.reshape(-1)
        return flat.view(self.workers, self.size)

    def gather(self, value):
        """Return the parameter that workers compute with, given the exact one."""
        for values, copy, sent in zip(self.padded(value), self.copy, self.sent):
            if not torch.equal(values, sent):
                difference = values.float() - copy.float()
                payload, _ = self.codec.compress(difference.numpy())
                decoded, _ = self.codec.decompress(payload)
                copy.copy_(copy.float() + torch.from_numpy(decoded))
                sent.copy_(values)
        return self.copy.view(-1)[: self.shape.numel()].view(self.shape)


@on_workers(2)
def test_statistics_have_the_bytes_of_each_parameter():
    net, optimizer = sharded()
    gathered = bps.compress_all_gather(net, EIGHT_BITS)
    reduced = bps.compress_reduce_scatter(net, GRADIENTS)
    train(net, optimizer, range(3))
    for compression in (gathered, reduced):
        stats = compression.compression_stats(reset=True)
        assert stats["tensors"].keys() == dict(net.named_parameters()).keys()
        total = stats["total"]
        assert 0 < total["pushed_bytes"] < total["raw_bytes"]
        assert total["pulled_bytes"] > 0 and total["compress_seconds"] > 0
        assert stats["tensors"]["second.weight"]["pushed_bytes"] > 500
        assert compression.compression_stats()["total"]["pushed_bytes"] == 0


@on_workers(2, 4)
def test_differences_are_their_replay_on_all_workers():
    for policy, reshard, replicas in (
        (None, True, 1),
        (None, False, 1),
        (BFLOAT16, True, 1),
        (None, True, dist.get_world_size() // 2),  # two shards
    ):
        mesh = replicas_and_shards(replicas) if replicas > 1 else None
        net, optimizer = sharded(policy=policy, reshard=reshard, mesh=mesh)
        bps.compress_all_gather(net, FOUR_BITS)
        dtype = torch.float32 if policy is None else policy.param_dtype
        shards = dist.get_world_size() // replicas
        replays = {n: Replay(p.to(dtype), shards) for n, p in whole(net).items()}
        for step in range(4):
            exact = whole(net)
            with computed_with(net) as seen:
                train(net, optimizer, [step])
            assert seen.keys() == exact.keys()
            for name, value in exact.items():
                assert torch.equal(seen[name], replays[name].gather(value.to(dtype))), name
                assert_alike(seen[name])
            difference = (seen["second.weight"].float() - exact["second.weight"]).abs().max()
            assert (0 < difference < 1e-3) or step == 0 or policy


@on_workers(2)
def test_losses_are_those_of_plain_fully_shard():
    def losses(gather=None, differences=True, scatter=None, bits=32, **options):
        net, optimizer = sharded(**options)
        if gather is not None:
            bps.compress_all_gather(net, gather, differences=differences)
        if scatter is not None:
            bps.compress_reduce_scatter(net, scatter, residual_bits=bits)
        return np.array(train(net, optimizer, range(24)))

    plain, half = losses(), losses(policy=BFLOAT16)
    assert max(plain[-1], half[-1]) < 0.7 * plain[0]
    assert np.array_equal(losses(gather={}), plain)
    for expected, allowed, options in (
        (plain, 0.03, {"gather": FOUR_BITS, "reshard": False}),
        (plain, 0.03, {"gather": EIGHT_BITS, "differences": False}),
        (plain, 0.03, {"gather": {"compressor": "bytegrad"}, "differences": False}),
        (plain, 0.15, {"gather": {"compressor": "blocktopk", "k": 512}}),
        (plain, 1e-6, {"scatter": {}}),
        (plain, 0.01, {"scatter": {"fp16": True}}),
        (plain, 0.4, {"scatter": SIGNS}),
        (plain, 0.06, {"gather": FOUR_BITS, "scatter": GRADIENTS}),
        (losses(scatter=GRADIENTS), 0.03, {"scatter": GRADIENTS, "bits": 8}),
        (half, 0.06, {"gather": FOUR_BITS, "scatter": GRADIENTS, "policy": BFLOAT16}),
        (half, 0.03, {"gather": EIGHT_BITS, "differences": False, "policy": BFLOAT16}),
    ):
        with mock.patch.object(dist, "broadcast", None):  # no parameter travels uncompressed
            difference = np.abs(losses(**options) - expected).max()
        assert difference < allowed, (options, difference)


@on_workers(2, 4)
def test_only_shards_that_changed_are_sent():
    """Frozen and tied parameters, uneven shards, resharding, and gradient accumulation."""
    net, optimizer = sharded(Tied(), layers=("first",))
    plain = sharded(Tied(), layers=("first",))
    trained = {n: p for n, p in whole(net).items() if net.get_parameter(n).requires_grad}
    assert trained.keys() == {"second.weight", "second.bias", "last.bias"}
    workers, rows = dist.get_world_size(), -(-5 // dist.get_world_size())
    sizes = [rows * p[0].numel() for p in trained.values()]
    payloads = sum(parse(FOUR_BITS).codec(size, "float32").payload_bytes for size in sizes)
    if rows * dist.get_rank() >= 5:  # this worker has padding only, which does not change
        payloads = 0
    stamp = 32  # bytes
    flags = 2 * (2 * stamp + 2 + 3)  # of two modules, in forward and backward
    with counted() as transport:
        bps.compress_all_gather(net, FOUR_BITS)

        def sent(work, *arguments):
            before = transport.sent_bytes
            work(*arguments)
            return (transport.sent_bytes - before) / (workers - 1)

        def step(number):
            losses = [train(*both, [number]) for both in ((net, optimizer), plain)]
            assert np.abs(np.subtract(*losses)) < 0.01

        assert sent(step, 0) == flags
        for number in range(1, 4):
            assert sent(step, number) == flags + payloads
        net.set_requires_gradient_sync(False)
        assert sent(lambda: loss_of(net, 0).backward()) == flags + payloads
        net.set_requires_gradient_sync(True)
        assert sent(lambda: loss_of(net, 1).backward()) == flags


@on_workers(2)
def test_accumulated_gradients_go_both_ways():
    weights = []
    for passes in (1, 2):
        net, optimizer = sharded()
        bps.compress_all_gather(net, FOUR_BITS)
        bps.compress_reduce_scatter(net, GRADIENTS)
        for step in range(4):
            optimizer.zero_grad()
            if passes == 2:
                net.set_requires_gradient_sync(False)
                loss_of(net, 2 * step).backward()
                net.set_requires_gradient_sync(True)
                loss_of(net, 2 * step + 1).backward()
            else:
                (loss_of(net, 2 * step) + loss_of(net, 2 * step + 1)).backward()
            optimizer.step()
        weights.append(local(net))
    assert torch.allclose(*weights, atol=2e-3)


@on_workers(2)
def test_parameters_that_change_places_are_refused():
    """One is frozen and another one of its size is unfrozen: FSDP passes sizes, but no names."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.Linear(20, 20))
    net[0].requires_grad_(False)
    fully_shard(net)
    bps.compress_reduce_scatter(net, GRADIENTS)
    loss_of(net, 0).backward()
    net[0].requires_grad_(True)
    net[1].requires_grad_(False)
    said = "parameter 1.weight was frozen or unfrozen after compress_reduce_scatter: call it again"
    raised(RuntimeError, said, lambda: loss_of(net, 0).backward())


@on_workers(2, 4)
def test_every_change_of_a_parameter_is_gathered():
    """A change that no optimizer made, on one worker only; then NaN."""
    net, optimizer = sharded()
    bps.compress_all_gather(net, FOUR_BITS)
    train(net, optimizer, range(2))
    if dist.get_rank() == 1:
        net.second.weight.data.to_local().fill_(0.25)
    with computed_with(net) as seen, torch.no_grad():
        loss_of(net, 0)
    exact = whole(net)["second.weight"]
    assert (seen["second.weight"] - exact).abs().max() < 0.05
    assert_alike(seen["second.weight"])
    if dist.get_rank() == 1:
        net.last.bias.data.to_local().fill_(float("nan"))
    said = "parameter last.bias has a NaN or an infinity"
    raised(RuntimeError, said, lambda: loss_of(net, 0))


def half_frozen(policy=None):
    """Return a network with a frozen layer that has gathered once, and its gathered copies."""
    net, _ = sharded(policy=policy)
    net.first.requires_grad_(False)
    gathered = bps.compress_all_gather(net, FOUR_BITS)
    inexact(net)
    return net, gathered


def inexact(net):
    """Gather, and return the parameters that workers compute with unlike their owners."""
    with computed_with(net) as seen, torch.no_grad():
        loss_of(net, 0)
    return {n for n, p in whole(net).items() if not torch.equal(seen[n], p.to(seen[n].dtype))}


def scale(net, factor):
    """Multiply the parameters in place."""
    for p in net.parameters():
        p.data.to_local().mul_(factor)


@on_workers(2, 4)
def test_loaded_values_are_gathered_exactly():
    """After large and small changes, on all workers and on one only."""
    for policy in (None, BFLOAT16):
        for factor in (2, 1.01):
            net, gathered = half_frozen(policy)
            net.load_state_dict({n: factor * p for n, p in net.state_dict().items()})
            if factor == 2:  # a checkpoint of the copies keeps that they must become exact
                gathered.load_state_dict(gathered.state_dict())
            assert not inexact(net)
            if dist.get_rank() == 0:
                net.load_state_dict({n: factor * p for n, p in net.state_dict().items()})
            assert not inexact(net)
    net.second.load_state_dict(net.second.state_dict())
    with mock.patch.object(dist, "broadcast", None):  # nothing has changed
        assert not inexact(net)


@on_workers(2, 4)
def test_large_changes_in_place_are_gathered_exactly():
    for policy in (None, BFLOAT16):
        net, _ = half_frozen(policy)
        for factor in (2, 0, 0):
            scale(net, factor)
            assert not inexact(net)


@on_workers(2, 4)
def test_frozen_parameters_become_exact():
    for policy in (None, BFLOAT16):
        net, _ = half_frozen(policy)
        scale(net, 1.01)
        with mock.patch.object(dist, "broadcast", None):
            assert inexact(net) > {"first.weight", "second.weight"}
        for _ in range(2):
            now = inexact(net)
            assert "second.weight" in now and not now & {"first.weight", "first.bias"}
        net.first.requires_grad_(True)
        scale(net, 1.01)
        with mock.patch.object(dist, "broadcast", None):
            for _ in range(2):
                assert "first.weight" in inexact(net)


@on_workers(2, 4)
def test_loaded_nan_is_told():
    net, _ = half_frozen()
    state = net.state_dict()
    net.load_state_dict({**state, "last.bias": float("nan") * state["last.bias"]})
    said = "parameter last.bias has a NaN or an infinity"
    raised(RuntimeError, said, lambda: inexact(net))
    net.load_state_dict({**state, "last.bias": torch.ones_like(state["last.bias"])})
    assert not inexact(net)


class OneParameter(torch.nn.Module):
    """A parameter of 7 x 40 elements; the attribute `seen` is the one that forward got."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(7, 40, dtype=dtype))

    def forward(self):
        self.seen = self.weight.detach().clone()


@on_workers(2)
def test_every_dtype_is_gathered():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        for params, differences in ((FOUR_BITS, True), (EIGHT_BITS, False), ({"fp16": True}, True)):
            net = OneParameter(dtype)
            fully_shard(net, reshard_after_forward=True)
            bps.compress_all_gather(net, params, differences=differences)
            random = torch.Generator().manual_seed(dist.get_rank())
            with torch.no_grad():
                for _ in range(3):
                    own = net.weight.to_local()
                    own += 0.01 * torch.randn(own.shape, dtype=dtype, generator=random)
                    net()
                    exact = net.weight.full_tensor()
                    assert (net.seen - exact).abs().max() < 0.01, (dtype, params)
            real = torch.view_as_real(net.seen) if net.seen.is_complex() else net.seen
            assert_alike(real.contiguous())
            assert not torch.equal(net.seen, exact) or (params.get("fp16") and dtype.itemsize == 2)


@on_workers(2)
def test_workers_with_other_arguments_are_told():
    net, _ = sharded()
    bps.compress_all_gather(net, FOUR_BITS if dist.get_rank() else EIGHT_BITS)
    said = "worker 1 has bits 4 for first.weight, but worker 0 has 8"
    raised(RuntimeError, said, lambda: loss_of(net, 0))
    net, _ = sharded()
    bps.compress_reduce_scatter(net, FOUR_BITS if dist.get_rank() else EIGHT_BITS)
    loss = loss_of(net, 0)
    raised(RuntimeError, "worker 1 has bits 4 for last.weight, but worker 0 has 8", loss.backward)


# Checkpoints


def both_ways(policy=None):
    """With the policy, residuals are kept in 8 bits."""
    net, optimizer = sharded(policy=policy)
    dithering = {"compressor": "dithering", "k": 4, "seed": 3, "fixed_width": True}
    states = {
        "gather": bps.compress_all_gather(net, FOUR_BITS),
        "scatter": bps.compress_reduce_scatter(
            net,
            {**dithering, "ef": "vanilla"},
            overrides={"first.*": GRADIENTS},
            residual_bits=32 if policy is None else 8,
        ),
    }
    return net, optimizer, states


def saved_with_dcp(folder):
    """Saved after an evaluation, so that the next gather must find nothing to send."""
    for policy in (None, BFLOAT16):
        net, optimizer, states = both_ways(policy)
        train(net, optimizer, range(4))
        with torch.no_grad():
            loss_of(net, 0)
        model, optim = get_state_dict(net, optimizer)
        kept = {"model": model, "optim": optim, **states}
        dcp.save(kept, checkpoint_id=folder / f"dcp-{policy is None}")
        train(net, optimizer, range(4, 8))
        values = {"local": local(net), "cut": [s.state_dict() for s in states.values()]}
        torch.save(values, folder / f"{policy is None}-{dist.get_rank()}.pt")
    new = both_ways()[2]
    dcp.save(new, checkpoint_id=folder / "before-the-first-step")


def resumed_from_dcp(folder):
    for policy in (None, BFLOAT16):
        expected = torch.load(folder / f"{policy is None}-{dist.get_rank()}.pt", weights_only=True)
        for stepped in (0, 1):  # load before anything was exchanged, and after
            net, optimizer, states = both_ways(policy)
            train(net, optimizer, range(stepped))
            model, optim = get_state_dict(net, optimizer)
            loaded = {"model": model, "optim": optim, **states}
            dcp.load(loaded, checkpoint_id=folder / f"dcp-{policy is None}")
            set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=optim)
            train(net, optimizer, range(4, 8))
            assert torch.equal(local(net), expected["local"])
            for state, other in zip(states.values(), expected["cut"]):
                assert_equal(state.state_dict(), other)
    net, optimizer, states = both_ways()
    expected = train(*both_ways()[:2], range(2))
    train(net, optimizer, range(1))
    net, optimizer, states = both_ways()
    dcp.load(states, checkpoint_id=folder / "before-the-first-step")
    assert train(net, optimizer, range(2)) == expected


def assert_equal(one, other):
    """Check that two nested state_dicts are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    else:
        assert one == other


def other_numbers_of_workers_are_refused(folder):
    """Needs another number of workers than `saved_with_dcp` had."""
    _, _, states = both_ways()
    for name in ("dcp-True", "before-the-first-step"):
        load = functools.partial(dcp.load, dict(states), checkpoint_id=folder / name)
        raised(
            dcp.api.CheckpointException, "mismatch" if dist.get_world_size() < 2 else "key", load
        )


@on_workers(2)
def test_state_dicts_that_do_not_fit_are_refused():
    net, optimizer, states = both_ways()
    train(net, optimizer, range(2))
    for state in states.values():
        saved = state.state_dict()
        for key, value, said in (
            ("workers", {"7": {}}, "rank"),
            ("world_size", 9, "world_size"),
            ("shards", (), "set of parameters"),
            ("format", 9, "format"),
        ):
            wrong = {**saved, key: value}
            raised(ValueError, said, functools.partial(state.load_state_dict, wrong))
    gather, scatter = (state.state_dict() for state in states.values())
    raised(ValueError, "does not fit", lambda: states["gather"].load_state_dict(scatter))
    raised(ValueError, "not a state_dict", lambda: states["scatter"].load_state_dict({}))
    other = bps.compress_reduce_scatter(sharded()[0], GRADIENTS)
    raised(ValueError, "compressor of", lambda: other.load_state_dict(scatter))
    half = both_ways(BFLOAT16)[2]["gather"]
    raised(ValueError, "gathered copies", lambda: half.load_state_dict(gather))
    values = bps.compress_all_gather(sharded()[0], EIGHT_BITS, differences=False)
    assert values.state_dict()["workers"][str(dist.get_rank())]["arrays"] == {}


@on_workers(2)
def test_residuals_take_one_byte():
    sizes = (1000, 130)
    coders = [Coder(parse(GRADIENTS), n, "float32", None) for n in sizes]
    pieces = [SimpleNamespace(tensor=name) for name in "ab"]
    chunks = [SimpleNamespace(coder=coder, piece=piece) for coder, piece in zip(coders, pieces)]
    scratch = Scratch()
    scratch.reserve(sizes)
    residuals = SmallResiduals(chunks, scratch)
    random = np.random.default_rng(0)

    def decoded():
        scratch.take(10, torch.float32, torch.device("cpu")).fill_(7)
        residuals.expand()
        return np.concatenate([coder.state()["residual"] for coder in coders])

    for scale in (1.0, 1e-30, 1e30, 0.0):
        values = [scale * random.standard_normal(n).astype(np.float32) for n in sizes]
        for coder, array in zip(coders, values):
            coder.load_state({**coder.state(), "residual": array})
        residuals.compact()
        once = decoded()
        residuals.compact()
        assert np.array_equal(once, decoded())  # a second rounding changes nothing
        for part, exact in zip(np.split(once, sizes[:1]), values):
            blocks = np.append(exact, np.zeros(-exact.size % 128)).reshape(-1, 128)
            most = np.abs(blocks).max(1).repeat(128)[: exact.size] / 127
            assert (np.abs(part - exact) <= most).all()
    residuals.compact()
    for coder, n in zip(coders, sizes):
        coder.load_state({**coder.state(), "residual": np.ones(n, np.float32)})
    residuals.compact()
    residuals.take_back({"b"})
    assert np.array_equal(decoded(), np.append(np.ones(1000), np.zeros(130)))
    kept = (*residuals._now, *residuals._before)
    assert sum(array.nbytes for array in kept) == 2 * 10 * (128 + 1)


# Errors


@on_workers(2)
def test_what_cannot_work_is_refused_by_name():
    for compress in (bps.compress_all_gather, bps.compress_reduce_scatter):
        raised(ValueError, "no FSDPModule", lambda compress=compress: compress(Net(), FOUR_BITS))
    net, _ = sharded()
    gather = functools.partial(bps.compress_all_gather, net)
    for params, said in (
        ({**FOUR_BITS, "ef": "vanilla"}, "must be left out for compress_all_gather"),
        ({**FOUR_BITS, "momentum": "nesterov"}, "needs an optimizer with momentum"),
        ({"compressor": "auto"}, "fully_shard"),
        (
            {"compressor": "dithering", "k": 4},
            "draws no random numbers for compress_all_gather, got 'dithering'",
        ),
        (
            {"compressor": "randomk", "k": 0.1},
            "draws no random numbers for compress_all_gather, got 'randomk'",
        ),
        (
            {"compressor": "dgc", "k": 0.1},
            "draws no random numbers for compress_all_gather, got 'dgc'",
        ),
        (
            {**FOUR_BITS, "stochastic": True},
            "draws no random numbers for compress_all_gather, got 'blockwise'",
        ),
    ):
        raised(ValueError, said, functools.partial(gather, params))
    for name in ("onebit", "topk"):
        params = {"compressor": name, "k": 0.1}
        said = f"one of ('blockwise', 'bytegrad') without differences, got '{name}'"
        raised(ValueError, said, functools.partial(gather, params, differences=False))
    scatter = functools.partial(bps.compress_reduce_scatter, net, residual_bits=8)
    onebit = {"compressor": "onebit", "ef": "vanilla"}
    for params, name in ((onebit, "onebit"), ({"compressor": "dgc", "k": 0.1}, "dgc")):
        said = f"residual_bits must be 32 for {name}, got 8"
        raised(ValueError, said, functools.partial(scatter, params))
    said = "residual_bits must be 8 or 32, got 16"
    raised(ValueError, said, functools.partial(scatter, GRADIENTS, residual_bits=16))
    mixed = Net()
    mixed.last.requires_grad_(False).to(torch.float64)
    mixed = fully_shard(mixed)
    bps.compress_all_gather(mixed, FOUR_BITS)
    raised(RuntimeError, "in several dtypes", lambda: loss_of(mixed, 0))


@on_workers(4)
def test_a_number_of_workers_after_forward_is_refused():
    """Needs four workers."""
    net, said = (
        fully_shard(Net(), reshard_after_forward=2),
        "reshard_after_forward must be True or False",
    )
    raised(ValueError, said, lambda: bps.compress_all_gather(net, FOUR_BITS))


@pytest.mark.parametrize(
    "test",
    [test_losses_are_those_of_plain_fully_shard, test_every_change_of_a_parameter_is_gathered],
)
def test_shards_of_several_chunks(test):
    run(test, 2, {"BYTEPS_PARTITION_BYTES": 4000})


def test_distributed_checkpoints_resume_bit_for_bit_on_as_many_workers(tmp_path):
    run(saved_with_dcp, 2, folder=tmp_path)
    run(resumed_from_dcp, 2, folder=tmp_path)
    run(other_numbers_of_workers_are_refused, 1, folder=tmp_path)
    run(other_numbers_of_workers_are_refused, 3, folder=tmp_path)
