"""The tables of environment variables: the name, default, rule and meaning of each.

`gluon_gc.env` reads them, and the documentation's tables are made from them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

BIGARRAY_BOUND = 2**31 - 1
"""Elements up to which MXNet leaves an array on one server: the highest bound that MXNet takes.

Servers tell our arrays apart by their keys. The parts of a spread array have other arrays' keys.
"""
REQUIRED = object()
"""The default of a variable that must be set when it is read."""


def cores() -> int:
    """number of cores"""
    return len(os.sched_getaffinity(0))


_SHARED = (
    "what operators share: those that wait for the network hold up those behind them, so that it "
    "bounds the exchanges under way; at least BYTEPS_THREADPOOL_SIZE"
)


def _few_cores() -> int:
    """number of cores, at most 4"""
    return min(4, cores())


@dataclass(frozen=True)
class Variable:
    """One row of the table.

    Parameters
    ----------
    name : str
    default : int, str, bool, None, REQUIRED or a function
        What `get` returns when the variable is not set. None says that there is nothing to return;
        a function is called, and its docstring says what it gives.
    kind : str
        A key of `KINDS`.
    meaning : str
        What the variable decides, as the documentation prints it.
    older : str, optional
        An older spelling, read when `name` is not set.
    alike : bool
        Whether all nodes of a cluster must have the same; where they meet, a difference is refused.
    """

    name: str
    default: Any
    kind: str
    meaning: str
    older: Optional[str] = None
    alike: bool = False


def _number(low: int, high: Optional[int] = None) -> Callable[[str], int]:
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
    "level": ("one of " + ", ".join(_LEVELS), lambda text: _one_of(*_LEVELS)(text.upper())),
}
"""Kind to the rule it states in an error, and the function that reads it."""

TABLE = (
    # The cluster, as MXNet and BytePS name it.
    Variable("DMLC_ROLE", REQUIRED, "role", "worker, server or scheduler"),
    Variable("DMLC_PS_ROOT_URI", REQUIRED, "text", "the address of the scheduler"),
    Variable("DMLC_PS_ROOT_PORT", REQUIRED, "port", "the port of the scheduler"),
    Variable(
        "DMLC_NUM_WORKER", REQUIRED, "positive", "how many worker machines there are", alike=True
    ),
    Variable("DMLC_NUM_SERVER", REQUIRED, "count", "how many servers there are", alike=True),
    Variable("DMLC_WORKER_ID", REQUIRED, "count", "which worker machine this is, from 0"),
    Variable("DMLC_INTERFACE", None, "text", "the network interface; by default the first up"),
    Variable("DMLC_NODE_HOST", None, "text", "this node's address, in place of the interface's"),
    Variable("BYTEPS_LOCAL_RANK", 0, "count", "which worker of its machine; bpslaunch sets it"),
    Variable(
        "BYTEPS_LOCAL_SIZE",
        1,
        "positive",
        "worker processes a machine, the same on all; bpslaunch sets it for the workers",
    ),
    Variable(
        "BYTEPS_FORCE_DISTRIBUTED",
        False,
        "flag",
        "1: workers use the servers that are started for them even where DMLC_NUM_WORKER is 1",
    ),
    Variable("NVIDIA_VISIBLE_DEVICES", None, "text", "a list: bpslaunch starts a worker for each"),
    # What is sent, and by how many threads.
    Variable("BYTEPS_PARTITION_BYTES", 1024000, "size", "the most float data in one chunk"),
    Variable(
        "BYTEPS_MIN_COMPRESS_BYTES",
        0,
        "count",
        "smaller tensors travel uncompressed",
        older="BYTEPS_MIN_COMPRESS_BYTE",
    ),
    Variable(
        "BYTEPS_THREADPOOL_SIZE",
        _few_cores,
        "count",
        "threads that compress and exchange; 0 leaves MXNet's own default",
    ),
    Variable("BYTEPS_NUMA_ON", False, "flag", "1: bpslaunch binds workers to NUMA nodes (numactl)"),
    Variable("BYTEPS_LOG_LEVEL", "WARNING", "level", "the least severe message that is logged"),
    Variable(
        "BYTEPS_TRACE_ON",
        False,
        "flag",
        "1: workers and servers write a Chrome trace of some steps",
    ),
    Variable("BYTEPS_TRACE_START_STEP", 10, "positive", "the first step of the trace, from 1"),
    Variable("BYTEPS_TRACE_END_STEP", 20, "positive", "the last step of the trace"),
    Variable(
        "BYTEPS_TRACE_DIR",
        "./trace",
        "text",
        "where it goes: DIR/LOCAL_RANK/comm.json, DIR/serverN/comm.json",
    ),
    Variable(
        "OMP_NUM_THREADS",
        None,
        "positive",
        "OpenMP threads a process, and a server's; where bpslaunch starts a whole cluster, it "
        "shares out the cores",
    ),
    # Faults.
    Variable("GLUON_GC_CONNECT_TIMEOUT", 60, "positive", "seconds to wait for the scheduler"),
    Variable(
        "GLUON_GC_STALL_SECONDS",
        60,
        "count",
        "seconds that workers wait in vain until it is said for whom; 0: never",
        alike=True,
    ),
    Variable(
        "GLUON_GC_TIMEOUT",
        0,
        "count",
        "seconds after which they give up, and all nodes end; 0: never",
        alike=True,
    ),
    Variable(
        "GLUON_GC_SECRET",
        None,
        "text",
        "the same on all nodes of a cluster: who does not have it is not let in",
    ),
    Variable(
        "GLUON_GC_RESTARTS",
        None,
        "count",
        "how often bpslaunch has restarted this node; bpslaunch --max-restarts sets it",
    ),
    Variable(
        "PS_HEARTBEAT_INTERVAL", 1, "count", "seconds between signs of life; 0: none", alike=True
    ),
    Variable(
        "PS_HEARTBEAT_TIMEOUT",
        30,
        "positive",
        "seconds without one until a node is dead; a link may be down for half as long",
        alike=True,
    ),
    Variable(
        "PS_RESEND",
        False,
        "flag",
        "1: ps-lite sends again what is not acknowledged, as where connections are reset; TCP "
        "does so within one connection",
        alike=True,
    ),
    Variable(
        "PS_RESEND_TIMEOUT",
        6000,
        "positive",
        "milliseconds after which PS_RESEND sends again; a process ends after ten times as many",
    ),
    Variable(
        "DMLC_PS_VAN_TYPE",
        "zmq",
        "van",
        "the transport of ps-lite; its other one, p3, does not carry gluon_gc's messages",
    ),
    # For development, and what is set for MXNet.
    Variable("GLUON_GC_LIBRARY", None, "text", "another libgluon_gc.so than the package's own"),
    Variable(
        "GLUON_GC_WITH_CUDA",
        False,
        "flag",
        "while gluon_gc is built: 1, the library has kernels for GPUs; unset, where mxnet-cu112 or "
        "a PyTorch for CUDA is installed",
    ),
    Variable("MXNET_CPU_WORKER_NTHREADS", None, "positive", "set to BYTEPS_THREADPOOL_SIZE"),
    Variable(
        "MXNET_CPU_PARALLEL_RAND_COPY",
        8,
        "positive",
        f"{_SHARED}. Set by `bps.init()`. MXNet draws other random numbers with another value; its "
        "own default is 1",
    ),
    Variable("MXNET_CPU_TEMP_COPY", 8, "positive", _SHARED),
    Variable(
        "MXNET_KVSTORE_BIGARRAY_BOUND",
        BIGARRAY_BOUND,
        "positive",
        "elements above which MXNet spreads an array over servers. gluon_gc cuts arrays by itself, "
        "and raises a lower bound to this one",
    ),
)

IGNORED = (
    "BYTEPS_ALLTOALL_SESSION_SIZE",
    "BYTEPS_CPU_BLACKLIST",
    "BYTEPS_DEBUG_SAMPLE_TENSOR",
    "BYTEPS_DISABLE_CPU_ALLREDUCE",
    "BYTEPS_DISABLE_GPU_ALLREDUCE",
    "BYTEPS_DISABLE_P2P",
    "BYTEPS_ENABLE_ASYNC",
    "BYTEPS_ENABLE_GDB",
    "BYTEPS_ENABLE_IPC",
    "BYTEPS_ENABLE_MIXED_MODE",
    "BYTEPS_GLOBAL_RANK",
    "BYTEPS_JOB_ID",
    "BYTEPS_KEY_HASH_FN",
    "BYTEPS_LOG_HIDE_TIME",
    "BYTEPS_MIXED_MODE_BOUND",
    "BYTEPS_MULTITHREADED_CPU",
    "BYTEPS_NCCL_GROUP_SIZE",
    "BYTEPS_NCCL_NUM_RINGS",
    "BYTEPS_NUMA_DEFAULT_QUOTA",
    "BYTEPS_NUMA_ID",
    "BYTEPS_OMP_THREAD_PER_GPU",
    "BYTEPS_P2P_PARTITION_BYTES",
    "BYTEPS_PCIE_SWITCH_SIZE",
    "BYTEPS_PHY_NODE_ID",
    "BYTEPS_PIN_MEMORY",
    "BYTEPS_REDUCE_ROOTS",
    "BYTEPS_SCHEDULING_CREDIT",
    "BYTEPS_SERVER_DEBUG",
    "BYTEPS_SERVER_DEBUG_KEY",
    "BYTEPS_SERVER_DIRECT_RESPONSE",
    "BYTEPS_SERVER_ENABLE_SCHEDULE",
    "BYTEPS_SERVER_ENGINE_BLOCKING",
    "BYTEPS_SERVER_ENGINE_THREAD",
    "BYTEPS_SERVER_MXNET_PATH",
    "BYTEPS_SOCKET_PATH",
    "BYTEPS_TELEMETRY_CAPACITY",
    "BYTEPS_TELEMETRY_INTERVAL",
    "BYTEPS_TELEMETRY_ON",
    "BYTEPS_USE_NVTX",
    "BYTEPS_UUID",
    "BYTEPS_VISIBLE_CPU_CORES",
    "BYTEPS_WORKER_LOCAL_ROOT",
    "DMLC_ENABLE_RDMA",
)
"""Variables of BytePS that nothing reads here."""
