"""Algorithms that need Adam, in processes that run adam_jobs.py."""

import pytest

from tests.torch import test_workers

torch = pytest.importorskip("torch")

ALONE = (
    "onebit_adam_is_its_replay_bit_for_bit",
    "zero_one_adam_is_its_replay_bit_for_bit",
    "never_frozen_it_is_adam",
    "frozen_it_trains_and_workers_stay_equal",
    "loops_of_every_kind_make_the_same_steps",
    "a_parameter_without_a_gradient_counts_as_zeros",
    "parameters_may_be_frozen_for_a_while",
    "all_workers_leave_out_the_step_of_one_workers_scaler",
    "all_workers_skip_a_step_in_which_a_gradient_is_not_finite",
    "what_is_resumed_goes_on_bit_for_bit",
    "a_parameter_that_a_checkpoint_lacks_is_named",
    "the_memory_is_what_the_guide_states",
    "what_cannot_work_is_refused_by_name",
    "settings_that_a_loaded_state_brings_are_refused_by_name",
    "what_is_not_finite_in_a_round_is_named_by_all",
    "compressed_gradients_of_adam_are_warned_of",
)
TOGETHER = (
    "auto_chooses_for_adam_what_it_can_use",
    "workers_with_and_without_a_scaler_are_told",
    "workers_that_skip_and_raise_are_told",
    "workers_that_begin_with_other_parameters_are_told",
)
JOBS = test_workers.HERE / "adam_jobs.py"


def test_two_workers():
    test_workers.run(",".join((*ALONE, *TOGETHER)), file=JOBS)


def test_one_worker_alone():
    test_workers.run(",".join(ALONE), workers=1, file=JOBS)


def test_four_workers():
    test_workers.run("onebit_adam_is_its_replay_bit_for_bit", workers=4, file=JOBS)
