"""The exchange in which every worker gets all payloads."""

from tests.mxnet.cluster.standing import run, run_horovod, run_local
from tests.mxnet.exchange.test_two_way import (
    CHUNK,
    PARTITION,
    assert_equal,
    check_replay,
    corrected,
    steps,
)

each_compressor = corrected(exchange="gather", steps=10)


@each_compressor
def test_every_compressor_agrees_with_a_numpy_replay(options):
    check_replay(run(steps, options, 3, 2, PARTITION), options, CHUNK)


@each_compressor
def test_every_compressor_agrees_with_a_numpy_replay_over_horovod(options):
    check_replay(run_horovod(steps, options, 3, PARTITION), options, CHUNK)


@each_compressor
def test_one_worker_with_one_server_gets_bit_for_bit_what_local_gets(options):
    (result,) = run(steps, options, 1, 1)
    assert_equal(result, run_local(steps, options))
