"""compress_all_gather, in processes that run fsdp_jobs.py; test_workers.py has reduce-scatters."""

import pytest

from tests.torch import test_workers

torch = pytest.importorskip("torch")

LOADED = (
    "loaded_values_are_gathered_exactly",
    "large_changes_in_place_are_gathered_exactly",
    "frozen_parameters_become_exact",
    "loaded_nan_is_told",
)
NUMBERS = (
    "differences_are_their_replay_on_all_workers",
    "only_shards_that_changed_are_sent",
    "every_change_of_a_parameter_is_gathered",
    *LOADED,
)
OTHERS = (
    "losses_are_those_of_plain_fully_shard",
    "accumulated_gradients_go_both_ways",
    "residuals_take_one_byte",
    "every_dtype_is_gathered",
    "state_dicts_that_do_not_fit_are_refused",
    "what_cannot_work_is_refused_by_name",
    "workers_with_other_arguments_are_told",
    "parameters_that_change_places_are_refused",
)
JOBS = test_workers.HERE / "fsdp_jobs.py"


def test_two_workers():
    test_workers.run(",".join((*NUMBERS, *OTHERS)), file=JOBS)


def test_shards_of_several_chunks():
    jobs = "losses_are_those_of_plain_fully_shard,every_change_of_a_parameter_is_gathered"
    test_workers.run(jobs, file=JOBS, BYTEPS_PARTITION_BYTES="4000")


def test_four_workers_of_which_one_has_only_padding():
    jobs = *NUMBERS, "meshes_of_two_dimensions_are_refused"
    test_workers.run(",".join(jobs), workers=4, file=JOBS)


def test_distributed_checkpoints_resume_bit_for_bit_on_as_many_workers(tmp_path):
    test_workers.run("saved_with_dcp", tmp_path, file=JOBS)
    test_workers.run("resumed_from_dcp", tmp_path, file=JOBS)
    test_workers.run("other_numbers_of_workers_are_refused", tmp_path, workers=1, file=JOBS)
    test_workers.run("other_numbers_of_workers_are_refused", tmp_path, workers=3, file=JOBS)
