"""gluon_gc.torch.integrations with the real tools; the files *_jobs.py import them."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch import scripts
from tests.torch.scripts import HERE, environ
from tests.torch.workers import run

JOBS = {
    "accelerate": (
        "trained_as_by_hand_and_resumed_bit_for_bit",
        "accumulated_gradients_are_one_step",
        "gradients_that_accelerate_synchronizes_stay_local_with_an_algorithm",
        "static_graphs_train_with_an_algorithm",
        "each_node_saves_all_states",
        "prepared_optimizers_are_taken_where_an_optimizer_is",
        "mistakes_are_refused",
        "a_smaller_batch_is_tried",
        "reports_follow_the_steps",
    ),
    "lightning": (
        "trained_as_by_hand",
        "manual_optimization_with_an_algorithm_keeps_gradients_local",
        "resumed_bit_for_bit",
        "accumulated_gradients_are_one_step",
        "several_optimizers_share_the_compression",
        "reports_follow_the_steps",
    ),
    "transformers": (
        "trained_as_by_hand",
        "resumed_bit_for_bit",
        "accumulated_gradients_are_one_step",
        "trained_twice",
        "a_smaller_batch_is_tried",
        "each_trial_of_a_search_has_its_folder",
        "the_epoch_is_right_if_the_length_of_the_data_is_unknown",
        "checkpoints_of_the_model_alone_resume",
        "checkpoints_that_do_not_fit_are_refused",
        "reports_follow_the_steps",
    ),
}

pytestmark = pytest.mark.timeout(300)


def require(tool):
    """Skip the test if a tool is not installed."""
    if not importlib.util.find_spec(tool):
        pytest.skip(f"{tool} is not installed: see requirements/integrations.txt")


@pytest.fixture(params=JOBS)
def tool(request):
    """The name of an installed tool."""
    require(request.param)
    return request.param


def called(*command):
    """Run a command; returns its output."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=HERE.parents[1],
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def body(tool, name):
    require(tool)
    return getattr(importlib.import_module(f"tests.torch.integrations.{tool}_jobs"), name)


@pytest.mark.parametrize("tool, job", [(tool, job) for tool, jobs in JOBS.items() for job in jobs])
def test_two_workers(tool, job, tmp_path):
    run(body(tool, job), 2, folder=tmp_path)


def test_one_worker_of_transformers_resumes_from_the_files_of_two(tmp_path):
    run(body("transformers", "saved"), 2, folder=tmp_path)
    run(body("transformers", "resumed_by_one_worker"), 1, folder=tmp_path)


def test_one_worker_without_ddp_is_told_to_start_more():
    for tool in JOBS:
        require(tool)
    called(sys.executable, Path(__file__).with_name("one_worker.py"))


def test_the_example_trains(tool, tmp_path):
    script = {"transformers": "trainer"}.get(tool, tool)
    file = HERE.parents[1] / "example" / "pytorch" / f"digits_{script}.py"
    said = scripts.run(file, "--epochs", 2, "--folder", tmp_path)
    (sent,) = re.findall(r"each worker sent (\d+) bytes in a step", said)
    assert int(sent) == {"transformers": 1938}.get(tool, 1288)  # uncompressed: above 38,000
    (kind, value) = re.findall(r"validation (loss|accuracy) (\d\.\d+)", said)[-1]
    chance = {"loss": 2.30, "accuracy": 0.1}[kind]
    assert float(value) < chance / 2 if kind == "loss" else float(value) > 2 * chance


def test_importing_the_front_end_imports_nothing_that_takes_long():
    slow = {*JOBS, "sympy", "torch._dynamo", "torch.distributed.fsdp"}
    said = called(
        sys.executable, "-c", f"import sys, gluon_gc.torch\nprint({slow} & {{*sys.modules}})"
    )
    assert said.split() == ["set()"]
