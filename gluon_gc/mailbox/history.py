"""The history of a run, read from its objects: rows about its rounds and its workers."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, Iterator, Sequence

from . import objects
from .run import FORMAT
from .store import Entry, Store

_NOT_SHOWN = ("name", "shape", "dtype", "hierarchical", "exchange", "nesterov", "compressor")

_OBJECT = re.compile(r"((?:shard-[^/]+/)?[^/]+)/(?:rounds|states)/(\d+)/?(\w*)/?(.*)")
_MOST = 200  # rounds that are read at once

Header = Dict[str, Any]


@dataclass(frozen=True)
class RoundRow:
    """A round that has a result."""

    kind: str
    round: int
    time: datetime  # of the result, by the store's clock
    seconds: float | None  # since the result of the round before
    weight: float
    bytes: int
    loss: float | None  # the mean of the losses that were reported
    counted: list[Header]  # the entries of the result
    excluded: dict[str, str]  # by worker, why
    late: list[str]  # workers whose payload came after the result
    joined: list[str]  # workers with a payload, but none in the round before
    gone: list[str]  # workers without a payload, but with one in the round before


@dataclass(frozen=True)
class WorkerRow:
    """A worker, and the last round that counted it.

    Its status is "counted", "left", "excluded" or "late" in the last round, "back" in the open one,
    or "missing".
    """

    kind: str
    worker: str
    round: int
    share: float | None  # of the weight of the last round
    steps: int | None
    steps_per_second: float | None
    loss: float | None
    status: str
    since: int | None  # the first round that has not counted it since then
    since_time: datetime | None


@dataclass(frozen=True)
class OpenRow:
    """The round that has no result yet."""

    kind: str
    round: int
    present: dict[str, datetime]  # by worker, when it has put its payload
    awaited: list[str]  # workers of the round before that are not present


@dataclass
class Rounds:
    """The rounds of one kind, as far as they are known."""

    results: dict[int, Header] = field(default_factory=dict)
    times: dict[int, datetime] = field(default_factory=dict)  # of the results
    payloads: dict[int, dict[str, datetime]] = field(default_factory=dict)
    leavers: dict[int, set[str]] = field(default_factory=dict)  # who left before a round

    @property
    def last(self) -> int:
        return max(self.results, default=0)

    @property
    def open(self) -> int:
        return self.last + 1

    def entries(self, number: int) -> dict[str, Header]:
        """What the result of a round tells about each worker that it counts."""
        counted = self.results[number]["counted"] if number in self.results else []
        return {entry["worker"]: entry for entry in counted}

    def present(self, number: int) -> set[str]:
        """The workers that have put a payload, whether it counts or not."""
        excluded = self.results[number]["excluded"] if number in self.results else ()
        return {*self.entries(number), *excluded, *self.payloads.get(number, ())}

    def left(self, number: int) -> set[str]:
        """The workers that left before a round."""
        told = self.results[number]["left"] if number in self.results else ()
        return {*told, *self.leavers.get(number, ())}


class History:
    """Reads the last rounds of a run, again and again.

    ValueError if there is no run, if another version of gluon_gc has made it, or if an object is
    damaged.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # By kind, as of the last `read`. A shard's kinds begin with its folder.
        self.rounds: defaultdict[str, Rounds] = defaultdict(Rounds)
        found = [(name, store.get(name)) for name in self._job_names()]
        self.jobs = [objects.unpack(name, data).header for name, data in found if data is not None]
        if not self.jobs:
            raise ValueError(f"no run at {store.url}")
        for job in self.jobs:
            if job["format"] != FORMAT:
                raise ValueError(
                    f"the run at {store.url} has format {job['format']}, of gluon_gc "
                    f"{job['version']}, but this version reads format {FORMAT}"
                )

    def _job_names(self) -> Iterator[str]:
        yield objects.JOB
        for folder in self._store.folders(""):
            if folder.startswith("shard-"):
                yield f"{folder}/{objects.JOB}"

    def read(self) -> None:
        """Read the objects that are new in the store."""
        results: defaultdict[str, dict[int, Entry]] = defaultdict(dict)  # by kind and round
        for entry in self._store.list(""):
            match = _OBJECT.fullmatch(entry.name)
            if match is None:
                continue
            kind, number, what, worker = match[1], int(match[2]), match[3], match[4]
            rounds = self.rounds[kind]
            if what == "result":
                results[kind][number] = entry
            elif not objects.is_worker(worker):
                continue
            elif what == "payloads":
                rounds.payloads.setdefault(number, {})[worker] = entry.modified
            elif what == "leavers":
                rounds.leavers.setdefault(number, set()).add(worker)
        for kind, entries in results.items():
            rounds = self.rounds[kind]
            for number in sorted(entries.keys() - rounds.results.keys())[-_MOST:]:
                entry = entries[number]
                data = self._store.get(entry.name)
                if data is not None:  # else somebody has removed the run
                    rounds.results[number] = objects.unpack(entry.name, data).header
                    rounds.times[number] = entry.modified


