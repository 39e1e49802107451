"""The table of variables that torchrun, horovodrun, mpirun and SLURM's srun set."""

from __future__ import annotations

from .variables import Variable

OF_LAUNCHERS = (
    # torchrun. bpslaunch sets the first six of these too.
    Variable("RANK", None, "count", "rank of this worker, from 0"),
    Variable("WORLD_SIZE", None, "positive", "number of workers"),
    Variable("LOCAL_RANK", None, "count", "number of this worker on its machine, from 0"),
    Variable("LOCAL_WORLD_SIZE", None, "positive", "number of workers on this machine"),
    Variable("MASTER_ADDR", None, "text", "address of worker 0's machine"),
    Variable("MASTER_PORT", None, "port", "port at which worker 0 listens"),
    Variable("TORCHELASTIC_RUN_ID", None, "text", "set by torchrun"),
    # horovodrun.
    Variable("HOROVOD_RANK", None, "count", "same as RANK"),
    Variable("HOROVOD_SIZE", None, "positive", "same as WORLD_SIZE"),
    Variable("HOROVOD_LOCAL_RANK", None, "count", "same as LOCAL_RANK"),
    Variable("HOROVOD_LOCAL_SIZE", None, "positive", "same as LOCAL_WORLD_SIZE"),
    # mpirun of Open MPI, and then mpirun of MPICH and Intel MPI.
    Variable("OMPI_COMM_WORLD_RANK", None, "count", "same as RANK"),
    Variable("OMPI_COMM_WORLD_SIZE", None, "positive", "same as WORLD_SIZE"),
    Variable("OMPI_COMM_WORLD_LOCAL_RANK", None, "count", "same as LOCAL_RANK"),
    Variable("OMPI_COMM_WORLD_LOCAL_SIZE", None, "positive", "same as LOCAL_WORLD_SIZE"),
    Variable("PMI_RANK", None, "count", "same as RANK"),
    Variable("PMI_SIZE", None, "positive", "same as WORLD_SIZE"),
    Variable("MPI_LOCALRANKID", None, "count", "same as LOCAL_RANK"),
    Variable("MPI_LOCALNRANKS", None, "positive", "same as LOCAL_WORLD_SIZE"),
    # SLURM. sbatch and salloc set the variables of a job, srun sets the variables of a step.
    Variable("SLURM_JOB_ID", None, "count", "number of the job, which gives the port"),
    Variable("SLURM_JOB_NODELIST", None, "text", "machines of the job", older="SLURM_NODELIST"),
    Variable("SLURM_NTASKS", None, "positive", "number of processes of the step or the job"),
    Variable("SLURM_PROCID", None, "count", "same as RANK"),
    Variable("SLURM_LOCALID", None, "count", "same as LOCAL_RANK"),
    Variable("SLURM_NODEID", None, "count", "number of this machine in the step, from 0"),
    Variable("SLURM_STEP_ID", None, "count", "number of the step", older="SLURM_STEPID"),
    Variable("SLURM_STEP_NUM_TASKS", None, "positive", "same as WORLD_SIZE"),
    Variable("SLURM_STEP_NODELIST", None, "text", "machines of the step, starting with worker 0's"),
    Variable(
        "SLURM_STEP_TASKS_PER_NODE",
        None,
        "text",
        "number of processes on each machine of the step",
        older="SLURM_TASKS_PER_NODE",
    ),
)
"""Variables in which other launchers describe a worker's place among all workers."""
