"""gluon_gc.torch with tensors on an emulated GPU, in forked worker processes."""

import pytest

from tests.cuda import emulator
from tests.torch import test_fsdp, test_reports, test_two_levels, test_workers
from tests.torch.algorithms import test_algorithm
from tests.torch.optimizers import test_optimizers
from tests.torch.workers import run

pytestmark = pytest.mark.xdist_group("emulator")  # to build the emulator once


@pytest.fixture(scope="module")
def emulated_gpu():
    """Return the folder of an emulator."""
    return emulator.build()


OF_EVERY_GPU = (
    test_workers.test_every_dtype,
    test_workers.test_what_is_not_finite,
    test_workers.test_single_tensors,
)
OTHERS = (
    test_optimizers.test_momentum_of_a_plain_checkpoint_is_taken_over,
    test_optimizers.test_a_checkpoint_continues_a_schedule_of_momentum,
    test_fsdp.test_differences_are_their_replay_on_all_workers,
    test_fsdp.test_every_change_of_a_parameter_is_gathered,
    test_fsdp.test_loaded_values_are_gathered_exactly,
    test_fsdp.test_large_changes_in_place_are_gathered_exactly,
    test_fsdp.test_frozen_parameters_become_exact,
    test_fsdp.test_loaded_nan_is_told,
    test_reports.test_the_residual_is_compared_with_this_workers_gradient,
    test_reports.test_the_error_of_the_average_is_that_of_numpy,
    test_algorithm.test_local_steps_is_its_replay_bit_for_bit,
    test_algorithm.test_what_is_resumed_goes_on_bit_for_bit,
)


@pytest.mark.parametrize("payloads", ["gloo", "nccl"])
def test_a_gpu_gives_the_bits_of_the_cpu(emulated_gpu, payloads):
    variables = {"GLUON_GC_PAYLOADS": payloads}
    run(test_workers.the_bits_of_the_cpu, 2, variables, folder=emulated_gpu)


@pytest.mark.parametrize("payloads", ["gloo", "nccl"])
def test_a_gpu_gives_the_bits_of_the_cpu_on_two_levels(emulated_gpu, payloads):
    variables = {"GLUON_GC_PAYLOADS": payloads, "BYTEPS_PARTITION_BYTES": 10000}
    body = test_two_levels.the_bits_of_the_cpu_on_two_levels
    run(body, 4, variables, folder=emulated_gpu)


def test_values_inside_inner_groups_stay_on_gpus(emulated_gpu):
    variables = {"EMULATED_GPU": emulated_gpu, "GLUON_GC_PAYLOADS": "nccl"}
    run(test_two_levels.values_stay_on_gpus, 4, variables)


@pytest.mark.parametrize("test", (*OF_EVERY_GPU, *OTHERS))
def test_two_workers_with_gpus(emulated_gpu, test):
    run(test, 2, {"EMULATED_GPU": emulated_gpu})


@pytest.mark.parametrize("test", (*OF_EVERY_GPU, test_workers.payloads_stay_on_gpus))
def test_payloads_that_stay_on_gpus(emulated_gpu, test):
    run(test, 2, {"EMULATED_GPU": emulated_gpu, "GLUON_GC_PAYLOADS": "nccl"})


def test_four_workers_whose_payloads_stay_on_gpus(emulated_gpu):
    more = {"EMULATED_GPU": emulated_gpu, "GLUON_GC_PAYLOADS": "nccl"}
    run(test_workers.payloads_stay_on_gpus, 4, {"BYTEPS_PARTITION_BYTES": 10000, **more})


@pytest.mark.parametrize("before", ["cpu", "gpu"])
def test_sharded_training_goes_on_on_the_other_one(tmp_path, emulated_gpu, before):
    """With residuals of 32 and of 8 bits."""
    variables = [{}, {"EMULATED_GPU": emulated_gpu}]
    for body in (test_fsdp.saved_with_dcp, test_fsdp.resumed_from_dcp):
        run(body, 2, variables.pop(0 if before == "cpu" else -1), folder=tmp_path)


@pytest.mark.parametrize("before, payloads", [("cpu", "nccl"), ("gpu", "gloo")])
def test_a_checkpoint_goes_on_on_the_other_one(tmp_path, emulated_gpu, before, payloads):
    variables = [{}, {"EMULATED_GPU": emulated_gpu, "GLUON_GC_PAYLOADS": payloads}]
    for body in (test_workers.saved, test_workers.resumed):
        run(body, 2, variables.pop(0 if before == "cpu" else -1), folder=tmp_path)
