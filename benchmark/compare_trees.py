"""Compares the speed of two source trees, side by side in one run.

    git worktree add /tmp/before HEAD~1
    sudo .venv/bin/python benchmark/compare_trees.py /tmp/before

The clusters of both trees run on the same hosts, in network namespaces with links of a given rate,
and take turns in random order: one exchanges gradients while the others wait. So other load on the
machine affects both trees. (A cluster that always runs first or last is about 2 % slower.) All
workers run the scripts of this tree, but import gluon_gc from their own tree. A tree without a
compiled library gets one. It needs root, iproute2 and PyTorch.

The table has medians over the rounds: seconds per exchange, as the slowest worker sees it, and
processor seconds of all processes of a cluster, per step. A ratio above 1 says that this tree is
slower. In parentheses are the quartiles of the ratio. MXNet's queueing is the processor time of the
thread that queues an exchange.

The workers keep the memory that they free. Otherwise glibc returns that of the gradients in each
step, or in none, depending on small differences in the order of allocations: up to a tenth of a
worker's processor time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

import numpy as np
from cluster import model_shapes
from methods import COMPRESSIONS
from network import Network, rates
from processes import HERE, PORT, Processes, read_line
from table import print_row

ROOT = HERE.parent
TORCH = ROOT / ".venv-torch" / "bin" / "python"
WARM_UP = 3
TIMEOUT = 1200  # seconds for one contest
USED, DROPPED = "gluon_gc.torch", "gluon_gc.torch dropped"
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
NAMES = {
    USED: "PyTorch's hook",
    DROPPED: "PyTorch's hook, dropped",
    "gluon_gc": "MXNet's servers",
    "gluon_gc queueing": "MXNet's queueing",
}
"""The names of the engines in the table. The gradients of a dropped exchange are never used."""


class Contest(NamedTuple):
    """Engines that take turns on one network, each in both trees."""

    engines: tuple[str, ...]
    compression: str
    backend: str
    rate: float
    workers: int
    servers: int

    def name(self, engine: str) -> str:
        """Return the name of an engine's row."""
        rate = "" if np.isinf(self.rate) else f", {self.rate / 1e6:g} Mbit/s"
        return f"{NAMES[engine]}, {self.compression}{rate}"


class Result(NamedTuple):
    """The result of one engine in one tree."""

    seconds: np.ndarray  # per exchange, one value for each round
    processor: float  # seconds per step


class Cluster:
    """The cluster of one engine in one tree. It waits until its turn."""

    def __init__(self, processes: Processes, workers: Sequence[subprocess.Popen]) -> None:
        self._processes, self._workers = processes, workers
        self._processor: list[float] = []

    def _answer(self) -> None:
        self._workers[0].stdin.write("\n")
        self._workers[0].stdin.flush()

    def take_turn(self) -> None:
        """Run one round."""
        if self._processor:
            self._answer()  # to the "end" of the last round
        read_line(self._workers[0], "begin")
        before = self._processes.processor_seconds()
        self._answer()
        read_line(self._workers[0], "end")
        self._processor.append(self._processes.processor_seconds() - before)

    def result(self, steps: int) -> Result:
        """End the workers and return the result. The first round was for warming up."""
        self._answer()
        seconds = [json.loads(read_line(worker, "seconds ")) for worker in self._workers]
        rounds = np.max(seconds, axis=0).reshape(-1, steps)
        return Result(np.median(rounds, axis=1)[1:], statistics.mean(self._processor[1:]) / steps)


def contests(arguments: argparse.Namespace) -> Iterator[Contest]:
    """Yield all contests."""
    workers, servers = arguments.workers, arguments.servers
    for compression, rate in product(("onebit", "topk 0.001"), arguments.rates):
        yield Contest((USED, DROPPED), compression, "torch", rate, workers, 0)
        yield Contest(("gluon_gc",), compression, "server", rate, workers, servers)
    for compression in ("fp32", "onebit", "topk 0.001"):
        yield Contest(("gluon_gc queueing",), compression, "server", float("inf"), 1, 1)


