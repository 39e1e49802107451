"""MXNet's front end needs the memory that the guide on Adam states."""

import numpy as np
import pytest

from gluon_gc import state as checkpoint
from tests.memory_table import ALGORITHMS, Memory, stated
from tests.mxnet.cluster.jobs import backward, gradients, make

SHAPES = [(700, 1000), (300, 1000)]
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}


def test_the_guide_states_the_memory_of_each_algorithm():
    assert stated().keys() == ALGORITHMS.keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_trainer_keeps_the_memory_that_the_guide_states(name, tmp_path):
    algorithm, file = ALGORITHMS[name], str(tmp_path / "states")
    more = {"optimizer": "adam", "algorithm": algorithm}
    params, trainer = make(SHAPES, {"learning_rate": 0.01}, ONEBIT, **more)
    averaging, vectors = trainer._averaging, []
    if algorithm is not None:
        start = averaging.start

        def noted(request):
            state = {id(a) for kind in averaging._driver.state.values() for a in kind.values()}
            new = [vector for vector in request.vectors.values() if id(vector) not in state]
            wait = start(request)
            vectors.append([*new, *wait().values()])
            return wait

        averaging.start = noted
    for step in range(4):
        backward(params, gradients(step, SHAPES))
        trainer.step(1)
    trainer.save_states(file)
    size = sum(np.prod(shape) for shape in SHAPES)
    kept = {"worker": 0.0, "aggregator": 0.0}
    for key, array in checkpoint.read(file).arrays.items():
        if key.what != "parameter":
            node = "aggregator" if key.node == "aggregator" else "worker"
            kept[node] += array.nbytes / size
    in_a_round = sum(4 * vector.size for vector in vectors[-1]) / size if vectors else 0
    found = Memory(kept["worker"], in_a_round, kept["aggregator"])
    assert tuple(found) == pytest.approx(tuple(stated()[name]), abs=0.01)
