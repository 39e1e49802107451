"""Tensors of every kind: tied, scalar, empty, complex, sparse, of any memory format and dtype."""

import copy
import functools
import gc
import io
import os
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from tests.torch.common import (
    ONEBIT,
    SIGNS,
    TOPK,
    Net,
    assert_alike,
    data,
    flat,
    loss_of,
    raised,
    train,
    wrapped,
)
from tests.torch.workers import on_workers

# Tied weights


class Tied(torch.nn.Module):
    """An encoder and a decoder that share their weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.middle = torch.nn.Linear(20, 40), torch.nn.Linear(40, 40)
        self.decoder = torch.nn.Linear(40, 20, bias=False)
        self.decoder.weight = torch.nn.Parameter(self.encoder.weight.detach().T.contiguous())
        self.encoder.register_parameter("weight", self.decoder.weight)

    def forward(self, x):
        x = torch.nn.functional.linear(x, self.encoder.weight.T, self.encoder.bias).tanh()
        return self.decoder(self.middle(x).tanh())


@on_workers(2)
def test_a_tied_weight_under_two_names_is_one_parameter():
    both = [name for name, _ in Tied().named_parameters(remove_duplicate=False)]
    names = {"both": both}
    for kind, left_out in (("once", "decoder.weight"), ("second", "encoder.weight")):
        names[kind] = [name for name in both if name != left_out]
    adam = functools.partial(torch.optim.AdamW, lr=0.01)
    nesterov = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    for algorithm, params, optimizer_of in (
        (None, {}, adam),
        (None, {**SIGNS, "momentum": "nesterov"}, nesterov),
        ({"name": "local_steps", "every": 3}, SIGNS, adam),
        ({"name": "powersgd", "rank": 2}, {}, adam),
        ({"name": "onebit_adam", "freeze_step": 3}, SIGNS, adam),
        ({"name": "zero_one_adam", "var_freeze_step": 3}, SIGNS, adam),
    ):

        def made(kind, a=algorithm, p=params, of=optimizer_of):
            net = Tied()
            named = [(name, net.get_parameter(name)) for name in names[kind]]
            optimizer = bps.DistributedOptimizer(
                of(net.parameters()), named, compression_params=p, algorithm=a
            )
            return net, optimizer

        def trained_from(net, optimizer, steps):
            for step in steps:
                optimizer.zero_grad()
                net(data(step)[0]).pow(2).sum().backward()
                optimizer.step()
            return flat(net)

        weights, saved = {}, {}
        for kind in ("once", "both", "second"):
            net, optimizer = made(kind)
            trained_from(net, optimizer, range(4))
            saved[kind] = copy.deepcopy(
                (net.state_dict(), optimizer.state_dict(), optimizer.compression_state.state_dict())
            )
            weights[kind] = trained_from(net, optimizer, range(4, 7))
            optimizer.compression_state.close()
        assert torch.equal(weights["once"], weights["both"]), algorithm
        for kind, other in (("once", "both"), ("both", "once"), ("both", "second")):
            net, optimizer = made(other)
            net.load_state_dict(saved[kind][0])
            optimizer.load_state_dict(saved[kind][1])
            state = optimizer.compression_state
            state.load_state_dict(saved[kind][2])
            if other != "second":  # another order, so that other workers own the chunks
                assert torch.equal(trained_from(net, optimizer, range(4, 7)), weights[kind]), kind
            elif algorithm is None:
                there, here = (s["arrays"] for s in (saved[kind][2], state.state_dict()))
                assert there["encoder.weight"].keys() == here["decoder.weight"].keys()
                for key, array in there["encoder.weight"].items():
                    assert torch.equal(array, here["decoder.weight"][key]), key
            optimizer.compression_state.close()


# Kinds of tensors


ALGORITHMS = (
    None,
    {"name": "local_steps", "every": 2},
    {"name": "powersgd", "rank": 2},
    {"name": "onebit_adam", "freeze_step": 2},
    {"name": "zero_one_adam", "var_freeze_step": 2},
)


class Odd(torch.nn.Module):
    """A scalar parameter, like CLIP's logit_scale, and empty ones."""

    def __init__(self, scalar):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(20, 5)
        shape = () if scalar else (1,)
        self.scale = torch.nn.Parameter(torch.full(shape, 0.5))
        self.none = torch.nn.ParameterList(torch.empty(s) for s in ((0,), (0, 3), (2, 0, 4)))

    def forward(self, x):
        return self.linear(x) * self.scale.exp() + sum(p.sum() for p in self.none)


