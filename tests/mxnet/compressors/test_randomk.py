"""randomk in a trainer: the draws that all nodes share."""

import mxnet as mx
import numpy as np

from tests.mxnet.cluster.jobs import assert_same_on_all_workers, backward, make
from tests.mxnet.cluster.standing import on_workers
from tests.mxnet.exchange.test_two_way import steps


def test_the_seed_decides_what_is_drawn_and_without_one_every_run_draws_others():
    def drawn(**seed):
        params, trainer = make(
            [(500,), (500,)],
            {"learning_rate": 1.0},
            {"compressor": "randomk", "k": 10, "ef": "vanilla", **seed},
        )
        backward(params, [np.ones(500, np.float32)] * 2)
        trainer.step(1)
        return [tuple(np.flatnonzero(param.grad().asnumpy())) for param in params]

    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)
    assert len({*drawn(seed=3)}) == 2, "the second parameter draws others"
    assert drawn() != drawn()
    assert len({*drawn()}) == 2


@on_workers(2)
def test_all_workers_draw_the_same_without_a_seed():
    params = {"compressor": "randomk", "k": 0.1, "ef": "vanilla"}
    result = steps([(300,), (7,)], 3, params, {"learning_rate": 1.0})
    for name in ("g0_0", "g0_2", "g1_1"):
        assert_same_on_all_workers(result[name])
    assert np.count_nonzero(result["g0_0"]) <= 30


def test_unscaled_without_feedback_it_trains_where_scaled_it_diverges():
    def loss_of(scaling):
        """Return |x|^2 / 2 after 300 steps with the published recipe's rate and momentum."""
        params, trainer = make(
            [(1000,)],
            {"learning_rate": 0.1, "momentum": 0.9},
            {"compressor": "randomk", "k": 0.01, "scaling": scaling, "seed": 1},
        )
        for _ in range(300):
            with mx.autograd.record():
                loss = (params[0].data() ** 2).sum() / 2
            loss.backward()
            trainer.step(1)
        return loss.asscalar()

    assert loss_of(scaling=False) < 250  # 500 at first; 5 % of the elements are never drawn
    assert loss_of(scaling=True) > 1e6
