"""Which averages an optimizer has applied; undo_jobs.py has the checks."""

from pathlib import Path

import pytest

from tests.torch.test_workers import run

JOBS = (
    "a_skipped_step_of_a_model_with_an_unused_layer",
    "a_dropped_batch_before_a_gradient_without_an_exchange",
    "a_trunk_of_two_losses_one_of_which_is_dropped",
    "a_step_that_a_hook_or_the_optimizer_leaves_out",
    "a_step_that_resets_gradients_itself_is_applied",
    "two_states_of_one_optimizer_skip_the_same_steps",
    "an_average_that_is_zero_by_chance_is_applied",
    "sums_of_shards_that_are_zero_by_chance_are_applied",
    "an_error_in_a_closure_lets_its_step_apply_nothing",
)


@pytest.mark.parametrize("job", JOBS)
def test_what_was_applied(job):
    run(job, file=Path(__file__).with_name("undo_jobs.py"))