@on_workers(2)
def test_scalar_and_empty_parameters():
    for algorithm in ALGORITHMS:
        weights = []
        for scalar in (True, False):
            net = Odd(scalar)
            optimizer = bps.DistributedOptimizer(
                torch.optim.AdamW(net.parameters(), lr=0.01),
                net.named_parameters(),
                compression_params={} if algorithm == ALGORITHMS[2] else SIGNS,
                algorithm=algorithm,
            )
            for step in range(6):
                optimizer.zero_grad()
                loss_of(net, step).backward()
                optimizer.step()
                if step == 3:
                    state = optimizer.compression_state
                    state.load_state_dict(copy.deepcopy(state.state_dict()))
            weights.append(flat(net))
            optimizer.compression_state.close()
        assert torch.equal(*weights), algorithm


@on_workers(2)
def test_dropped_gradients_of_empty_parameters():
    net, optimizer, ddp, state = wrapped(ONEBIT, net=Odd(True))
    for _ in range(3):
        loss_of(ddp, 0).backward()
        optimizer.zero_grad(set_to_none=False)
    assert_alike(train(net, optimizer, ddp, range(2)))
    state.close()


@on_workers(2)
def test_another_default_device_changes_nothing():
    """The default device of the tensors that a script makes, not of its model."""
    automatic = {"compressor": "auto"}
    settings = [(params, None) for params in (SIGNS, TOPK, automatic, {})]
    settings += [({}, algorithm) for algorithm in ALGORITHMS[1:]]
    for params, algorithm in settings:
        weights = []
        for device in ("cpu", "meta"):
            net = Net()
            inner = torch.optim.Adam(net.parameters(), lr=0.01)
            if algorithm is None:
                inner = torch.optim.SGD(net.parameters(), lr=0.1)
            batches = [data(step) for step in range(4)]
            torch.set_default_device(device)
            try:
                optimizer = bps.DistributedOptimizer(
                    inner, net.named_parameters(), compression_params=params, algorithm=algorithm
                )
                for x, y in batches:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(net(x), y).backward()
                    optimizer.step()
                optimizer.compression_state.state_dict()
                optimizer.compression_state.close()
            finally:
                torch.set_default_device(None)
            weights.append(flat(net))
        if params is not automatic:
            assert torch.equal(*weights), (params, algorithm)


@on_workers(2)
def test_states_that_are_dropped_leave_no_threads():
    """The workers' garbage collectors find them at different times."""
    local_steps = {"name": "local_steps", "every": 2}

    def fold(kind):
        torch.manual_seed(0)
        net = model = torch.nn.Linear(20, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if kind == "hook":
            model = DistributedDataParallel(net)
            state = bps.CompressionState(net.named_parameters(), SIGNS, optimizer)
            model.register_comm_hook(state, bps.compression_hook)
        else:
            algorithm = local_steps if kind == "local_steps" else None
            optimizer = bps.DistributedOptimizer(
                optimizer, net.named_parameters(), SIGNS, algorithm=algorithm
            )
        train(net, optimizer, model, range(2))
        assert_alike(flat(net))

    for kind in ("hook", "optimizer", "local_steps"):
        seen = []
        for number in range(4):
            fold(kind)
            if number % 2 == dist.get_rank() or number == 3:
                gc.collect()
            seen.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
        fold(kind)
        gc.collect()
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        assert threads <= seen[0][0] and files <= max(each[1] for each in seen), (kind, seen)


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.real = torch.nn.Parameter(torch.randn(30))
        self.complex = torch.nn.Parameter(torch.randn(40, 20, dtype=torch.complex64))
        turned = torch.randn(6, 4, dtype=torch.complex64).t()
        self.turned = torch.nn.Parameter(turned)

    def forward(self, x):
        return (self.complex * x).abs().sum() * self.real.sum() + (self.turned * 1j).real.sum()


@on_workers(2)
def test_complex_parameters():
    def run(model, optimizer, step=lambda: None):
        for i in range(3):
            generator = torch.Generator().manual_seed(10 * i + dist.get_rank())
            optimizer.zero_grad()
            x = torch.randn(40, 20, dtype=torch.complex64, generator=generator)
            model(x).backward()
            optimizer.step()

    def values(net):
        return torch.cat([torch.view_as_real(p + 0j).reshape(-1) for p in net.parameters()])

    net = Complex()
    run(DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.001))
    expected = values(net)
    for params in ({}, {"compressor": "bytegrad"}, {**ONEBIT, "momentum": None}):
        net = Complex()
        optimizer = torch.optim.SGD(net.parameters(), 0.001)
        ddp = DistributedDataParallel(net)
        state = bps.CompressionState(net.named_parameters(), params)
        ddp.register_comm_hook(state, bps.compression_hook)
        run(ddp, optimizer)
        other = Complex()
        inner = torch.optim.SGD(other.parameters(), 0.001)
        run(other, bps.DistributedOptimizer(inner, other.named_parameters(), params))
        assert torch.equal(values(net), values(other))
        assert_alike(values(net))
        if "ef" not in params:
            assert torch.allclose(values(net), expected, rtol=0.05, atol=1e-3)
        state.close()


