"""BytePS's API for PyTorch, in processes that torchrun starts and that run byteps_jobs.py."""

import subprocess
import sys

import pytest

from tests.torch import test_workers

torch = pytest.importorskip("torch")

API = (
    "compression_is_an_argument",
    "single_tensors_as_byteps_has_them",
    "gradients_flow_through_push_pull",
    "the_data_parallel_module_is_pytorchs_with_our_hook",
    "gradients_of_several_backwards_add_up",
    "buffers_are_those_of_worker_0",
    "optimizers_go_on_after_a_suspension",
    "workers_that_resume_with_one_rank_are_refused",
    "fewer_workers_go_on",
)
CROSS_BARRIER = (
    "cross_barrier_gives_the_same_bits",
    "a_forward_waits_for_its_own_parameters",
    "whoever_reads_parameters_waits",
    "modules_that_use_parameters_of_others",
    "stale_parameters_are_an_error",
    "gradients_may_be_changed_once_they_are_averages",
    "an_error_of_an_exchange_is_raised_by_forward",
    "arguments_of_cross_barrier_are_checked",
)
JOBS = test_workers.HERE / "byteps_jobs.py"


def test_calls_before_init_name_it(monkeypatch):
    import gluon_gc.torch as bps
    from gluon_gc.torch.parallel import DistributedDataParallel

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for call in (
        bps.rank,
        bps.size,
        lambda: bps.CompressionState(model.named_parameters()),
        lambda: bps.DistributedOptimizer(optimizer, model.named_parameters()),
        lambda: bps.DistributedOptimizer(optimizer, algorithm="powersgd"),
        lambda: DistributedDataParallel(model),
        lambda: bps.broadcast_parameters(model.state_dict()),
        lambda: bps.push_pull(torch.ones(2)),
        lambda: bps.average_statistics(model),
    ):
        with pytest.raises(RuntimeError, match=r"call bps.init\(\) first"):
            call()


@pytest.mark.parametrize("jobs", [API, CROSS_BARRIER], ids=["api", "cross_barrier"])
def test_two_workers(jobs):
    test_workers.run(",".join(jobs), file=JOBS)


def test_scripts_of_byteps_run_with_another_import(tmp_path):
    said = test_workers.run("scripts_of_byteps", tmp_path, file=JOBS)
    assert "bps is resumed, with 2 workers" in said


def test_scripts_of_byteps_run_under_bpslaunch(tmp_path):
    bpslaunch = test_workers.HERE.parents[1] / "bpslaunch.py"
    done = subprocess.run(
        [
            *(sys.executable, bpslaunch, "--local", "-n", "2"),
            *(sys.executable, JOBS, "some_scripts_of_byteps", tmp_path),
        ],
        env=test_workers.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "bps is resumed, with 2 workers" in done.stdout


@pytest.mark.parametrize(
    "share, expected", [(1.0, "dcba"), (0.6, "dcab"), (0.5, "dcab"), (0.1, "dabc"), (0.0, "abcd")]
)
def test_averages_that_backward_does_not_hide_come_in_the_order_of_forward(share, expected):
    from gluon_gc.torch.pace import reordered

    assert "".join(reordered("dcba", [4, 4, 2, 2], share)) == expected
