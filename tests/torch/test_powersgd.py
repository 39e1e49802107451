"""powersgd, in processes that run powersgd_jobs.py."""

import pytest

from tests.torch import test_workers

torch = pytest.importorskip("torch")

ALONE = (
    "powersgd_is_its_replay_bit_for_bit",
    "the_losses_are_those_of_pytorchs_hook",
    "on_a_gpu_the_products_are_pytorchs",
    "factors_travel_as_float16_if_asked",
    "loops_of_every_kind_make_the_same_steps",
    "what_is_resumed_goes_on_bit_for_bit",
    "frozen_parameters_stay_as_they_are",
    "a_checkpoint_fits_another_start",
    "what_cannot_work_is_refused_by_name",
    "what_is_not_finite_is_named_by_all",
    "auto_chooses_whether_gradients_are_compressed",
    "auto_measures_the_link_and_the_products",
)
JOBS = test_workers.HERE / "powersgd_jobs.py"


def test_two_workers():
    jobs = (
        *ALONE,
        "workers_that_begin_with_other_parameters_are_told",
        "workers_that_freeze_other_parameters_are_told",
    )
    test_workers.run(",".join(jobs), file=JOBS)


def test_one_worker_alone():
    test_workers.run(",".join(ALONE), workers=1, file=JOBS)


@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_goes_on_from_the_files_of_two(tmp_path, workers):
    test_workers.run("two_workers_save", tmp_path, file=JOBS)
    job = "another_number_of_workers_keeps_the_mean_of_the_residuals"
    test_workers.run(job, tmp_path, workers=workers, file=JOBS)


def test_four_workers():
    jobs = "powersgd_is_its_replay_bit_for_bit,the_losses_are_those_of_pytorchs_hook"
    test_workers.run(jobs, workers=4, file=JOBS)
