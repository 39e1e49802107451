"""Machines, or other inner groups, whose workers sum their values before they are exchanged."""

from collections import Counter

import numpy as np
import pytest

from gluon_gc.exchange.machines import Stated, groups_of
from gluon_gc.log import warn_once
from tests import replay
from tests.neutral.exchange.test_exchange import (
    CHUNK,
    DGC,
    ONEBIT,
    PARAMS,
    STEPS,
    Lane,
    N,
    Replay,
    assert_bits,
    average_with_unused,
    contributors,
    each_compression,
    parsed,
    partition,
    scaled,
    tensor,
)
from tests.neutral.exchange.workers import Network, TwoLevels, run

__all__ = ["partition"]  # a fixture

PAIRS, CROSSED, TRIPLES = [[0, 1], [2, 3]], [[0, 3], [1, 2]], [[0, 2, 4], [1, 3, 5]]


def summed_inside(groups, step):
    """Return each machine's sum of gradients, added in the order of ranks."""
    rows = scaled(sum(map(len, groups)), step)
    return [sum((rows[rank] for rank in group[1:]), rows[group[0]]) for group in groups]


@each_compression
@pytest.mark.parametrize("groups", [PAIRS, CROSSED, TRIPLES], ids=["pairs", "crossed", "triples"])
def test_averages_have_the_bits_of_the_replay(groups, params):
    """The replay sums inside each group, and then exchanges between two workers."""
    networks = TwoLevels(groups)
    results = networks.run(
        lambda exchange: average_with_unused(Lane(exchange, tensor(params=params)))
    )
    expected = Replay(2, params)
    for step in STEPS:
        assert_bits(results, step, expected.step(summed_inside(groups, step)))
    gathered = params in (DGC, PARAMS["gather"])
    levels = networks.inside, networks.across
    found = [contributors(networks, phase) for networks in levels for phase in (0, 1)]
    size, workers = len(groups[0]), 2 * len(groups[0])
    assert found == [{1}, {workers}, *([set(), {size}] if gathered else [{size}, {workers}])]


INNER = {
    "bits 8": {"compressor": "blockwise", "bits": 8, "seed": 3},
    "at random": {"compressor": "blockwise", "bits": 4, "stochastic": True, "seed": 11},
    "dithering": {"compressor": "dithering", "k": 4, "seed": 5},
}


class InnerReplay:
    """A worker's payloads inside its machine. Machines have the numbers below `machines`."""

    def __init__(self, params, machines, rank):
        inner = parsed({**params, "exchange": "gather"})
        self._parts = replay.chunks(N, CHUNK)
        self._nodes = [
            replay.tests_of(inner.compressor.name).Replay(
                inner.options(),
                part.stop - part.start,
                np.float32,
                replay.start_of(inner, part.stop - part.start, 0, machines + rank),
            )
            for part in self._parts
        ]

    def step(self, gradient):
        """Return the decoded gradient."""
        pairs = zip(self._nodes, self._parts)
        return np.concatenate([node.step(gradient[part])[1] for node, part in pairs])


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("name", ["onebit", "randomk", "dgc", "gather"])
def test_inner_payloads_have_the_bits_of_the_replay(inner, name):
    params = {**PARAMS[name], "inner": inner}
    results = TwoLevels(TRIPLES).run(
        lambda exchange: average_with_unused(Lane(exchange, tensor(params=params)))
    )
    workers = [InnerReplay(inner, 2, rank) for rank in range(6)]
    expected = Replay(2, PARAMS[name])
    for step in STEPS:
        decoded = [worker.step(g) for worker, g in zip(workers, scaled(6, step))]
        sums = [decoded[a] + decoded[b] + decoded[c] for a, b, c in TRIPLES]
        assert_bits(results, step, expected.step(sums))


def test_an_exchange_that_is_taken_back_draws_the_same_inner_numbers_again():
    params = {**ONEBIT, "inner": INNER["at random"]}

    def work(exchange):
        lane = Lane(exchange, tensor(params=params))
        first = lane.average(0, continues=())
        lane.lane.take_back(["w"])
        return first, lane.average(0, continues=())

    for first, again in TwoLevels(PAIRS).run(work):
        np.testing.assert_array_equal(first["w"], again["w"])


def test_inner_payloads_without_machines_are_a_warning(logged):
    warn_once.cache_clear()
    params = {**ONEBIT, "inner": INNER["bits 8"]}
    run(lambda exchange: Lane(exchange, tensor(params=params)).average(0), Network(range(2)))
    assert "compression_params['inner'] has no effect: there are no machines" in logged.text


