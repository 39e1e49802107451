"""gluon_gc.torch with tensors on an emulated GPU, in forked worker processes."""

import pytest

from tests.cuda import emulator

from . import test_fsdp
from .test_workers import HERE, run

pytestmark = pytest.mark.xdist_group("emulator")  # to build the emulator once


@pytest.fixture(scope="module")
def emulated_gpu():
    """Return the folder of an emulator."""
    return emulator.build()


def test_a_gpu_gives_the_bits_of_the_cpu(emulated_gpu):
    run("the_bits_of_the_cpu", emulated_gpu)


def test_two_workers_with_gpus(emulated_gpu):
    jobs = "every_dtype,what_is_not_finite,fully_sharded_checkpoint,single_tensors"
    jobs += ",momentum_of_a_plain_checkpoint_is_taken_over"
    jobs += ",a_checkpoint_continues_a_schedule_of_momentum"
    run(jobs, EMULATED_GPU=str(emulated_gpu))


def test_payloads_that_stay_on_gpus_give_the_bits_of_the_cpu(emulated_gpu):
    run("the_bits_of_the_cpu", emulated_gpu, GLUON_GC_PAYLOADS="nccl")
    jobs = "every_dtype,what_is_not_finite,single_tensors,payloads_stay_on_gpus"
    run(jobs, EMULATED_GPU=str(emulated_gpu), GLUON_GC_PAYLOADS="nccl")


def test_four_workers_whose_payloads_stay_on_gpus(emulated_gpu):
    more = {"EMULATED_GPU": str(emulated_gpu), "GLUON_GC_PAYLOADS": "nccl"}
    run("payloads_stay_on_gpus", workers=4, BYTEPS_PARTITION_BYTES="10000", **more)


def test_gathers_of_parameters_give_the_bits_of_the_cpu(emulated_gpu):
    jobs = "differences_are_their_replay_on_all_workers", "every_change_of_a_parameter_is_gathered"
    jobs += test_fsdp.LOADED
    run(",".join(jobs), file=HERE / "fsdp_jobs.py", EMULATED_GPU=str(emulated_gpu))


@pytest.mark.parametrize("before", ["cpu", "gpu"])
def test_sharded_training_goes_on_on_the_other_one(tmp_path, emulated_gpu, before):
    """With residuals of 32 and of 8 bits."""
    variables = [{}, {"EMULATED_GPU": str(emulated_gpu)}]
    for job in ("saved_with_dcp", "resumed_from_dcp"):
        now = variables.pop(0 if before == "cpu" else -1)
        run(job, tmp_path, file=HERE / "fsdp_jobs.py", **now)


def test_rounds_of_an_algorithm_give_the_bits_of_the_cpu(emulated_gpu):
    jobs = "local_steps_is_its_replay_bit_for_bit,what_is_resumed_goes_on_bit_for_bit"
    run(jobs, file=HERE / "algorithm_jobs.py", EMULATED_GPU=str(emulated_gpu))


@pytest.mark.parametrize("before, payloads", [("cpu", "nccl"), ("gpu", "gloo")])
def test_a_checkpoint_goes_on_on_the_other_one(tmp_path, emulated_gpu, before, payloads):
    gpu = {"EMULATED_GPU": str(emulated_gpu), "GLUON_GC_PAYLOADS": payloads}
    variables = {"cpu": {}, "gpu": gpu}
    after = "gpu" if before == "cpu" else "cpu"
    run("saved", tmp_path, **variables[before])
    run("resumed", tmp_path, **variables[after])