def run_row(url: str, jobs: Sequence[Header]) -> Header:
    """The settings of a run, from its job or from those of its shards."""
    framework, algorithm, parameters, arrays = "", {}, 0, 0
    compressors: Counter[str] = Counter()
    for subject, texts in (fact for job in jobs for fact in job["facts"]):
        # A value that is not JSON was too long, and is given by its checksum.
        fact = {key: text if text[:1] == "(" else json.loads(text) for key, text in texts.items()}
        if subject == "the algorithm":
            algorithm = fact
        elif "framework" in fact:
            framework = fact["framework"]
        elif "shape" in fact:
            parameters, arrays = parameters + math.prod(fact["shape"]), arrays + 1
            options = [f"{k}={v}" for k, v in fact.items() if v and k not in _NOT_SHOWN]
            compressors[" ".join([fact.get("compressor") or "none", *options])] += 1
    return {
        "url": url,
        "version": jobs[0]["version"],
        "framework": framework,
        "parameters": parameters,
        "arrays": arrays,
        "algorithm": algorithm,
        "compressors": dict(compressors),
    }


def round_rows(kind: str, rounds: Rounds) -> list[RoundRow]:
    """A row for each round that has a result."""
    rows = []
    for number, result in sorted(rounds.results.items()):
        entries, time = result["counted"], rounds.times[number]
        losses = [entry["loss"] for entry in entries if entry["loss"] is not None]
        present, former = rounds.present(number), rounds.present(number - 1)
        has_former = number - 1 in rounds.results
        rows.append(
            RoundRow(
                kind=kind,
                round=number,
                time=time,
                seconds=(time - rounds.times[number - 1]).total_seconds() if has_former else None,
                weight=sum(entry["weight"] for entry in entries),
                bytes=sum(entry["bytes"] for entry in entries),
                loss=sum(losses) / len(losses) if losses else None,
                counted=entries,
                excluded=result["excluded"],
                late=sorted(present - set(rounds.entries(number)) - set(result["excluded"])),
                joined=sorted(present - former) if has_former else [],
                gone=sorted(former - present),
            )
        )
    return rows


def worker_rows(kind: str, rounds: Rounds) -> list[WorkerRow]:
    """A row for each worker that a round has counted, the last ones first."""
    counted: defaultdict[str, list[int]] = defaultdict(list)  # by worker, the rounds
    for number in sorted(rounds.results):
        for worker in rounds.entries(number):
            counted[worker].append(number)
    weight = sum(entry["weight"] for entry in rounds.entries(rounds.last).values())
    rows = []
    for worker, numbers in counted.items():
        entries = [rounds.entries(number)[worker] for number in numbers[-2:]]
        number, newest = numbers[-1], entries[-1]
        is_last = number == rounds.last
        rows.append(
            WorkerRow(
                kind=kind,
                worker=worker,
                round=number,
                share=newest["weight"] / weight if is_last and weight else None,
                steps=newest["steps"],
                steps_per_second=_steps_per_second(entries),
                loss=newest["loss"],
                status=_status(rounds, worker, number, is_last),
                since=None if is_last else number + 1,
                since_time=None if is_last else rounds.times.get(number + 1),
            )
        )
    return sorted(rows, key=lambda row: (-row.round, row.worker))


def open_row(kind: str, rounds: Rounds) -> OpenRow:
    """The workers of the open round."""
    present = rounds.payloads.get(rounds.open, {})
    gone = rounds.left(rounds.open - 1) | rounds.left(rounds.open)
    awaited = rounds.present(rounds.open - 1) - gone - set(present)
    return OpenRow(kind, rounds.open, dict(sorted(present.items())), sorted(awaited))


def _status(rounds: Rounds, worker: str, number: int, is_last: bool) -> str:
    """What became of a worker since round `number`, the last one that counted it."""
    if any(worker in rounds.left(later) for later in range(number + 1, rounds.open + 1)):
        return "left"
    if is_last:
        return "counted"
    if worker in rounds.results[rounds.last]["excluded"]:
        return "excluded"
    if worker in rounds.present(rounds.last):
        return "late"
    return "back" if worker in rounds.present(rounds.open) else "missing"


def _steps_per_second(entries: list[Header]) -> float | None:
    """The speed between two entries of a worker. None if they do not tell it."""
    if len(entries) < 2 or not all(entry["seconds"] for entry in entries):
        return None
    before, after = entries
    seconds = after["seconds"] - before["seconds"]
    return (after["steps"] - before["steps"]) / seconds if seconds > 0 else None
