"""Kills each node of a small cluster in each phase of a training run, and reports the outcome.

    python -m tests.launch.kill_matrix [--jobs 4] [--only "server 0"] [--phase step]
        [--local-steps 2]

Each node runs under its own `bpslaunch --max-restarts`, as on separate machines. A cell passes if:

- all processes end with exit code 0, and the weights equal those of an undisturbed run;
- each node that ended because of another node has named that node, within 2 s of a kill;
- no node restarted, if the victim was stopped for less than PS_HEARTBEAT_TIMEOUT.

A server that is killed after the workers have finished may be restarted alone, and report that.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

from benchmark.launched import Launched, Line
from gluon_gc.launch.leaving import ALONE

TRAINEE = Path(__file__).resolve().parents[2] / "benchmark" / "trainee.py"
NODES = ("scheduler", "server 0", "worker 0", "worker 1")
PHASES = ("rendezvous", "broadcast", "step", "saving", "shutdown")
SIGNALS = ("KILL", "TERM", "STOP 5 s", "STOP 30 s")
STEPS = 6
MAX_RESTARTS = 3
PATIENCE = 200  # seconds for a cell, counted from the signal
SOON = 2.0  # seconds within which all must end after a process is killed
HEARTBEAT = 10  # seconds, PS_HEARTBEAT_TIMEOUT
FULL_HEAD = (
    "| in | to | signal | others end, s | and say | restarts | all done, s | as it should be |\n"
    "|---|---|---|---|---|---|---|---|"
)


class Cell(NamedTuple):
    """A victim, the phase and the signal; "STOP n s" stops the victim for n seconds."""

    phase: str
    victim: str
    how: str

    @property
    def held(self) -> str:
        """The worker that is held in the phase, so that the others wait for it."""
        return self.victim if self.victim.startswith("worker") else "worker 1"

    @property
    def late(self) -> str:
        """The node that joins the rendezvous only after the signal."""
        return "worker 0" if self.victim == "worker 1" else "worker 1"

    @property
    def stopped(self) -> int:
        """For how many seconds the victim is stopped."""
        return int(self.how.split()[1]) if self.how.startswith("STOP") else 0


class Outcome(NamedTuple):
    """The outcome of a cell."""

    cell: Cell
    codes: dict[str, int | None]
    restarts: dict[str, int]
    ends: dict[str, tuple[float, str]]  # of the other nodes: after how many seconds, and the reason
    seconds: float  # until all nodes were done
    sums: list[str]

    def faults(self, sums: list[str], soon: float = SOON) -> list[str]:
        """Return the violated rules; `sums` are the checksums of an undisturbed run."""
        found = [f"{node} hangs" for node, code in self.codes.items() if code is None]
        bad = {node: code for node, code in self.codes.items() if code}
        if self.cell.phase == "shutdown" and bad == {"server 0": ALONE} and not self.ends:
            bad = {}
        found += [f"{node} ended with {code}" for node, code in bad.items()]
        found += [] if self.sums == sums else ["wrong weights"]
        for node, (after, why) in self.ends.items():
            if self.cell.victim not in why:
                found.append(f"{node} says {why!r}")
            if not self.cell.stopped and after > soon:
                found.append(f"{node} ended after {after:.1f} s")
        if 0 < self.cell.stopped < HEARTBEAT and any(self.restarts.values()):
            found.append("it was restarted")
        return found

    @property
    def after(self) -> str:
        """When the last node that ended because of the victim had ended; "" if none did."""
        return f"{max(after for after, _ in self.ends.values()):.1f}" if self.ends else ""

    def times(self, sums: list[str]) -> str:
        """When the other nodes had ended and when all were done; or the faults."""
        return "; ".join(self.faults(sums)) or f"{self.after or '–'}, {self.seconds:.0f}"

    def row(self, sums: list[str]) -> str:
        """A row of the full table."""
        columns = [
            *self.cell,
            self.after,
            "; ".join(sorted({re.sub(r"^.*? ends: ", "", why) for _, why in self.ends.values()})),
            str(max(self.restarts.values())),
            f"{self.seconds:.0f}",
            "; ".join(self.faults(sums)) or "yes",
        ]
        return f"| {' | '.join(columns)} |"


def run(folder: Path, cell: Cell, local_steps: int | None = None) -> Outcome:
    """Train while this cell's signal is sent. With `local_steps`, the algorithm has this H."""
    command = _command(folder, local_steps)
    with Launched(folder, workers=2, servers=1, PS_HEARTBEAT_TIMEOUT=HEARTBEAT) as nodes:
        if cell.phase == "rendezvous":
            others = [node for node in NODES if node != cell.late]
            _start(nodes, others, command)
            for node in others[1:]:
                nodes.wait_until_said("scheduler", f"{node} has come", PATIENCE)
            began = _send(nodes, cell)
            _start(nodes, [cell.late], command)
        else:
            _start(nodes, NODES, [*command, "--phase", cell.phase, "--held", cell.held[-1]])
            at = [folder / f"at.{rank}" for rank in range(2)]
            nodes.wait_until(lambda: all(file.exists() for file in at), cell.phase, PATIENCE)
            time.sleep(0.5)  # until the other worker waits for the held one
            began = _send(nodes, cell)
            (folder / "go").touch()
        codes = nodes.codes(PATIENCE)
        seconds = time.monotonic() - began
        time.sleep(0.1)  # until the last lines have been read
        ends = {node: _first_end(nodes.said[node]) for node in NODES if node != cell.victim}
        return Outcome(
            cell,
            codes,
            {node: nodes.restarts(node) for node in NODES},
            {node: (end[0] - began, end[1]) for node, end in ends.items() if end},
            seconds,
            checksums(folder),
        )


