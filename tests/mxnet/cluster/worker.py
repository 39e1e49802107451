"""A worker of a test's cluster: ``worker.py JOB_FILE RESULT_FILE`` runs a job and saves its result.

A job is a function of a test module. Its file is a pickle of its module, its name and its keyword
arguments.
"""

import itertools
import pickle
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

import mxnet as mx  # noqa: E402

import gluon_gc as bps  # noqa: E402


def _called(module, name, arguments):
    job = getattr(import_module(module), name)
    result = getattr(job, "body", job)(**arguments)
    mx.nd.waitall()
    return result


def save(value, file):
    """Write a pickle that appears as a whole, so that a reader never sees a part."""
    part = file.with_name(f"{file.name}.part")
    part.write_bytes(pickle.dumps(value))
    part.rename(file)


def stand(patience, folder):
    """Run the jobs that `standing` writes, until one fails or none comes for `patience` seconds."""
    rank = bps.rank()
    for number in itertools.count():
        file, deadline = Path(folder, f"job{number}"), time.monotonic() + patience
        while not file.exists():
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        job = pickle.loads(file.read_bytes())
        if job is None:
            return
        problem = result = None
        try:
            result = _called(*job)
        except BaseException:
            problem = traceback.format_exc()
        save((result, problem), Path(folder, f"result{number}-{rank}"))
        if problem:
            sys.exit(problem)


if __name__ == "__main__":
    job_file, result_file = sys.argv[1:]
    module, name, arguments = pickle.loads(Path(job_file).read_bytes())
    bps.init()
    rank = str(bps.rank())  # the job may leave the cluster
    # horovodrun gives all workers the same arguments
    save(_called(module, name, arguments), Path(result_file.replace("RANK", rank)))
    bps.shutdown()
