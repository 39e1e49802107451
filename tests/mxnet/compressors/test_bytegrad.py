"""bytegrad in a trainer: the bytes sent."""

import numpy as np

from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_two_way import arguments, assert_identical, check_replay
from tests.mxnet.trainer.test_trainer import backward, make


def test_messages_of_several_rows_agree_with_a_numpy_replay():
    options = arguments("bytegrad", "corrected", shapes=[(40_000,)], steps=3)
    results = run("steps", options, workers=2, servers=1)
    check_replay(results, options)
    assert_identical(results)


def test_equal_gradients_are_exact_and_take_no_bytes_on_the_wire():
    parameters, trainer = make([(50_000,)], {"learning_rate": 1.0}, {"compressor": "bytegrad"})
    backward(parameters, [np.full(50_000, 0.1, np.float32)])
    trainer.step(1)
    np.testing.assert_array_equal(parameters[0].grad().asnumpy(), np.float32(0.1))
    stats = trainer.compression_stats()["total"]
    assert stats["pushed_bytes"] == stats["pulled_bytes"] == 12