def measure(
    contest: Contest,
    trees: Sequence[Path],
    shapes: Sequence[Sequence[int]],
    arguments: argparse.Namespace,
) -> dict[tuple[str, int], Result]:
    """Run a contest; return the results by engine and number of the tree."""
    python = str(arguments.torch_python) if contest.backend == "torch" else sys.executable
    spec = {
        "options": {"compression_params": COMPRESSIONS[contest.compression]},
        "shapes": shapes,
        "rounds": 1 + arguments.rounds,
        "steps": arguments.steps,
        "warm_up": WARM_UP,
    }
    clusters: dict[tuple[str, int], Cluster] = {}
    with ExitStack() as stack:
        network = stack.enter_context(Network(contest.workers + contest.servers, contest.rate))
        for engine, number in product(contest.engines, range(len(trees))):
            port = PORT + 10 * len(clusters)
            processes = Processes(network, TIMEOUT, python, trees[number], port)
            stack.enter_context(processes)

            def words(rank: int, engine: str = engine) -> list[str]:
                own = {"engine": engine, "rank": rank}
                return [str(HERE / "exchange.py"), json.dumps({**spec, **own})]

            workers = processes.start_workers(
                contest.backend, contest.workers, contest.servers, words
            )
            clusters[engine, number] = Cluster(processes, workers)
        turns, order = list(clusters.values()), random.Random(0)
        for _ in range(spec["rounds"]):
            order.shuffle(turns)
            for cluster in turns:
                cluster.take_turn()
        return {key: cluster.result(arguments.steps) for key, cluster in clusters.items()}


def compared(name: str, this: np.ndarray, other: np.ndarray) -> dict[str, str]:
    """Return a row that compares values of both trees, one value for each round."""
    low, ratio, high = np.percentile(this / other, (25, 50, 75))
    return {
        "what": name,
        "this tree": f"{np.median(this):.4g}",
        "other tree": f"{np.median(other):.4g}",
        "ratio": f"{ratio:.2f} ({low:.2f} to {high:.2f})",
    }


def rows(contest: Contest, results: dict[tuple[str, int], Result]) -> Iterator[dict[str, str]]:
    """Yield the table's rows for a contest."""
    for engine in contest.engines:
        this, other = results[engine, 0], results[engine, 1]
        yield {
            **compared(contest.name(engine), this.seconds, other.seconds),
            "this, processor s": f"{this.processor:.3f}",
            "other, processor s": f"{other.processor:.3f}",
        }
    if DROPPED in contest.engines:
        costs = [results[DROPPED, tree].seconds / results[USED, tree].seconds for tree in (0, 1)]
        row = compared(f"{contest.name(DROPPED)}: in exchanges", *costs)
        yield {**row, "this, processor s": "", "other, processor s": ""}


def ensure_library(tree: Path) -> None:
    """Compile a tree's library if it is missing."""
    if (tree / "gluon_gc" / "libgluon_gc.so").exists():
        return
    cmake, build = [sys.executable, "-m", "cmake"], tree / "build" / "mx"
    (mxnet,) = importlib.util.find_spec("mxnet").submodule_search_locations
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DMXNET_DIR={mxnet}", f"-DPYTHON={sys.executable}"]
    for words in (
        ["-S", tree / "operators", "-B", build, *options],
        ["--build", build, "--parallel", str(os.cpu_count())],
        ["--install", build, "--prefix", tree / "gluon_gc"],
    ):
        subprocess.run([*cmake, *words], check=True, stdout=sys.stderr)


def commit(tree: Path) -> str:
    """Return a tree's commit with "-dirty" if files differ from it, or "no commit"."""
    words = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "no commit"


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="the root of the other tree")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each cluster")
    parser.add_argument("--steps", type=int, default=3, help="in a turn")
    parser.add_argument("--model", default="resnet18_v2", help="of Gluon's zoo, or a JSON file")
    parser.add_argument("--rates", type=rates, default="100M,1G", help="of the links, bit/s")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2, help="of MXNet's clusters")
    parser.add_argument("--only", default="", help="rows whose name this expression matches")
    parser.add_argument("--torch-python", type=Path, default=TORCH, help="PyTorch's Python")
    arguments = parser.parse_args()
    if not (arguments.other / "gluon_gc").is_dir():
        parser.error(f"{arguments.other} is not the root of a gluon_gc tree")
    if arguments.rounds < 1 or arguments.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    trees = [ROOT, arguments.other.resolve()]
    os.environ.pop("GLUON_GC_LIBRARY", None)  # each tree has its own
    os.environ.update(KEEP_MEMORY)
    os.environ["BYTEPS_FORCE_DISTRIBUTED"] = "1"  # one worker uses its server, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for tree in trees:
        ensure_library(tree)
    shapes = model_shapes(arguments.model)
    print(
        f"this tree: {commit(trees[0])}, other tree: {commit(trees[1])}; {arguments.workers} "
        f"workers, {arguments.rounds} rounds of {arguments.steps} steps\n"
    )
    printed = failed = 0
    for contest in contests(arguments):
        if not any(re.search(arguments.only, contest.name(engine)) for engine in contest.engines):
            continue
        try:
            results = measure(contest, trees, shapes, arguments)
        except (RuntimeError, TimeoutError) as error:
            print(f"{contest.name(contest.engines[0])}: {error}", file=sys.stderr)
            failed += 1
            continue
        for row in rows(contest, results):
            print_row(row, first=not printed)
            printed += 1
    sys.exit(failed > 0 or not printed)


if __name__ == "__main__":
    main()
