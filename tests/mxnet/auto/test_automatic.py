"""The compressor "auto" in one process: errors, and loading a checkpoint."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.auto.choice import Topology
from gluon_gc.compression import parse
from gluon_gc.mxnet.kvstore.local import Local
from gluon_gc.mxnet.trainer.automatic import Workers
from gluon_gc.state.fitting import saved_compressions
from tests.mxnet.cluster.jobs import backward, gradients

SHAPES = [(40, 5), (7,), (30, 10)]
CHOSEN = {0: "onebit", 1: "none", 2: "topk"}


def trainer_of(accuracy, prefix="p", chosen=None):
    """Return a trainer with "auto" that has made the choice `chosen`, and its parameters."""
    params = []
    for i, shape in enumerate(SHAPES):
        params.append(mx.gluon.Parameter(f"{prefix}{i}", shape=shape))
        params[-1].initialize(mx.init.One())
    compression = {"compressor": "auto", "accuracy": accuracy}
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.5}, compression_params=compression, kvstore="local"
    )
    trainer._averaging._choices.update(chosen or {})
    return trainer, params


def train(trainer, params, steps):
    for step in steps:
        backward(params, gradients(step, SHAPES))
        trainer.step(1)
    return [param.data().asnumpy() for param in params]


def test_a_single_tensor_and_a_plain_trainers_store_need_a_compressor_by_name():
    with pytest.raises(ValueError, match="'auto' must know all gradients"):
        bps.byteps_declare_tensor("t", compressor="auto")
    with pytest.raises(ValueError, match="'auto' must know all gradients"):
        mx.kv.create("GluonGCLocal").set_gradient_compression({"compressor": "auto"})


@pytest.mark.parametrize("ef", ["corrected", "sparse"])
def test_a_single_tensor_and_a_plain_trainers_store_have_no_learning_rate(ef):
    params = {"compressor": "randomk", "k": 0.1, "ef": ef}
    with pytest.raises(ValueError, match=f"'{ef}' needs the optimizer, whose learning rate"):
        bps.byteps_declare_tensor("t", **params)
    with pytest.raises(ValueError, match=f"'{ef}' needs the optimizer, whose learning rate"):
        mx.kv.create("GluonGCLocal").set_gradient_compression(params)


def test_a_trainer_says_that_it_will_choose_and_then_what_it_chose():
    trainer, params = trainer_of("aggressive", chosen=CHOSEN)
    assert "'compressor': 'auto'" in repr(trainer) and "'accuracy': 'aggressive'" in repr(trainer)
    train(trainer, params, range(1))
    assert "auto" not in repr(trainer)
    for what in ("'onebit'", "'topk'", "1 gradient of 7 elements, in 1 chunk and 1 message: uncom"):
        assert what in repr(trainer)


def test_without_a_network_it_trains_as_without_compression():
    auto = train(*trainer_of("aggressive"), range(3))
    exact = train(*trainer_of("exact"), range(3))
    for a, b in zip(auto, exact):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("prefix", ["p", "q"], ids=["same names", "other names"])
def test_a_checkpoint_brings_back_what_was_chosen(tmp_path, prefix):
    file = str(tmp_path / "states")
    trainer, params = trainer_of("aggressive", chosen=CHOSEN)
    halfway = train(trainer, params, range(2))
    trainer.save_states(file)
    expected = train(trainer, params, range(2, 4))
    again, params = trainer_of("aggressive", prefix)
    for param, value in zip(params, halfway):
        param.set_data(mx.nd.array(value))
    again.load_states(file)
    assert again._averaging._choices == CHOSEN
    for a, b in zip(train(again, params, range(2, 4)), expected):
        np.testing.assert_array_equal(a, b)


def test_choices_for_other_names_come_back_in_the_order_of_the_network():
    common = {"shape": [5], "dtype": "float32"}
    there = [
        {**common, "name": "p8", "position": 0, "compression": "topk"},
        {**common, "name": "p9", "position": 1, "compression": "onebit"},
    ]
    here = [{**common, "name": "p10", "position": 1}, {**common, "name": "p11", "position": 0}]
    assert saved_compressions({"parameters": there}, here) == {0: "onebit", 1: "topk"}
    here[0]["name"], here[1]["name"] = "p9", "p10"  # one name is left, of another layer
    here[0]["position"], here[1]["position"] = 0, 1
    assert saved_compressions({"parameters": there}, here) == {0: "topk", 1: "onebit"}
    here[1]["shape"] = [6]
    assert saved_compressions({"parameters": there}, here) == {0: "onebit"}


def test_a_checkpoint_that_does_not_fit_what_is_chosen_is_refused(tmp_path):
    file = str(tmp_path / "states")
    trainer, params = trainer_of("aggressive", chosen=CHOSEN)
    train(trainer, params, range(1))
    trainer.save_states(file)
    safe, _ = trainer_of("safe")
    with pytest.raises(ValueError, match="the compressor of parameter 0 .* onebit"):
        safe.load_states(file)
    begun, params = trainer_of("aggressive")
    train(begun, params, range(1))
    with pytest.raises(ValueError, match="the compressor of parameter 0 .* onebit"):
        begun.load_states(file)


@pytest.mark.parametrize("names", [["bytegrad"], ["bytegrad", "onebit"]])
def test_all_that_a_probe_exchanges_has_a_message(names, monkeypatch):
    exchange, sent = Local(), []
    start = exchange.start

    def noted(job, *others):
        sent.append(set(job.gradients) - {n for c in exchange.channels for n in c.tensors})
        start(job, *others)

    monkeypatch.setattr(exchange, "start", noted)
    compressors = {name: parse({"compressor": name}) for name in names}
    workers = Workers(exchange)
    workers.topology = Topology(machines=2, servers=0)
    workers.measured(compressors)
    assert len(sent) > 20 and not set().union(*sent)
