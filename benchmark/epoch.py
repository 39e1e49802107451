"""Measures the seconds per epoch of the CIFAR-100 example over links of a given rate.

The script runs example/cifar100/train_cifar100.py on generated images. Each worker and server has
its own network namespace with a link of that rate. The jobs are those of BytePS's reproduction
guide, plus bytegrad and dgc. "no exchange" is the lower limit: the same number of workers and
images per worker, but the workers do not communicate. It needs root, iproute2 and GluonCV.

    python benchmark/epoch.py [--rate 100M] [--backend horovod] [--only REGEX] [--csv FILE]
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

from network import Network, bits
from processes import HERE, Processes, read_line
from table import print_row, write_csv

EXAMPLES = HERE.parent / "example"
sys.path.insert(0, str(EXAMPLES))

from common.log import read_log  # noqa: E402
from make_data import make  # noqa: E402

TIMEOUT = 600  # seconds for one job
BASELINE, ALONE = "baseline", "no exchange"
JOBS: dict[str, str] = {
    BASELINE: "",
    "onebit": "--compressor onebit --onebit-scaling --ef vanilla --compress-momentum nesterov",
    "topk": "--compressor topk --k 0.001",
    "randomk": "--compressor randomk --k 0.001",
    "dithering": "--compressor dithering --k 2 --normalize l2",
    "fp16": "--fp16-pushpull",
    "bytegrad": "--compressor bytegrad",
    "dgc": "--compressor dgc --k 0.001 --compress-momentum nesterov",
    ALONE: "",
}
COMMON = "--mode hybrib -j 2 --warmup-epochs 10 --warmup-lr 0.1 --lr 0.1"
"""The options that all jobs of the guide share and that do not depend on the machines."""
CLASSES = 10
VALIDATION = 4  # training images per validation image


class Result(NamedTuple):
    """The result of one job; seconds is the median over the epochs after the first."""

    job: str
    seconds: float
    train_loss: float
    accuracy: float
    worker_bytes: float  # per step, on worker 0's link; slightly too low if epochs are short


def run(job: str, arguments: argparse.Namespace, folder: Path) -> Result:
    """Run one job on its own network."""
    workers, servers, epochs = arguments.workers, arguments.servers, arguments.epochs
    backend = "none" if job == ALONE else arguments.backend
    images = arguments.images // workers if job == ALONE else arguments.images
    make("cifar100", folder, images, images // VALIDATION, CLASSES)
    options = (
        f"--model {arguments.model} --batch-size {arguments.batch_size} --num-epochs {epochs} "
        f"--save-period 0 {COMMON} {JOBS[job]}"
    )

    def log(rank: int) -> Path:
        return folder / f"{rank}.json"

    def words(rank: int) -> list[str]:
        files = ["--data-dir", str(folder), "--logging-file", str(log(rank))]
        return [str(EXAMPLES / "cifar100" / "train_cifar100.py"), *options.split(), *files]

    with Network(workers + servers, arguments.rate) as network:
        with Processes(network, TIMEOUT) as processes:
            started = processes.start_workers(backend, workers, servers, words)
            counts = []
            for epoch in (1, epochs):
                read_line(started[0], f"epoch {epoch} of")
                counts.append(sum(network.traffic()[0]))
            for worker in started:
                worker.communicate()
                if worker.returncode:
                    raise RuntimeError(f"a worker ended with {worker.returncode}")
    records = read_log(str(log(0)))
    steps = sum(len(record["step_loss"]) for record in records[1:])
    return Result(
        job,
        statistics.median(record["seconds"] for record in records[1:]),
        records[-1]["train_loss"],
        records[-1]["validation_accuracy"],
        (counts[1] - counts[0]) / steps,
    )


def rows(results: Sequence[Result]) -> Iterator[dict[str, object]]:
    """Yield the table's rows, one for each result."""
    seconds = {r.job: r.seconds for r in results}
    for r in results:
        trained = r.job != ALONE  # there, each worker trains a model alone
        slow = seconds.get(BASELINE)
        yield {
            "job": r.job,
            "seconds per epoch": round(r.seconds, 2),
            f"x {BASELINE}": round(slow / r.seconds, 2) if slow else "",
            "training loss": round(r.train_loss, 3) if trained else "",
            "validation accuracy": f"{r.accuracy:.2%}" if trained else "",
            "MB per worker and step": round(r.worker_bytes / 1e6, 3),
        }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cifar_resnet20_v2", help="of GluonCV's zoo")
    parser.add_argument("--rate", type=bits, default="100M", help="of the links, bit/s")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--backend", choices=("server", "horovod"), default="server")
    parser.add_argument("--images", type=int, default=4096, help="per epoch, all workers together")
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    parser.add_argument("--epochs", type=int, default=5, help="the first is not timed")
    parser.add_argument("--only", default="", help="regular expression for names of jobs")
    parser.add_argument("--csv", help="file to write the table to")
    arguments = parser.parse_args()
    if arguments.epochs < 2:
        parser.error(f"--epochs must be at least 2, got {arguments.epochs}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: list[Result] = []
    for job in (job for job in JOBS if re.search(arguments.only, job)):
        print(f"{job} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                results.append(run(job, arguments, Path(folder)))
            except PermissionError as error:
                sys.exit(str(error))
            except (RuntimeError, TimeoutError) as error:
                print(f"{job}: {error}", file=sys.stderr)
                continue
        *_, row = rows(results)
        print_row(row, first=len(results) == 1)
    if not results:
        sys.exit("there are no results")
    if arguments.csv:
        write_csv(list(rows(results)), arguments.csv)


if __name__ == "__main__":
    main()