@each_compression
def test_the_owner_of_a_chunk_does_not_change_its_bits(params):
    """Tensors that are declared before a tensor change the owners of its chunks."""

    def work(exchange):
        before = tensor("before", n=700, params=params, index=1)
        own = tensor(params=params)
        lanes = Lane(exchange, own), Lane(exchange, before, own)
        owners = [
            [(c.owner, c.inside.local) for c in lane.lane.chunks if c.piece.tensor == "w"]
            for lane in lanes
        ]
        assert all(map(lambda one, other: one != other, *owners))
        return [[lane.average(step) for step in STEPS] for lane in lanes]

    for alone, others in TwoLevels(TRIPLES).run(work):
        for one, other in zip(alone, others):
            np.testing.assert_array_equal(one["w"], other["w"])


@pytest.mark.parametrize("name, payloads", [("onebit", 1), ("gather", 2), ("dgc", 2)])
def test_the_workers_of_a_machine_get_payloads(name, payloads):
    """That of the sum, or those of both machines."""
    n = 4 * CHUNK  # a chunk for each worker of both machines
    networks = TwoLevels(PAIRS)
    networks.run(lambda exchange: Lane(exchange, tensor(n=n, params=PARAMS[name])).average(0))
    size = parsed(PARAMS[name]).codec(CHUNK, "float32").payload_bytes
    expected = 2 * payloads * size
    for network in networks.inside:
        sent = [m.size for (phase, _), _, m in network.sent if phase == 1]
        assert len(sent) == 2 and all(0 <= size - expected < 64 for size in sent), sent


RESNET18 = [  # the sizes of its parameters, in the order of backward
    *(1000, 512_000),
    *(512, 512, 2_359_296) * 3,
    *(512, 512, 131_072, 512, 512, 1_179_648),
    *(256, 256, 589_824) * 3,
    *(256, 256, 32_768, 256, 256, 294_912),
    *(128, 128, 147_456) * 3,
    *(128, 128, 8192, 128, 128, 73_728),
    *(64, 64, 36_864) * 4,
    *(64, 64, 9408),
]


@pytest.mark.parametrize("exchange_kind", ["two_way", "gather"])
def test_the_workers_of_a_machine_send_equal_shares(exchange_kind, monkeypatch):
    monkeypatch.delenv("BYTEPS_PARTITION_BYTES")
    params = {**ONEBIT, "exchange": exchange_kind}
    tensors = [tensor(str(i), n, params, i) for i, n in enumerate(RESNET18)]

    def work(exchange):
        gradients = {str(i): np.zeros(n, np.float32) for i, n in enumerate(RESNET18)}
        Lane(exchange, *tensors).exchange(gradients)

    def sent_bytes(network):
        counted = Counter()
        for _, sender, message in network.sent:
            counted[sender] += message.size
        return counted

    networks, flat = TwoLevels(PAIRS), Network(range(2))
    networks.run(work)
    run(work, flat)
    by_place = [sent_bytes(network) for network in networks.across]
    for machine, alone in sent_bytes(flat).items():
        shares = [place[machine] for place in by_place]
        assert max(shares) < 1.1 * min(shares), shares
        assert sum(shares) <= 1.05 * alone, (shares, alone)


# Groups


def by_launcher(local_size, ranks):
    return [Stated(local_size, rank % local_size, None) for rank in ranks]


@pytest.mark.parametrize(
    "ranks, local_size, groups",
    [
        (range(4), 2, [[0, 1], [2, 3]]),
        ((0, 2, 4, 6), 4, [[0, 1], [2, 3]]),  # one dimension of a mesh
        ((6, 0, 2, 4), 4, [[0, 3], [1, 2]]),
        (range(4), 4, None),  # one machine
        (range(4), 1, None),
        ((0, 4, 8), 4, None),  # one worker on each machine
        ((0, 1, 2, 4), 4, None),  # unequal machines
    ],
)
def test_machines_of_the_launcher(ranks, local_size, groups):
    assert groups_of(ranks, by_launcher(local_size, ranks)) == groups


def test_machines_with_different_numbers_of_workers_do_not_sum_first():
    stated = [*by_launcher(2, range(2)), *by_launcher(1, range(2, 4))]
    assert groups_of(range(4), stated) is None


def test_groups_of_the_caller_replace_machines():
    ranks, given = (5, 3, 1, 7), ((7, 5), (1, 3), (1, 3), (7, 5))
    assert groups_of(ranks, [Stated(2, 1, group) for group in given]) == [[0, 3], [1, 2]]
    overlapping = (5, 1), *given[1:]
    with pytest.raises(
        ValueError, match=r"worker 5 is \[1, 5\], but that of worker 1.* is \[1, 3\]"
    ):
        groups_of(ranks, [Stated(2, 1, group) for group in overlapping])
