"""Algorithms between the replicas of a model whose shards fully_shard manages."""

import io
from functools import partial

import torch
from torch.distributed.fsdp import fully_shard

import gluon_gc.torch as bps
from tests.torch.common import Net, full, logged, raised, replicas_and_shards
from tests.torch.workers import on_workers

SIGNS = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
LOCAL = {"name": "local_steps", "every": 2}
ADAM = {"name": "onebit_adam", "freeze_step": 3}
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def batch(replica, shard, step):
    random = torch.Generator().manual_seed(100 * step + 10 * replica + shard)
    return torch.randn(16, 20, generator=random), torch.randint(5, (16,), generator=random)


class Run:
    """Two replicas of two workers each.

    If the model is not sharded, both workers of a replica compute with the replica's whole batch.
    """

    def __init__(self, is_sharded, algorithm, params=None, optimizer=SGD, **options):
        mesh, self.net = replicas_and_shards(), Net()
        replicas, shards = map(mesh.__getitem__, mesh.mesh_dim_names)
        self.replica, shard = mesh.get_coordinate()
        self.shards = [shard] if is_sharded else range(2)
        if is_sharded:
            for layer in self.net.children():
                fully_shard(layer, mesh=shards)
            fully_shard(self.net, mesh=shards)
        self.optimizer = bps.DistributedOptimizer(
            optimizer(self.net.parameters()),
            self.net.named_parameters(),
            params,
            algorithm=algorithm,
            process_group=replicas.get_group(),
            **options,
        )

    def train(self, steps, factor=lambda step: 1):
        for step in steps:
            self.optimizer.zero_grad()
            parts = [batch(self.replica, shard, step) for shard in self.shards]
            x, y = map(torch.cat, zip(*parts))
            loss = torch.nn.functional.cross_entropy(self.net(x), y) * factor(step)
            loss.backward()
            self.optimizer.step()
        return torch.cat([full(p).reshape(-1) for p in self.net.parameters()])


@on_workers(4)
def test_weights_are_those_of_replicas_without_shards():
    start = torch.cat([p.detach().reshape(-1) for p in Net().parameters()])
    for algorithm, optimizer in (
        (LOCAL, SGD),
        (LOCAL, torch.optim.AdamW),
        ({**LOCAL, "fragments": 2, "overlap": 1}, SGD),
        (ADAM, partial(torch.optim.Adam, weight_decay=0.01)),
        ({"name": "zero_one_adam", "var_freeze_step": 4}, torch.optim.AdamW),
    ):
        plain, sharded = (
            Run(s, algorithm, optimizer=optimizer).train(range(8)) for s in (False, True)
        )
        error = (sharded - plain).norm() / (plain - start).norm()
        assert error < 1e-4, (algorithm, error)


@on_workers(4)
def test_powersgd_approximates_the_gradients_of_shards():
    start = torch.cat([p.detach().reshape(-1) for p in Net().parameters()])
    expected = Run(True, {**LOCAL, "every": 1, "outer_lr": 1, "outer_momentum": 0}).train(range(8))
    found = Run(True, {"name": "powersgd", "rank": 4}).train(range(8))
    assert (found - expected).norm() < 0.3 * (expected - start).norm()


@on_workers(4)
def test_a_checkpoint_resumes_bit_for_bit():
    for algorithm, optimizer in ((LOCAL, SGD), (ADAM, torch.optim.Adam)):
        run, file = Run(True, algorithm, SIGNS, optimizer), io.BytesIO()
        run.train(range(5))
        torch.save(run.optimizer.compression_state.state_dict(), file)
        expected = run.train(range(5, 8))
        run = Run(True, algorithm, SIGNS, optimizer)
        run.train(range(1))
        run.optimizer.compression_state.load_state_dict(
            torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        )
        assert torch.equal(run.train(range(5, 8)), expected), algorithm


@on_workers(4)
def test_only_parameters_that_do_not_train_are_named():
    """The second worker of a replica has no rows but those of the embedding without gradients."""
    mesh, net = replicas_and_shards(), torch.nn.Sequential(torch.nn.Embedding(4, 2))
    net.append(torch.nn.Linear(2, 1))
    for name, size in (("unused", 1), ("empty", 0)):
        net.register_parameter(name, torch.nn.Parameter(torch.ones(size)))
    replicas, shards = map(mesh.__getitem__, mesh.mesh_dim_names)
    fully_shard(net, mesh=shards)
    optimizer = bps.DistributedOptimizer(
        torch.optim.Adam(net.parameters()),
        net.named_parameters(),
        algorithm=ADAM,
        process_group=replicas.get_group(),
    )
    with logged() as lines:
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.tensor([0, 1])).sum().backward()
            optimizer.step()
    named = [line.partition(":")[0] for line in lines]
    first = mesh.get_coordinate()[1] == 0
    assert named == ["algorithm onebit_adam does not train unused"] * first, lines


@on_workers(4)
def test_all_workers_skip_a_step_together():
    run = Run(True, ADAM, SIGNS, torch.optim.Adam, on_nonfinite="skip")
    is_first = run.replica == 0 and run.shards == [0]
    weights = run.train(range(6), lambda step: torch.inf if is_first and step == 4 else 1)
    assert weights.isfinite().all()
    assert run.optimizer.compression_state.steps == 5


@on_workers(4)
def test_workers_with_other_shards_are_told():
    net = fully_shard(torch.nn.Linear(8, 8))
    optimizer = bps.DistributedOptimizer(
        SGD(net.parameters()), net.named_parameters(), algorithm=LOCAL
    )
    net(torch.ones(1, 8)).sum().backward()
    raised(RuntimeError, "has shard [1] for parameter weight, but worker", optimizer.step)
