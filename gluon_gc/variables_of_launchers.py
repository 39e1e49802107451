"""The table of the variables of other launchers: torchrun, horovodrun, mpirun and SLURM's srun."""

from __future__ import annotations

from .variables import Variable

OF_LAUNCHERS = (
    # torchrun's, which bpslaunch sets too, and the address where its workers meet.
    Variable("RANK", None, "count", "which worker this is, from 0"),
    Variable("WORLD_SIZE", None, "positive", "how many workers there are"),
    Variable("LOCAL_RANK", None, "count", "which worker of its machine this is, from 0"),
    Variable("LOCAL_WORLD_SIZE", None, "positive", "how many workers this machine has"),
    Variable("MASTER_ADDR", None, "text", "the address of worker 0's machine"),
    Variable("MASTER_PORT", None, "port", "a port there, at which worker 0 listens"),
    Variable("TORCHELASTIC_RUN_ID", None, "text", "set: torchrun has started this process"),
    # horovodrun's.
    Variable("HOROVOD_RANK", None, "count", "as RANK"),
    Variable("HOROVOD_SIZE", None, "positive", "as WORLD_SIZE"),
    Variable("HOROVOD_LOCAL_RANK", None, "count", "as LOCAL_RANK"),
    Variable("HOROVOD_LOCAL_SIZE", None, "positive", "as LOCAL_WORLD_SIZE"),
    # Open MPI's, and those of MPICH and Intel's MPI.
    Variable("OMPI_COMM_WORLD_RANK", None, "count", "as RANK"),
    Variable("OMPI_COMM_WORLD_SIZE", None, "positive", "as WORLD_SIZE"),
    Variable("OMPI_COMM_WORLD_LOCAL_RANK", None, "count", "as LOCAL_RANK"),
    Variable("OMPI_COMM_WORLD_LOCAL_SIZE", None, "positive", "as LOCAL_WORLD_SIZE"),
    Variable("PMI_RANK", None, "count", "as RANK"),
    Variable("PMI_SIZE", None, "positive", "as WORLD_SIZE"),
    Variable("MPI_LOCALRANKID", None, "count", "as LOCAL_RANK"),
    Variable("MPI_LOCALNRANKS", None, "positive", "as LOCAL_WORLD_SIZE"),
    # SLURM's. sbatch and salloc set those of a job, and srun those of a step.
    Variable("SLURM_JOB_ID", None, "count", "the job; a port is derived from it"),
    Variable("SLURM_JOB_NODELIST", None, "text", "the job's machines", older="SLURM_NODELIST"),
    Variable("SLURM_NTASKS", None, "positive", "processes of the step, or of the job"),
    Variable("SLURM_PROCID", None, "count", "as RANK"),
    Variable("SLURM_LOCALID", None, "count", "as LOCAL_RANK"),
    Variable("SLURM_NODEID", None, "count", "which machine of the step this is, from 0"),
    Variable("SLURM_STEP_ID", None, "count", "the step", older="SLURM_STEPID"),
    Variable("SLURM_STEP_NUM_TASKS", None, "positive", "as WORLD_SIZE"),
    Variable("SLURM_STEP_NODELIST", None, "text", "the step's machines, of worker 0's first"),
    Variable(
        "SLURM_STEP_TASKS_PER_NODE",
        None,
        "text",
        "processes of each machine",
        older="SLURM_TASKS_PER_NODE",
    ),
)
"""Variables by which other launchers say which worker a process is."""
