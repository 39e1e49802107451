"""Some cells of the kill matrix; docs/benchmarks/faults.md has all."""

import pytest

from tests.launch.kill_matrix import HEARTBEAT, Cell, run, undisturbed


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(
    "cell",
    [
        Cell("broadcast", "worker 1", "STOP 5 s"),
        Cell("step", "server 0", "KILL"),
        Cell("saving", "worker 0", "TERM"),
    ],
    ids=lambda cell: "-".join(cell),
)
def test_training_survives(sums, tmp_path, cell):
    outcome = run(tmp_path, cell)
    # Under load, an end may look like a connection reset. The others then wait for a heartbeat.
    assert outcome.faults(sums, soon=2 * HEARTBEAT) == []
    assert max(outcome.restarts.values()) == (0 if cell.stopped else 1)


def test_local_steps_survive_the_loss_of_a_worker_before_a_round(tmp_path):
    sums = undisturbed(tmp_path, local_steps=2)
    (tmp_path / "killed").mkdir()
    outcome = run(tmp_path / "killed", Cell("step", "worker 1", "KILL"), local_steps=2)
    assert outcome.faults(sums, soon=2 * HEARTBEAT) == []
    assert max(outcome.restarts.values()) == 1
