"""The tables of environment variables, by which `env.get` reads them. The docs print them too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping

BIGARRAY_BOUND = 2**31 - 1
"""The largest number of elements that MXNet stores on one server: the highest bound it accepts.

MXNet splits a larger array over several servers. The parts would have the keys of other arrays,
and gluon_gc's servers tell arrays apart by their keys.
"""
REQUIRED = object()
"""The default of a variable that must be set before it is read."""


def cores() -> int:
    """number of cores"""
    return len(os.sched_getaffinity(0))


def _few_cores() -> int:
    """number of cores, at most 4"""
    return min(4, cores())


@dataclass(frozen=True)
class Variable:
    """One row of a table."""

    name: str
    default: Any  # REQUIRED, a value, or a function for it, whose docstring the docs print
    kind: str  # a key of KINDS
    meaning: str  # for the docs, and for the error of a missing variable
    older: str | None = None  # an older spelling, read if `name` is not set
    must_match: bool = False  # the scheduler refuses nodes with another value


def _number(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError
        return value

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return parse


_ROLES = ("worker", "server", "scheduler")
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

KINDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "text": ("text", str),
    "count": ("a whole number >= 0", _number(0)),
    "positive": ("a positive whole number", _number(1)),
    "size": ("a whole number from 1 to 2147483647", _number(1, 2**31 - 1)),  # MXNet's int
    "port": ("a port from 1 to 65535", _number(1, 65535)),
    "flag": ("0 or 1", lambda text: bool(_number(0, 1)(text))),
    "role": ("one of " + ", ".join(_ROLES), _one_of(*_ROLES)),
    "van": ("zmq", _one_of("zmq")),
    "engine": ("one of gloo, nccl", _one_of("gloo", "nccl")),
    "level": ("one of " + ", ".join(_LEVELS), lambda text: _one_of(*_LEVELS)(text.upper())),
}
"""For each kind, the rule as errors print it, and the parser. It raises ValueError."""

TABLE = (
    # The cluster, with the names of MXNet and BytePS.
    Variable("DMLC_ROLE", REQUIRED, "role", "worker, server or scheduler"),
    Variable("DMLC_PS_ROOT_URI", REQUIRED, "text", "the address of the scheduler"),
    Variable("DMLC_PS_ROOT_PORT", REQUIRED, "port", "the port of the scheduler"),
    Variable(
        "DMLC_NUM_WORKER", REQUIRED, "positive", "the number of worker machines", must_match=True
    ),
    Variable("DMLC_NUM_SERVER", REQUIRED, "count", "the number of servers", must_match=True),
    Variable("DMLC_WORKER_ID", REQUIRED, "count", "the number of this worker machine, from 0"),
    Variable("DMLC_INTERFACE", None, "text", "network interface. By default, the first that is up"),
    Variable("DMLC_NODE_HOST", None, "text", "address of this node, instead of the interface's"),
    Variable("BYTEPS_LOCAL_RANK", 0, "count", "local rank of this worker. bpslaunch sets it"),
    Variable(
        "BYTEPS_LOCAL_SIZE",
        1,
        "positive",
        "number of workers on each machine, the same on all machines. bpslaunch sets it",
    ),
    Variable(
        "BYTEPS_FORCE_DISTRIBUTED",
        False,
        "flag",
        "1: use the scheduler and the servers even if DMLC_NUM_WORKER is 1",
    ),
    Variable("NVIDIA_VISIBLE_DEVICES", None, "text", "devices. bpslaunch starts a worker for each"),
    # Chunks, threads, logs and traces.
    Variable("BYTEPS_PARTITION_BYTES", 1024000, "size", "largest chunk, in bytes of float data"),
    Variable(
        "BYTEPS_MIN_COMPRESS_BYTES",
        0,
        "count",
        "tensors with fewer bytes travel uncompressed",
        older="BYTEPS_MIN_COMPRESS_BYTE",
    ),
    Variable(
        "BYTEPS_THREADPOOL_SIZE",
        _few_cores,
        "count",
        "number of threads that compress and exchange. 0: MXNet's own default",
    ),
    Variable("BYTEPS_NUMA_ON", False, "flag", "1: bpslaunch binds workers to NUMA nodes (numactl)"),
    Variable("BYTEPS_LOG_LEVEL", "WARNING", "level", "lowest severity of logged messages"),
    Variable(
        "BYTEPS_TRACE_ON",
        False,
        "flag",
        "1: workers and servers write a Chrome trace of some steps",
    ),
    Variable("BYTEPS_TRACE_START_STEP", 10, "positive", "first traced step, counted from 1"),
    Variable("BYTEPS_TRACE_END_STEP", 20, "positive", "last traced step"),
    Variable(
        "BYTEPS_TRACE_DIR",
        "./trace",
        "text",
        "directory DIR of the traces: DIR/LOCAL_RANK/comm.json, DIR/serverN/comm.json",
    ),
    Variable(
        "OMP_NUM_THREADS",
        None,
        "positive",
        "OpenMP threads in each worker and server. By default, `bpslaunch --local` "
        "divides the cores among the workers",
    ),
    Variable(
        "GLUON_GC_PAYLOADS",
        "gloo",
        "engine",
        "PyTorch: the engine that carries payloads. nccl: from GPU to GPU, if they have a fixed "
        "length and no machine sums its workers' gradients first",
    ),
    # Faults.
    Variable("GLUON_GC_CONNECT_TIMEOUT", 60, "positive", "seconds in which nodes must connect"),
    Variable(
        "GLUON_GC_STALL_SECONDS",
        60,
        "count",
        "seconds of an exchange before a warning names the missing nodes. 0: no warning",
        must_match=True,
    ),
    Variable(
        "GLUON_GC_TIMEOUT",
        0,
        "count",
        "seconds of an exchange, or of waiting for missing nodes, before all nodes end. "
        "0: no limit",
        must_match=True,
    ),
    Variable(
        "GLUON_GC_MAILBOX",
        None,
        "text",
        "the folder or bucket of a run across sites, as the argument mailbox of bps.init",
    ),
    Variable("GLUON_GC_SECRET", None, "text", "secret of the cluster. All nodes must have it"),
    Variable("GLUON_GC_RESTARTS", None, "count", "restarts of this node so far. bpslaunch sets it"),
    Variable(
        "PS_HEARTBEAT_INTERVAL", 1, "count", "seconds between heartbeats. 0: none", must_match=True
    ),
    Variable(
        "PS_HEARTBEAT_TIMEOUT",
        30,
        "positive",
        "seconds without a heartbeat until a node counts as dead. A link may be down for half of "
        "this time",
        must_match=True,
    ),
    Variable(
        "PS_RESEND",
        False,
        "flag",
        "1: ps-lite resends unacknowledged messages. Set it on networks that reset connections; "
        "TCP already resends within one",
        must_match=True,
    ),
    Variable(
        "PS_RESEND_TIMEOUT",
        6000,
        "positive",
        "milliseconds before PS_RESEND resends a message. After ten times as long, the process "
        "ends",
    ),
    Variable(
        "DMLC_PS_VAN_TYPE",
        "zmq",
        "van",
        "transport of ps-lite. The other one, p3, cannot carry gluon_gc's messages",
    ),
    # For development, and variables that gluon_gc sets for MXNet.
    Variable("GLUON_GC_LIBRARY", None, "text", "path of another libgluon_gc.so to load"),
    Variable(
        "GLUON_GC_WITH_CUDA",
        False,
        "flag",
        "read by the build. 1: compile the GPU kernels. 0: leave them out. Not set: compile them "
        "if mxnet-cu112 or a CUDA build of PyTorch is installed",
    ),
    Variable("MXNET_CPU_WORKER_NTHREADS", None, "positive", "set to BYTEPS_THREADPOOL_SIZE"),
    Variable(
        "MXNET_CPU_PARALLEL_RAND_COPY",
        8,
        "positive",
        "number of resources that MXNet's operators share. An operator holds one while it waits "
        "for the network, so this limits concurrent exchanges. Default: BYTEPS_THREADPOOL_SIZE if "
        "that is larger. `bps.init()` sets it. MXNet's own default is 1, and MXNet's random "
        "numbers depend on this value",
    ),
    Variable(
        "MXNET_CPU_TEMP_COPY",
        8,
        "positive",
        "limits concurrent exchanges as MXNET_CPU_PARALLEL_RAND_COPY does, with the same default",
    ),
    Variable(
        "MXNET_KVSTORE_BIGARRAY_BOUND",
        BIGARRAY_BOUND,
        "positive",
        "number of elements above which MXNet splits an array over servers. gluon_gc cuts arrays "
        "itself, so it raises a lower bound to the default",
    ),
)

IGNORED = tuple(
    """
    BYTEPS_ALLTOALL_SESSION_SIZE BYTEPS_CPU_BLACKLIST BYTEPS_DEBUG_SAMPLE_TENSOR
    BYTEPS_DISABLE_CPU_ALLREDUCE BYTEPS_DISABLE_GPU_ALLREDUCE BYTEPS_DISABLE_P2P
    BYTEPS_ENABLE_ASYNC BYTEPS_ENABLE_GDB BYTEPS_ENABLE_IPC BYTEPS_ENABLE_MIXED_MODE
    BYTEPS_GLOBAL_RANK BYTEPS_JOB_ID BYTEPS_KEY_HASH_FN BYTEPS_LOG_HIDE_TIME
    BYTEPS_MIXED_MODE_BOUND BYTEPS_MULTITHREADED_CPU BYTEPS_NCCL_GROUP_SIZE
    BYTEPS_NCCL_NUM_RINGS BYTEPS_NUMA_DEFAULT_QUOTA BYTEPS_NUMA_ID BYTEPS_OMP_THREAD_PER_GPU
    BYTEPS_P2P_PARTITION_BYTES BYTEPS_PCIE_SWITCH_SIZE BYTEPS_PHY_NODE_ID BYTEPS_PIN_MEMORY
    BYTEPS_REDUCE_ROOTS BYTEPS_SCHEDULING_CREDIT BYTEPS_SERVER_DEBUG BYTEPS_SERVER_DEBUG_KEY
    BYTEPS_SERVER_DIRECT_RESPONSE BYTEPS_SERVER_ENABLE_SCHEDULE BYTEPS_SERVER_ENGINE_BLOCKING
    BYTEPS_SERVER_ENGINE_THREAD BYTEPS_SERVER_MXNET_PATH BYTEPS_SOCKET_PATH
    BYTEPS_TELEMETRY_CAPACITY BYTEPS_TELEMETRY_INTERVAL BYTEPS_TELEMETRY_ON BYTEPS_USE_NVTX
    BYTEPS_UUID BYTEPS_VISIBLE_CPU_CORES BYTEPS_WORKER_LOCAL_ROOT DMLC_ENABLE_RDMA
    """.split()
)
"""Variables of BytePS that gluon_gc accepts and ignores."""

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
"""Variables in which other launchers describe a worker's rank among all workers."""
