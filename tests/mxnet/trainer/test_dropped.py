"""Trainers that are made one after the other take no more memory than a few."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.mxnet.byteps.runtime import default_exchange
from tests.mxnet.cluster.jobs import give, gradients_of
from tests.mxnet.cluster.standing import on_workers

ONEBIT = {"compressor": "onebit", "ef": "vanilla"}
WAYS = {
    "onebit": {"compression_params": ONEBIT},
    "gather": {"compression_params": {"compressor": "dithering", "k": 4, "exchange": "gather"}},
    "uncompressed": {},
}
ON_SERVERS = {
    "row_sparse": {"stype": "row_sparse"},
    "algorithm": {"compression_params": ONEBIT, "algorithm": {"name": "local_steps", "every": 2}},
}


def make_trainers(stype="default", **more):
    """Check weights, declared tensors and keys of servers while each trainer replaces the last.

    Worker 0 keeps the trainer of turn 1 until turn 4. Each trainer has at most two tensors, and
    there is one for the check.
    """
    exchange, kept, weights, tensors, keys = default_exchange(), [], [], [], []
    for turn in range(6):
        param = mx.gluon.Parameter("w", shape=(40, 5), grad_stype=stype)
        param.initialize("ones")
        trainer = bps.DistributedTrainer([param], "sgd", {"learning_rate": 0.5}, **more)
        for step in range(3):
            (gradient,) = gradients_of(bps.rank(), step, [(40, 5)])
            give(param, mx.nd.array(gradient).tostype(stype))
            trainer.step(1)
        weights.append(param.data().asnumpy())
        if bps.rank() == 0:
            kept = {1: [trainer], 4: []}.get(turn, kept)
        tensors.append(len(exchange.channels.tensors))
        servers = getattr(exchange, "_servers", None)
        keys.append(sum(servers._allocator._next) if servers else 0)
    for now in weights:
        np.testing.assert_array_equal(now, weights[0])
    assert tensors[2] == tensors[3] == tensors[4] > tensors[5] <= 3
    assert keys[3] == keys[4] == keys[5]


@pytest.mark.parametrize("way", WAYS)
@on_workers(2, "servers", "horovod", "machine")
def test_tensors_of_dropped_trainers_are_withdrawn_and_their_keys_are_used_again(way):
    make_trainers(**WAYS[way])


@pytest.mark.parametrize("way", ON_SERVERS)
@on_workers(2)
def test_tensors_of_every_kind_are_withdrawn(way):
    make_trainers(**ON_SERVERS[way])
