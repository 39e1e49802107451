"""The files of DistributedTrainer.save_states, as two workers or one saved them.

`python -m tests.saved.mxnet_states` writes the archive: a file CASE-RANK for each worker, and for
other workers that load all files of a case, CASE-WORKERS.RANK, which they save afterwards.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from tests.link import link_of

FILE = Path(__file__).with_name("mxnet.tar.xz")
ROOT = Path(__file__).resolve().parents[2]
SHAPES = [(9, 4), (5,), (3,)]
BY_WORKERS = {
    1: ("onebit", "local_steps"),
    2: ("onebit", "dithering", "auto", "local_steps", "powersgd", "auto_local_steps"),
    3: (),
}
"""The cases that are saved by a number of workers."""
OTHERS = ((2, 1), (2, 3))
"""The number of workers that have saved, and the number of workers that load."""
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
AUTO = {"compressor": "auto", "accuracy": "aggressive"}
SLOW, FAST = 1e4, 1e15  # bytes per second
COMPRESSIONS = {
    "onebit": {**ONEBIT, "ef": "corrected", "momentum": "nesterov"},
    "dithering": {"compressor": "dithering", "k": 4, "seed": 3, "ef": "vanilla"},
    "auto": {**AUTO, "momentum": "nesterov"},
    "local_steps": ONEBIT,
    "powersgd": None,
    "auto_local_steps": AUTO,
}
ALGORITHMS = {
    "local_steps": {"name": "local_steps", "every": 2, "outer_momentum": 0.9},
    "powersgd": {"name": "powersgd", "rank": 1, "start": 1},
    "auto_local_steps": {"name": "local_steps", "outer_momentum": 0.9},
}


def _made(case):
    """Return parameters and their trainer."""
    import mxnet as mx

    import gluon_gc as bps

    params = [mx.gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)]
    for param in params:
        param.initialize(mx.init.One())
    params[2].compression_params = None
    settings = {"learning_rate": 0.1}
    if case in ("onebit", "auto"):
        settings.update(momentum=0.9, wd=0.01)
    algorithm = ALGORITHMS.get(case)
    trainer = bps.DistributedTrainer(
        params,
        "adam" if case == "auto_local_steps" else "sgd",
        settings,
        compression_params=COMPRESSIONS[case],
        **({} if algorithm is None else {"algorithm": algorithm}),
    )
    return params, trainer


def _train(case, params, trainer):
    import mxnet as mx

    import gluon_gc as bps

    for step in range(8 if case == "auto_local_steps" else 3):
        rng = np.random.RandomState(100 * step + bps.rank())
        with mx.autograd.record():
            losses = [
                (param.data() * mx.nd.array(rng.standard_normal(param.shape))).sum()
                for param in params
            ]
        mx.autograd.backward(losses)
        trainer.step(1)


def _work(requests):
    """Save states, or load some and save them again: one request after another."""
    import gluon_gc as bps

    bps.init()
    for case, files, saved_as in requests:
        with link_of(FAST if files else SLOW):
            params, trainer = _made(case)
            if files is None:
                _train(case, params, trainer)
            elif len(files) > 1:
                trainer.load_states(files, strict=False)
            else:
                trainer.load_states(f"{files[0]}{bps.rank()}")
        trainer.save_states(f"{saved_as}{bps.rank()}")
    bps.shutdown()


def run(requests, workers):
    """Carry out requests (case, files, the name of new files) on some workers and a server.

    files: None to train; one name without the rank, for each worker's own file; or all files.
    """
    command = [sys.executable, "-m", "tests.saved.mxnet_states", json.dumps(requests)]
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", str(workers), "-s", "1"]
    own = {name: text for name, text in os.environ.items() if not name.startswith("DMLC_")}
    done = subprocess.run(
        command if workers == 1 else [*launch, *command],
        cwd=ROOT,
        env={**own, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=200,
    )
    assert done.returncode == 0, done.stdout


def requests_to_load(folder, names):
    """Return the requests to load the files of a folder, for each number of workers."""
    found = {
        workers: [
            (case, [f"{folder}/{case}{workers}-"], f"{folder}/again.{case}{workers}-")
            for case in cases
        ]
        for workers, cases in BY_WORKERS.items()
    }
    for before, now in OTHERS:
        for case in BY_WORKERS[before]:
            files = [f"{folder}/{case}{before}-{rank}" for rank in range(before)]
            found[now].append((case, files, f"{folder}/{names}{case}{before}.{now}-"))
    return found


def _write(folder):
    for workers, cases in BY_WORKERS.items():
        if cases:
            run([(case, None, f"{folder}/{case}{workers}-") for case in cases], workers)
    for workers, requests in requests_to_load(folder, "").items():
        run([request for request in requests if len(request[1]) > 1], workers)


if __name__ == "__main__":
    if sys.argv[1:]:
        _work(json.loads(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            _write(name)
            with tarfile.open(FILE, "w:xz") as archive:
                for path in sorted(Path(name).iterdir()):
                    info = tarfile.TarInfo(path.name)
                    info.size = path.stat().st_size
                    with path.open("rb") as file:
                        archive.addfile(info, file)
