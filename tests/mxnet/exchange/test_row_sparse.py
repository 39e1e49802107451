"""Row-sparse gradients are sent as rows, and train like dense gradients."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.compression import parse
from gluon_gc.mxnet.exchange.coder import Part
from gluon_gc.mxnet.exchange.rows_coder import RowsCoder
from tests.mxnet.cluster.jobs import assert_same_on_all_workers
from tests.mxnet.cluster.standing import on_workers

ROWS, WIDTH = 1000, 6


def embedding(sparse, **more):
    net = mx.gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=sparse)
    net.initialize(mx.init.Constant(1.0), ctx=[mx.cpu(c) for c in range(more.pop("contexts", 1))])
    optimizer = {"learning_rate": 0.5}
    return net, bps.DistributedTrainer(
        net.collect_params(), "sgd", optimizer, kvstore="local", **more
    )


def step(net, trainer, words, batch_size=2):
    contexts = net.weight.list_ctx()
    with mx.autograd.record():
        losses = [(net(mx.nd.array(words, ctx=ctx)) ** 2).sum() for ctx in contexts]
    mx.autograd.backward(losses)
    trainer.step(batch_size)
    return net.weight.data(contexts[-1]).asnumpy()


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_grad_norm": 0.5},
        {"on_nonfinite": "skip"},
        {"max_grad_norm": 0.5, "compression_params": {"compressor": "topk", "k": 10**9}},
    ],
)
def test_weights_are_those_of_dense_gradients(contexts, more):
    (one, sparse), (other, dense) = (embedding(kind, contexts=contexts, **more) for kind in (1, 0))
    for words in ([3, 999, 3], [0, 4], [5]):
        ours, expected = step(one, sparse, words), step(other, dense, words)
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert one.weight.list_grad()[0].stype == "row_sparse"
    np.testing.assert_array_equal(one.weight.list_grad()[0].indices.asnumpy(), [5])


def test_only_rows_are_counted_as_sent():
    net, trainer = embedding(True)
    for _ in range(3):
        step(net, trainer, [7, 8, 7])
    total = trainer.compression_stats()["total"]
    assert total["pushed_bytes"] == total["pulled_bytes"] == 2 * (4 * WIDTH + 12 + 4)
    assert total["raw_bytes"] == 4 * ROWS * WIDTH
    seconds = ("compress_seconds", "wait_seconds", "decompress_seconds", "exposed_seconds")
    assert min(total[name] for name in seconds) > 0


def test_a_compressor_that_accumulates_leaves_them_as_they_are():
    nets = [embedding(True), embedding(True, compression_params={"compressor": "dgc", "k": 0.01})]
    plain, compressed = (step(*net, [1, 2, 900]) for net in nets)
    np.testing.assert_array_equal(plain, compressed)


def drift(**compression_params):
    """Return how far the weights end from those trained with dense, uncompressed gradients.

    Each step has gradients for some rows only. The result is a share of the way from the start.
    """
    random = np.random.default_rng(0)
    pull = mx.nd.array(random.standard_normal((ROWS, WIDTH)))
    nets = [embedding(False), embedding(True, compression_params=compression_params)]
    for _ in range(200):
        words = mx.nd.array(random.choice(20, 10, replace=False))
        for net, trainer in nets:
            with mx.autograd.record():
                loss = (net(words) * pull.take(words)).sum()
            loss.backward()
            trainer.step(10)
    dense, compressed = (net.weight.data().asnumpy() for net, _ in nets)
    return np.linalg.norm(compressed - dense) / np.linalg.norm(dense - 1)


@pytest.mark.parametrize("params", [{"compressor": "topk", "k": 0.1}, {"compressor": "onebit"}])
def test_with_feedback_the_sum_of_steps_is_that_of_dense_gradients(params):
    assert drift(**params, ef="vanilla") < 0.1 < 0.4 < drift(**params)


@pytest.mark.parametrize("compressor", [None, "onebit", "bytegrad"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_told_of(bad, compressor):
    net, trainer = embedding(True, compression_params={"compressor": compressor})
    net.weight.data()[5] = bad
    with pytest.raises(mx.MXNetError, match=f"gradient of {net.weight.name} has a NaN or an inf"):
        step(net, trainer, [5, 6])


@pytest.mark.parametrize("on_nonfinite", ["skip", "propagate"])
@pytest.mark.parametrize("compressor", [None, "onebit", "bytegrad"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_skipped_or_propagated(bad, compressor, on_nonfinite):
    compression_params = {"compressor": compressor}
    net, trainer = embedding(True, compression_params=compression_params, on_nonfinite=on_nonfinite)
    net.weight.data()[5, 0] = bad
    weight = step(net, trainer, [5, 6])
    assert (weight[6] == 1).all() == (on_nonfinite == "skip")
    np.testing.assert_array_equal(weight[7], np.ones(WIDTH))
    after = step(net, trainer, [7])[7]
    assert np.isfinite(after).all() and (after != 1).all()


def test_a_gradient_without_rows_changes_nothing():
    net, trainer = embedding(True)
    net.weight.list_grad()[0][:] = mx.nd.sparse.zeros("row_sparse", (ROWS, WIDTH))
    trainer.allreduce_grads()
    assert not net.weight.grad().tostype("default").asnumpy().any()


def decoded(codec, words, payload):
    """Return the gradient decoded from a message of these uint32 words and payload."""
    message = np.zeros(codec.payload_bytes, np.uint8)
    sent = np.concatenate([np.array(words, np.uint32).view(np.uint8), payload])
    message[: sent.size] = sent
    gradient = mx.nd.sparse.zeros("row_sparse", (10, 3))
    codec.decompress([mx.nd.array(message, dtype="uint8")], [gradient], ((0, 0),))
    return gradient.tostype("default").asnumpy()


def test_messages_of_rows_that_do_not_fit_are_refused():
    codec = RowsCoder(parse({"compressor": "onebit"}), 10, Part(30))
    payload = np.concatenate([np.zeros(4, np.uint8), np.float32([2]).view(np.uint8)])
    expected = np.where(np.isin(np.arange(10), [4, 9])[:, None], 2, 0) * np.ones(3)
    np.testing.assert_array_equal(decoded(codec, [24, 2, 4, 9], payload), expected)
    for words, why in [
        ([23, 2, 4, 9], "payload of message 0 is not one of 6 elements"),
        ([28, 2, 4, 9], "payload of message 0 is not one of 6 elements"),
        ([2000, 2, 4, 9], "wrong length"),
        ([24, 200, 4, 9], "wrong length"),
        ([24, 2, 4, 10], "row 10 of a message"),
        ([24, 2, 9, 4], "row 4 of a message"),
        ([24, 2, 4, 4], "row 4 of a message"),
    ]:
        with pytest.raises(mx.MXNetError, match=why):
            decoded(codec, words, payload)


WORDS = [  # for each step and each of three workers
    [[1, 999, 1], [999, 0], [7]],
    [[5], [], [5, 5, 6]],
    [list(range(0, 1000, 2)), [3], list(range(300))],
    [[8], [9], [10]],
]


def embeddings(sparse, words=WORDS):
    """Train two embeddings with row-sparse or dense gradients; returns the weights and bytes."""
    nets = [mx.gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=sparse) for _ in range(2)]
    params = mx.gluon.ParameterDict()
    for net in nets:
        net.initialize(mx.init.One())
        params.update(net.collect_params())
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 0.5})
    for of_ranks in words:
        for net in nets:
            if of_ranks[bps.rank()]:
                with mx.autograd.record():
                    loss = (net(mx.nd.array(of_ranks[bps.rank()])) ** 2).sum()
                loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    weights = np.stack([net.weight.data().asnumpy() for net in nets])
    return weights, trainer.compression_stats()["total"]["pushed_bytes"]


@on_workers(3, "servers", "horovod", "machine")
def test_rows_of_workers_are_summed_as_dense_gradients_are():
    weights, _ = embeddings(sparse=True)
    assert_same_on_all_workers(weights)
    np.testing.assert_allclose(weights, embeddings(sparse=False)[0], rtol=1e-6)
    assert (weights[:, [10, 999]] != 1).all() and (weights[:, 501] == 1).all()


@on_workers(3)
def test_bytes_are_those_of_the_rows():
    assert embeddings(True, WORDS[3:] * 3)[1] == 2 * (4 * WIDTH + 12 + 4)
