"""Algorithms of DistributedOptimizer, in processes that run algorithm_jobs.py."""

import pytest

from tests.test_adding_an_algorithm import copy_with_the_algorithm
from tests.torch import test_workers

torch = pytest.importorskip("torch")

ALONE = (
    "local_steps_is_its_replay_bit_for_bit",
    "one_step_without_outer_momentum_averages_gradients",
    "the_optimizers_state_stays_local",
    "rounds_travel_as_asked_and_are_counted",
    "running_statistics_are_averaged_when_asked",
    "loops_of_every_kind_make_the_same_steps",
    "what_is_resumed_goes_on_bit_for_bit",
    "a_checkpoint_keeps_the_sign_of_a_zero",
    "a_checkpoint_fits_other_options",
    "checkpoints_that_do_not_fit_are_refused_by_all",
    "arguments_that_are_for_averaged_gradients_are_refused",
    "what_is_not_finite_in_a_round_is_named_by_all",
    "a_parameter_that_was_frozen_is_named",
    "auto_chooses_h_and_the_compressor",
    "auto_measures_the_link_and_the_steps",
)
TOGETHER = (
    "workers_that_have_other_statistics_are_told",
    "workers_average_within_their_process_group",
    "a_step_that_one_workers_scaler_leaves_out_is_a_step",
    "workers_that_differ_are_told_in_words",
    "algorithms_that_ask_for_different_rounds_raise",
)
JOBS = test_workers.HERE / "algorithm_jobs.py"


def test_two_workers_in_a_tree_that_has_the_algorithm_of_the_docs(tmp_path):
    copy_with_the_algorithm(tmp_path)
    file = tmp_path / JOBS.relative_to(test_workers.HERE.parents[1])
    jobs = *ALONE, *TOGETHER, "an_algorithm_that_was_added_trains"
    test_workers.run_torchrun(",".join(jobs), file=file, PYTHONPATH=str(tmp_path))


def test_one_worker_alone():
    test_workers.run(",".join(ALONE), workers=1, file=JOBS)


def test_what_is_killed_between_rounds_goes_on_bit_for_bit_in_new_processes(tmp_path):
    with pytest.raises(AssertionError):
        test_workers.run("first_processes", tmp_path, file=JOBS)
    assert len(list(tmp_path.iterdir())) == 6  # three files of each worker
    test_workers.run("new_processes", tmp_path, file=JOBS)


@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_goes_on_from_the_files_of_two(tmp_path, workers):
    test_workers.run("two_workers_save", tmp_path, file=JOBS)
    test_workers.run("another_number_of_workers_goes_on", tmp_path, workers=workers, file=JOBS)


def test_vectors_that_are_cut_into_chunks_give_the_replays_weights():
    jobs = "local_steps_is_its_replay_bit_for_bit"
    test_workers.run(jobs, file=JOBS, BYTEPS_PARTITION_BYTES="1200")
