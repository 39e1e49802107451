"""gluon_gc.torch in real processes, some of them under torchrun; jobs.py has the checks."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes import clean_environ, free_port
from tests.torch import forked

HERE = Path(__file__).parent
OF_DDP = (
    "buckets_and_options_of_ddp",
    "a_parameter_without_a_gradient",
    "no_sync_averages_the_sum",
    "compiled",
    "a_scaled_loss",
    "what_is_not_finite",
)
OTHERS = (
    "every_dtype",
    "the_distributed_optimizer_is_the_hook",
    "several_backward_passes",
    "fully_sharded",
    "fully_sharded_checkpoint",
    "single_tensors",
    "large_values",
    "chosen_automatically",
    "measured_links_choose",
    "wrong_settings",
    "another_transport_carries_all_payloads",
    "a_pytorch_without_nccl_is_told",
)
LOOPS = (
    "a_state_without_its_hook_is_an_error_in_the_first_step",
    "steps_without_an_exchange_are_allowed_if_they_are_meant",
    "unused_layers_under_ddp",
    "unused_layers_with_the_distributed_optimizer",
    "unused_layers_are_stepped_as_ddp_steps_them",
    "a_gradient_that_nobody_has_keeps_its_learning_rate",
    "a_scaler_unscales_averages",
    "gradients_that_are_changed_before_they_are_averaged_are_refused",
    "everything_is_averaged_once",
    "dropped_gradients_leave_no_trace",
    "the_first_drop_is_told_and_every_drop_is_taken_back",
    "skipped_steps_do_not_move_momentum",
    "an_optimizer_that_steps_twice_with_a_closure_needs_a_context",
    "gradients_that_are_added_before_they_are_dropped_leave_no_trace",
    "a_checkpoint_leaves_out_gradients_that_nobody_used",
    "averages_that_backward_adds_to_are_one_step",
    "momentum_refuses_a_second_average_in_a_step",
    "losses_of_several_heads_have_a_backward_each",
    "gradients_of_autograd_grad_change_nothing",
    "two_optimizers_may_be_given_all_names",
    "a_second_state_must_not_take_the_momentum_again",
    "a_gradient_is_averaged_by_one_distributed_optimizer",
    "a_step_that_fails_is_started_anew",
    "an_error_that_one_worker_catches_is_noticed_by_all",
    "transfers_of_other_tensors_are_refused",
    "other_learning_rates_are_noticed_without_compression",
    "a_tied_weight_under_two_names_is_one_parameter",
    "states_that_are_dropped_leave_no_threads",
    "scalar_and_empty_parameters",
    "another_default_device_changes_nothing",
    "complex_parameters",
    "complex_parameters_fully_sharded",
    "sparse_gradients",
    "residuals_are_of_the_same_elements_in_every_memory_format",
    "numbers_of_every_kind",
)
OPTIMIZERS = (
    "momentum_follows_a_schedule",
    "momentum_follows_a_script_that_reads_its_own_value",
    "momentum_that_cannot_be_followed_is_refused",
    "a_checkpoint_continues_a_schedule_of_momentum",
    "momentum_of_a_plain_checkpoint_is_taken_over",
    "another_optimizer_must_not_step_what_has_momentum_or_is_skipped",
    "another_optimizer_may_step_what_has_no_momentum",
    "fused_optimizers_with_a_scaler",
    "a_step_that_a_scaler_skips_moves_no_momentum",
    "residuals_are_in_units_of_the_loss",
    "a_disabled_scaler_leaves_nonfinite_gradients_to_compression",
    "steps_that_call_no_hooks_are_skipped",
    "steps_that_call_no_hooks_are_averaged",
    "optimizers_may_broadcast_what_they_have_stepped",
    "what_is_no_optimizer_is_refused",
)
DIFFERENCES = (
    "single_tensors_that_differ_are_refused",
    "checkpoints_that_differ_are_refused_by_all",
    "parameters_that_are_not_averaged_are_refused",
    "weights_that_drift_apart_are_told",
    "parameters_outside_of_ddp_are_told",
    "memory_between_weights_may_differ",
    "copies_say_what_they_are",
    "closing_gives_momentum_back",
    "whole_numbers_of_numpy",
    "whoever_waits_is_told_of_an_error_at_the_end",
    "workers_that_would_drift_apart_are_refused",
    "rounds_of_init_and_shutdown_leave_nothing",
)
"""Jobs of two workers; the same processes run several jobs."""


def command(*arguments, workers=2, file=HERE / "jobs.py"):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", str(workers), file, *map(str, arguments)]


def environ(**more):
    own = {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    return {**clean_environ(), **own, **more}


def run(*arguments, workers=2, file=HERE / "jobs.py", **variables):
    """Run a script, by default jobs, in forked workers; returns their output."""
    command = [str(file), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        failed = forked.run(command, workers, environ(), variables, log, timeout=100)
        said = log.read_text()
    assert not failed, said
    return said


def run_torchrun(*arguments, workers=2, file=HERE / "jobs.py", **variables):
    """Run a script, by default jobs, in workers that torchrun starts; returns their output."""
    done = subprocess.run(
        command(*arguments, workers=workers, file=file),
        env=environ(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "jobs",
    [OF_DDP, OTHERS, LOOPS, OPTIMIZERS],
    ids=["ddp", "others", "loops", "optimizers"],
)
def test_two_workers(jobs):
    run(",".join(jobs))


def test_two_workers_of_torchrun():
    run_torchrun(",".join(DIFFERENCES))


@pytest.mark.parametrize(
    "job, variables",
    [
        ("a_late_worker_is_named", {"GLUON_GC_STALL_SECONDS": "1"}),
        ("a_worker_that_does_not_come_is_given_up", {"GLUON_GC_TIMEOUT": "2"}),
        ("a_time_out_of_init_reaches_all_groups", {}),
        ("a_longer_time_out_of_the_script_is_kept", {"GLUON_GC_TIMEOUT": "1"}),
    ],
)
def test_workers_that_do_not_come_are_named_and_given_up(job, variables):
    run(job, **variables)


def test_random_orders_of_tensors_give_the_same_bits_on_four_workers():
    run("random_orders_of_tensors", workers=4, BYTEPS_PARTITION_BYTES="4000")


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path):
    run("saved", tmp_path)
    run("resumed", tmp_path)
    said = run("resumed_by_fewer", tmp_path, workers=1)
    assert "the residuals of 2 workers are divided among 1" in said


def test_a_checkpoint_goes_on_with_other_chunks(tmp_path):
    run("saved", tmp_path, BYTEPS_PARTITION_BYTES="4000")
    for partition_bytes in ("4096000", "2000"):
        run("resumed_with_other_chunks", tmp_path, BYTEPS_PARTITION_BYTES=partition_bytes)


def test_two_machines_of_two_workers_each_train_alike(tmp_path):
    port = free_port()
    there, here = (
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--node-rank", str(node), "--nproc-per-node", "2"),
            *("--master-addr", "127.0.0.1", "--master-port", str(port)),
            *(HERE / "jobs.py", "several_machines"),
        ]
        for node in (1, 0)
    )
    with subprocess.Popen(there, env=environ()) as other:
        try:
            done = subprocess.run(
                here, env=environ(), timeout=100, capture_output=True, encoding="utf-8"
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert other.wait(30) == 0
        finally:
            other.kill()


def test_a_killed_worker_ends_all_and_is_named():
    with subprocess.Popen(
        command("for_ever"),
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    ) as launcher:
        try:
            for line in launcher.stdout:
                if "training" in line:
                    break
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
            victim = max(map(int, children.split()))
            os.kill(victim, signal.SIGKILL)
            said = launcher.communicate(timeout=60)[0]
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(launcher.pid, signal.SIGKILL)
    assert launcher.returncode == 1
    assert re.search(rf"exitcode +: -9 \(pid: {victim}\)", said), said
