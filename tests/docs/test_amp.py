"""The code of docs/guides/amp.md trains, and the trainer behaves as that page says."""

import subprocess
import sys

import pytest

from tests.docs.test_docs import ROOT, Page

((_, CODE, _),) = Page(ROOT / "docs" / "guides" / "amp.md").blocks

# A network that a CPU can run under AMP. The second batch contains an infinity.
BEFORE = """
import mxnet as mx
import numpy as np
import gluon_gc as bps

class Scale(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(64,), init="zeros")

    def hybrid_forward(self, F, x, weight):
        return F.broadcast_mul(x, weight)

def make_network():
    net.initialize()
    return net

def loss_of(y, wanted):
    return mx.nd.sum((y - wanted) ** 2)

def watched():
    x, y = mx.nd.ones((1, 64)), mx.nd.full((1, 64), 3.0)
    for step in range(30):
        before = net.weight.data().asnumpy()
        yield (x * float("inf") if step == 1 else x), y
        moved = np.linalg.norm(net.weight.data().asnumpy() - before)
        print(step, moved, trainer._amp_loss_scaler.loss_scale, net.weight.data().asnumpy()[0])

bps.init()
net, batches = Scale(), watched()
"""


@pytest.fixture(scope="module")
def steps():
    """Return, per step: how far the weights moved, the loss scale after the step, a weight."""
    run = subprocess.run(
        [sys.executable, "-c", f"{BEFORE}\n{CODE}\nbps.shutdown()"],
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    return [tuple(map(float, line.split()[1:])) for line in run.stdout.splitlines()]


def test_the_weights_are_learned_and_the_loss_scale_is_divided_out(steps):
    first, *_, last = (weight for _, _, weight in steps)
    assert len(steps) == 30 and 0 < first < last < 6


def test_clipping_bounds_what_the_loss_scale_has_been_divided_out_of(steps):
    moved, _, _ = steps[0]
    assert moved == pytest.approx(0.1 * 1.9)  # the first Nesterov step with a gradient of norm 1


def test_a_step_that_overflows_moves_nothing_and_halves_the_scale(steps):
    (_, before, weight), (moved, _, same), (_, after, _) = steps[:3]
    assert (moved, same) == (0, weight)
    assert after == before / 2