def undisturbed(folder: Path, local_steps: int | None = None) -> list[str]:
    """Return the checksums of an undisturbed run."""
    with Launched(folder, workers=2, servers=1) as nodes:
        _start(nodes, NODES, _command(folder, local_steps))
        assert set(nodes.codes(PATIENCE).values()) == {0}, nodes.logs()
    return checksums(folder)


def _command(folder: Path, local_steps: int | None) -> list[str]:
    more = [] if local_steps is None else ["--local-steps", str(local_steps)]
    return [sys.executable, str(TRAINEE), str(folder), "--steps", str(STEPS), *more]


def checksums(folder: Path) -> list[str]:
    """Return the checksums that the workers wrote."""
    files = [folder / f"sum.{rank}" for rank in range(2)]
    return [file.read_text() if file.exists() else "" for file in files]


def _start(nodes: Launched, names: Sequence[str], command: list[str]) -> None:
    for node in names:
        nodes.launch(node, command if node.startswith("worker") else (), MAX_RESTARTS)


def _send(nodes: Launched, cell: Cell) -> float:
    """Send the signal, and schedule SIGCONT for a stopped node; returns the time of the signal."""
    pid = nodes.child(cell.victim)
    os.kill(pid, getattr(signal, f"SIG{cell.how.split()[0]}"))
    if cell.stopped:
        threading.Timer(cell.stopped, os.kill, (pid, signal.SIGCONT)).start()
    return time.monotonic()


def _first_end(said: list[Line]) -> tuple[float, str] | None:
    """Return when a node ended for the first time, and the last line it printed."""
    why = ""
    for when, text in said:
        if "; restart 1 of " in text:
            return when, why
        why = re.sub(r"^(gluon_gc: )?(server: |\w*Error: )?", "", text) if text.strip() else why
    return None


def cells(phases: Sequence[str], victims: Sequence[str], signals: Sequence[str]) -> Iterator[Cell]:
    """Return the cells of all combinations."""
    return itertools.starmap(Cell, itertools.product(phases, victims, signals))


def print_table(outcomes: Sequence[Outcome], sums: list[str]) -> None:
    """Print the table of docs/benchmarks/faults.md, with one column per signal."""
    signals = list(dict.fromkeys(outcome.cell.how for outcome in outcomes))
    print(f"\n| in | to | {' | '.join(signals)} |\n|---|---|{'---|' * len(signals)}")
    of_row = itertools.groupby(outcomes, key=lambda outcome: outcome.cell[:2])
    for (phase, victim), row in of_row:
        print(f"| {phase} | {victim} | {' | '.join(o.times(sums) for o in row)} |")


def main() -> int:
    """Run the cells that the arguments select, by default all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4, help="cells side by side")
    parser.add_argument("--phase", choices=PHASES, action="append")
    parser.add_argument("--only", choices=NODES, action="append", help="who is killed")
    parser.add_argument("--signal", choices=SIGNALS, action="append")
    parser.add_argument("--local-steps", type=int, metavar="H", help="exchange every H steps")
    parser.add_argument("--logs", type=Path, help="a new folder that keeps what all have said")
    args = parser.parse_args()
    asked = cells(args.phase or PHASES, args.only or NODES, args.signal or SIGNALS)
    with tempfile.TemporaryDirectory() as scratch:
        folders = args.logs or Path(scratch)

        def folder(name: str) -> Path:
            path = folders / name.replace(" ", "")
            path.mkdir(parents=True)
            return path

        sums = undisturbed(folder("undisturbed"), args.local_steps)
        print(FULL_HEAD, flush=True)
        outcomes = []
        with ThreadPoolExecutor(args.jobs) as pool:
            for outcome in pool.map(
                lambda cell: run(folder("-".join(cell)), cell, args.local_steps), asked
            ):
                print(outcome.row(sums), flush=True)
                outcomes.append(outcome)
    print_table(outcomes, sums)
    bad = sum(bool(outcome.faults(sums)) for outcome in outcomes)
    print(f"\n{bad} of {len(outcomes)} are not as they should be")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