@on_workers(2)
def test_complex_parameters_fully_sharded():
    from torch.distributed.fsdp import fully_shard

    def gradient(params):
        net = Complex()
        del net.turned, net.real  # fully_shard needs contiguous parameters of one dtype
        net.forward = lambda x: ((net.complex * x).abs() + (net.complex * x).imag).sum()
        fully_shard(net)
        if params is not None:
            bps.compress_reduce_scatter(net, params)
        generator = torch.Generator().manual_seed(dist.get_rank())
        net(torch.randn(40, 20, dtype=torch.complex64, generator=generator)).backward()
        return net.complex.grad.full_tensor()

    expected = gradient(None)
    assert expected.imag.abs().max() > 0.1
    for params in ({}, {"compressor": "bytegrad"}):
        assert torch.allclose(gradient(params), expected, rtol=0.1, atol=0.05), params


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(100, 8, sparse=True)
        self.unused = torch.nn.Embedding(10, 8, sparse=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, ids, also=False):
        x = self.embedding(ids) + (self.unused(ids % 10) if also else 0)
        return self.head(x).pow(2).sum()


@on_workers(2)
def test_sparse_gradients():
    def run(model, optimizer, sometimes=False):
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            ids = torch.randint(100, (5,), generator=generator)
            also = not sometimes or (step in (0, 2) and dist.get_rank() == step // 2)
            model(ids, also=also).backward()
            optimizer.step()

    class Averaging(torch.optim.SGD):
        """Averages gradients correctly; PyTorch 2.13's DDP divides sparse ones twice."""

        def step(self):
            for parameter in self.param_groups[0]["params"]:
                dense = parameter.grad.to_dense()
                dist.all_reduce(dense)
                parameter.grad = dense / dist.get_world_size()
            super().step()

    momentum = {"lr": 0.01, "momentum": 0.9, "nesterov": True}
    net = Embedded()
    run(net, Averaging(net.parameters(), **momentum))
    expected = flat(net)
    for params in ({}, ONEBIT):
        results = []
        for hook in (True, False):
            net = Embedded()
            optimizer = torch.optim.SGD(net.parameters(), **momentum)
            if hook:
                model = DistributedDataParallel(net)
                state = bps.CompressionState(net.named_parameters(), params, optimizer)
                model.register_comm_hook(state, bps.compression_hook)
            else:
                model = net
                optimizer = bps.DistributedOptimizer(optimizer, net.named_parameters(), params)
                state = optimizer.compression_state
            run(model, optimizer)
            assert_alike(flat(net))
            pushed = state.compression_stats()["tensors"]["embedding.weight"]["pushed_bytes"]
            assert 0 < pushed <= 5 * (8 + 8 * 4)
            results.append(flat(net))
            state.close()
        assert torch.allclose(*results, atol=1e-6)
        if not params:
            assert torch.allclose(results[0], expected, atol=1e-5)
    net = Embedded()
    inner = torch.optim.SGD(net.parameters(), **momentum)
    optimizer = bps.DistributedOptimizer(inner, net.named_parameters(), ONEBIT)
    before = net.unused.weight.detach().clone()
    run(net, optimizer, sometimes=True)  # in step 2, worker 1 has its first gradient for the layer
    assert_alike(flat(net))
    assert not torch.equal(net.unused.weight, before)
    optimizer.compression_state.close()


def embedded(hook):
    """Return a new network, the model to train, its optimizer, and the compression's state."""
    net = model = Embedded()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    options = {"compression_params": ONEBIT, "overrides": {"head.*": None}}
    if hook:
        model = DistributedDataParallel(net)
        state = bps.CompressionState(net.named_parameters(), optimizer=optimizer, **options)
        model.register_comm_hook(state, bps.compression_hook)
    else:
        optimizer = bps.DistributedOptimizer(optimizer, net.named_parameters(), **options)
        state = optimizer.compression_state
    return net, model, optimizer, state


def train_embedded(net, model, optimizer, steps, rank=None):
    for step in steps:
        seed = 10 * step + (dist.get_rank() if rank is None else rank)
        ids = torch.randint(100, (5,), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(ids, also=True).backward()
        optimizer.step()
    return flat(net)


@on_workers(2)
def test_one_row_that_is_given_twice_is_summed():
    rows = torch.sparse_coo_tensor([[3, 3]], [1.0, 2.0 + dist.get_rank()], (5,))
    total = bps.push_pull(rows, average=False, name="rows")
    assert total.to_dense().tolist() == [0, 0, 0, 7, 0]


@on_workers(2)
def test_the_momentum_of_sparse_gradients_is_saved():
    for hook in (True, False):
        *training, state = embedded(hook)
        train_embedded(*training, range(2))
        weights, saved = copy.deepcopy(training[0].state_dict()), io.BytesIO()
        torch.save(state.state_dict(), saved)
        expected = train_embedded(*training, range(2, 4))
        for is_old in (False, True):
            state.close()
            loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
            arrays = loaded["arrays"]["embedding.weight"]
            momentum = arrays["trainer.momentum.0"]
            assert not momentum.is_sparse and momentum.count_nonzero() > 0
            if is_old:
                arrays["trainer.momentum.0"] = momentum.to_sparse(1)
            *training, state = embedded(hook)
            training[0].load_state_dict(weights)
            state.load_state_dict(loaded)
            assert torch.equal(train_embedded(*training, range(2, 4)), expected), (hook, is_old)
            momentum = state.momentum.state["gradient"]["embedding.weight"]
            assert momentum.is_sparse and momentum._nnz() <= 5 * 2 * 4
        state.close()


@on_workers(2)
def test_a_plain_checkpoint_with_sparse_momentum_continues():
    net = Embedded()
    plain = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    train_embedded(net, net, plain, range(2), rank=0)
    saved = copy.deepcopy((net.state_dict(), plain.state_dict()))
    expected = train_embedded(net, net, plain, range(2, 4), rank=0)
    for hook in (True, False):
        *training, state = embedded(hook)
        for part, part_saved in zip(training[::2], saved):
            part.load_state_dict(part_saved)
        found = train_embedded(*training, range(2, 4), rank=0)
        assert torch.allclose(found, expected, atol=1e-6), hook
        state.close()


@on_workers(2)
def test_residuals_are_of_the_same_elements_in_every_memory_format():
    def residual(memory_format, hook):
        torch.manual_seed(0)
        net = torch.nn.Conv2d(4, 8, 3).to(memory_format=memory_format)
        params = {"compressor": "topk", "k": 0.01, "ef": "vanilla"}
        model = net
        if hook:
            model = DistributedDataParallel(net)
            state = bps.CompressionState(net.named_parameters(), params)
            model.register_comm_hook(state, bps.compression_hook)
        else:
            inner = torch.optim.SGD(net.parameters(), lr=0.0)
            optimizer = bps.DistributedOptimizer(inner, net.named_parameters(), params)
            state = optimizer.compression_state
        torch.manual_seed(dist.get_rank())
        model(torch.randn(2, 4, 8, 8)).pow(2).sum().backward()
        arrays = state.state_dict()["arrays"]["weight"]
        gradient = net.weight.grad.clone()
        state.close()
        return arrays["worker.residual.0"], gradient

    expected, gradient = residual(torch.contiguous_format, True)
    assert_alike(gradient)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for hook in (True, False):
            own, averaged = residual(memory_format, hook)
            assert torch.allclose(own, expected, rtol=1e-4, atol=1e-4)
            assert torch.allclose(averaged, gradient, rtol=1e-4, atol=1e-4)


@on_workers(2)
def test_numbers_of_every_kind():
    rank, push_pull = dist.get_rank(), bps.push_pull
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        most = torch.iinfo(dtype).max
        full = torch.tensor([most, most - rank, 0], dtype=dtype)
        expected = torch.tensor([most, most - 1, 0], dtype=dtype)
        sparse = torch.sparse_coo_tensor([[0, 1, 2]], full, (4,), check_invariants=False)
        said = "the sum of tensor 'full' over all workers must be in"
        for x in (full, sparse):
            assert torch.equal(push_pull(x).to_dense()[:3], expected)
            raised(OverflowError, said, lambda x=x: push_pull(x, average=False, name="full"))
        assert push_pull(torch.tensor(3, dtype=dtype), average=False).item() == 6
        values = torch.tensor([3, most // 2, 2], dtype=dtype)
        places = torch.tensor([[0, 2 + rank, 0], [1, 1, 0]])
        sparse = torch.sparse_coo_tensor(places, values, (4, 2), check_invariants=False)
        total = push_pull(sparse, average=False).to_dense()
        assert total[:, 1].tolist() == [6, 0, most // 2, most // 2] and total[0, 0].item() == 4
    values = torch.tensor([2**63 + 1 - 2 * rank, 1 - rank], dtype=torch.uint64)
    assert push_pull(values).tolist() == [2**63, 0]
    assert push_pull(torch.tensor([2**62 - 1]), average=False).item() == 2**63 - 2
    assert push_pull(torch.tensor([40000.0], dtype=torch.float16)).item() == 40000
    for dtype in (torch.complex64, torch.complex128):
        values = torch.tensor([1 + 2j, rank * 1j], dtype=dtype)
        assert torch.equal(push_pull(values), torch.tensor([1 + 2j, 0.5j], dtype=dtype))
        expected = torch.tensor([1 - 2j, -0.5j], dtype=dtype)
        assert torch.equal(push_pull(values.conj()), expected)
        assert torch.equal(bps.push_pull_inplace(values.conj()), expected)
    places = torch.tensor([[0, 2 + rank]])
    values = torch.sparse_coo_tensor(places, torch.ones(2), (5,), check_invariants=False)
    expected = torch.tensor([1.0, 0.0, 0.5, 0.5, 0.0])
    assert torch.equal(push_pull(values).to_dense(), expected)
    assert torch.equal(push_pull(values, average=False).to_dense(), 2 * expected)
    assert torch.equal(push_pull(torch.full((2, 3), float(rank)).t()), torch.full((3, 2), 0.5))
    assert push_pull(torch.zeros(0)).shape == (0,)
    raised(
        TypeError, "tensor 'b' has dtype bool", lambda: push_pull(torch.tensor([True]), name="b")
    )
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    raised(TypeError, "tensor is quantized", lambda: push_pull(quantized))
    compressed_rows = torch.eye(3).to_sparse_csr()
    raised(TypeError, "tensor has layout torch.sparse_csr", lambda: push_pull(compressed_rows))
    expanded = torch.full((1, 3), float(rank)).expand(2, 3)
    raised(RuntimeError, "tensor is expanded", lambda: bps.push_pull_inplace(expanded))
    assert torch.equal(push_pull(expanded), torch.full((2, 3), 0.5))
    raised(
        TypeError, "tensor 'n' must be a torch.Tensor, got 3.0", lambda: push_pull(3.0, name="n")
    )
    bps.declare("compressed", compressor="topk", k=2)
    declared = push_pull(torch.tensor([0j, 3 + 1j, 1j]), name="compressed")
    assert torch.equal(declared, torch.tensor([0j, 3 + 1j, 0j])), declared
    for kind in (torch.bool, torch.bfloat16, torch.complex64, torch.int8):
        values = torch.full((2, 2), rank, dtype=kind)
        bps.broadcast_parameters({"a": values, "b": None}, root_rank=1)
        assert torch.equal(values, torch.ones(2, 2, dtype=kind))
