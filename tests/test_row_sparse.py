"""Row-sparse gradients travel as rows, and train as dense ones do."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps

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
@pytest.mark.parametrize("more", [{}, {"max_grad_norm": 0.5}, {"on_nonfinite": "skip"}])
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


def test_a_compressor_leaves_them_as_they_are():
    nets = [embedding(True), embedding(True, compression_params={"compressor": "onebit"})]
    plain, compressed = (step(*net, [1, 2, 900]) for net in nets)
    np.testing.assert_array_equal(plain, compressed)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_told_of(bad):
    net, trainer = embedding(True)
    net.weight.data()[5] = bad
    with pytest.raises(mx.MXNetError, match=f"gradient of {net.weight.name} has a NaN or an inf"):
        step(net, trainer, [5, 6])


def test_a_gradient_without_rows_changes_nothing():
    net, trainer = embedding(True)
    net.weight.list_grad()[0][:] = mx.nd.sparse.zeros("row_sparse", (ROWS, WIDTH))
    trainer.allreduce_grads()
    assert not net.weight.grad().tostype("default").asnumpy().any()
