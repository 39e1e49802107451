"""Participant: one worker's part in the rounds of one kind, through an object store.

A round takes these steps, for each worker:

1. Read the results that others have written meanwhile, up to the open round.
2. Put a payload into the open round.
3. List the round until its result is there. Whoever sees that the round is complete writes the
   result, which only the first one can (create if absent).
4. For each of these results, get the payloads that it lists, and average them in its order. Each
   average is applied before the one after the next is made, so that two are in memory at most.

A round is complete when it has the payloads of all workers that put one into the round before, or
when `min_workers` have been there for `grace` seconds. It is never complete without `min_workers`.

One thread does all this. It retries until the store answers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Dict, Iterator, Sequence

import numpy as np

from ..exchange.statistics import Meter
from ..log import logger
from . import objects
from .objects import DamagedError, Object
from .packing import Arrays, Packing
from .patient_store import PatientStore, replaced
from .store import StoreError, transfer_seconds

_READERS = 8  # threads that get payloads
_DAY = 86400.0  # seconds
_LATE = 5  # rounds in a row between two warnings that payloads come too late
_SHORTEST, _LONGEST = 0.02, 1.0  # seconds between two listings of a round
_DECIDING_SECONDS = 30.0  # from a decider's listing to its result, without reading payloads

State = Dict[str, Arrays]
"""The shared state of an algorithm: arrays by kind and parameter."""
Header = Dict[str, Any]


class MissingError(RuntimeError):
    """The store lacks an object that a result lists."""


@dataclass(frozen=True)
class Settings:
    """How a worker takes part, as `Run` says it."""

    worker: str  # its name, which no other worker has, nor an earlier life of this one
    min_workers: int = 1
    grace: float = 30.0
    keep: int = 30


@dataclass(frozen=True)
class Contribution:
    """What a worker puts into a round: arrays, and what others should know about them."""

    values: Arrays
    weight: float
    about: Header = field(default_factory=dict)  # "steps", "seconds", "loss"


@dataclass
class Outcome:
    """What a worker learns from a round. Only the last one tells about its contribution."""

    mean: Arrays = field(default_factory=dict)  # empty if no payload has a weight
    state: State | None = None  # instead of the mean, if payloads of missed rounds are removed
    is_last: bool = False  # whether no average follows that this worker lacks
    counted: bool = False  # whether a round counts this worker's contribution
    arrived: bool = False  # whether the mean is of the round with this contribution
    nonfinite: str = ""  # the name of a parameter whose contribution has a NaN or an infinity


@dataclass
class Look:
    """What a round's folder has: workers with a payload, those that leave before it, a result."""

    payloads: dict[str, int] = field(default_factory=dict)  # their bytes, by worker
    leavers: set[str] = field(default_factory=set)
    has_result: bool = False

    @property
    def workers(self) -> set[str]:
        return set(self.payloads)


class _Removed(Exception):
    """A round's payloads are removed, because states after it are saved. Its result is not."""


class Participant:
    """Takes part in the rounds of one kind. `size` is the number of workers in the last round."""

    def __init__(
        self,
        store: PatientStore,
        kind: str,
        packing: Packing,
        settings: Settings,
        run: str,
        is_founder: bool,
    ) -> None:
        self._store, self.kind, self.packing, self.settings = store, kind, packing, settings
        self._run = run  # its identity, which all its objects have
        self._is_founder = is_founder  # whether this worker has created the run
        self.round, self.size, self.meter = 1, 1, Meter()
        self._saved = 0  # the last round with a saved state that this worker knows of
        self._saves: int | None = None  # the round whose state this worker must save
        self._saving: threading.Thread | None = None
        self._got: dict[str, Object] = {}  # payloads of the open round, by checksum
        self._partial_from = 0.0  # when it next removes what killed writers have left
        self._sent: tuple[Header, bytes] | None = None  # the payload of the round under way
        self._late: list[str] = []  # its payloads that came after the result, until the next one
        self._late_rounds, self._put_seconds = 0, 0.0  # how many in a row; of the last payload
        self.uploads_until = 0.0  # when the last upload must have ended, or has ended
        self._results: deque[Header] = deque()  # of the rounds whose averages this worker lacks
        self._lacks_state = False  # whether it lacks a state before them
        self._counted, self._nonfinite = False, ""  # what the last outcome tells

    def shares(self) -> Iterator[tuple[str, float]]:
        return self.packing.shares()

    # Joining and leaving

    def join(self, first: State) -> Outcome:
        """Return the newest saved state. `following` returns the averages since.

        The worker that has created the run saves `first` as the state before round 1. If it does
        not within the grace time, another one does.
        """
        state, deadline = None, time.monotonic() + self.settings.grace
        while state is None:
            number = self._newest_state()
            if number is not None:
                state = self._read_state(number)
            elif self._is_founder or time.monotonic() > deadline:
                if self._look(1).has_result and self._newest_state() is None:
                    raise MissingError(f"no state of '{self.kind}' is saved, but it has rounds")
                self._write_state(self._store, 0, first)
            else:
                self._store.sleep(_SHORTEST)
        self._follow()
        logger.debug("%s: %s joins in round %d", self.kind, self.settings.worker, self.round)
        return Outcome(state=state, is_last=not self._lacks)

    def leave(self) -> None:
        """Tell that nobody should wait for this worker in the open round, or in a later one."""
        self._skip_decided()
        name = objects.leaver_name(self.kind, self.round, self.settings.worker)
        self._store.put(name, objects.pack({"run": self._run}))
        logger.debug("%s: %s leaves before round %d", self.kind, self.settings.worker, self.round)

    def hand_over(self, contribution: Contribution) -> Outcome:
        """Leave after a round with this contribution, and do not wait for its average.

        If `take_part` has failed after it has packed the contribution, the round has that payload.
        After an upload that came too late, the next call puts a payload into a later round, so that
        as many rounds may be decided meanwhile.
        """
        self._require_same_run()
        is_new = self._sent is None
        if is_new:
            self._skip_decided()
            self._put(contribution)
        (header, data), self._sent = self._sent, None
        number, worker = header["round"], self.settings.worker
        look = self._look(number)
        if not look.has_result and look.payloads.get(worker) != len(data):
            # The same bytes: a decider may have read them.
            self._upload(objects.payload_name(self.kind, number, worker), data)
        self.round = max(self.round, number + 1)
        self.leave()  # others that leave need not wait for this worker to decide
        result, nonfinite = self._result_of_others(number), header["nonfinite"]
        counted = not nonfinite and (result is None or worker in _workers(result))
        if result is not None and not _lists(result, worker):
            self._late.append(objects.payload_name(self.kind, number, worker))
        if is_new and not counted:
            self._skip_decided()
            self.round += self.round - number
        return Outcome(is_last=True, counted=counted, nonfinite=nonfinite)

    def _result_of_others(self, number: int) -> Header | None:
        """The result of a round. None if its decider lists, or will list, this worker's payload.

        Another worker may have listed the round before, and may need long to read the payloads.
        """
        began = time.monotonic()
        while True:
            # Before the result, because a decider writes the result before it leaves.
            leavers = self._look(number + 1).leavers
            look, waited = self._look(number), time.monotonic() - began
            if look.has_result:
                return self._read_result(number)
            # With any number of payloads: `min_workers` may differ between workers.
            deciders = look.workers - look.leavers - leavers - {self.settings.worker}
            longest = _DECIDING_SECONDS + transfer_seconds(sum(look.payloads.values()))
            if not deciders or waited > longest:
                return None
            time.sleep(min(_LONGEST, max(_SHORTEST, waited / 10)))

    def _skip_decided(self) -> None:
        """Go on to the open round without the averages of the rounds before."""
        self.round = max(self.round, (self._newest_state() or 0) + 1)
        while self._look(self.round).has_result:
            self.round += 1

    # Rounds

    def take_part(self, contribution: Contribution, state: State | None) -> Outcome:
        """Contribute to a round, wait for its result, and return the first average.

        `following` returns the others. `state` is the state after the last average, if `saves` was
        True.
        """
        self._require_same_run()
        if state is not None:
            self._begin_to_save(state)
        self._follow()
        self._nonfinite = self._put(contribution)
        result = self._result_of_open_round()
        self._results.append(result)
        self._counted = self.settings.worker in _workers(result)
        self._note_late(_lists(result, self.settings.worker))
        self.meter.steps += 1
        return self.following()

    def _note_late(self, came_in_time: bool) -> None:
        self._late_rounds = 0 if came_in_time else self._late_rounds + 1
        if came_in_time:
            return
        self._late.append(objects.payload_name(self.kind, self.round, self.settings.worker))
        if self._late_rounds % _LATE == 0:
            logger.warning(
                "the last %d payloads of this worker came too late, the last one after an upload "
                "of %.1f s: give all workers a longer grace, or a longer time between rounds, or a "
                "stronger compressor",
                self._late_rounds,
                self._put_seconds,
            )

    def following(self) -> Outcome:
        """Return the next average that this worker lacks, of its contribution's round at last.

        If payloads are removed, or it has missed many rounds, return the newest state instead.
        """
        outcome = Outcome()
        try:
            outcome.mean, outcome.arrived = self._next_mean()
        except _Removed:
            while outcome.state is None:  # it may be removed when a newer one is there
                outcome.state = self._read_state(self._newest_state())
        if not (self._lacks or outcome.arrived):
            self._follow()
        if not self._lacks:
            self._sent, outcome.is_last = None, True
            outcome.counted, outcome.nonfinite = self._counted, self._nonfinite
        return outcome

    def _next_mean(self) -> tuple[Arrays, bool]:
        """The next average, and whether it is of the round of this worker's contribution."""
        if self._lacks_state:
            raise _Removed
        result = self._results[0]
        mean = self._mean(result)
        self._results.popleft()
        self.size = max(1, len(_workers(result)))
        is_own = result["round"] == self.round
        if is_own:
            self.round += 1
            self._got.clear()
        return mean, is_own

    @property
    def _lacks(self) -> bool:
        return self._lacks_state or bool(self._results)

    @property
    def saves(self) -> bool:
        """Whether this worker must save the state after the last average."""
        return self._saves is not None

    def _follow(self) -> None:
        """Read results up to the open round. After `keep` of them, go on after the newest state."""
        result = self._read_result(self.round)
        while result is not None:
            self._results.append(result)
            self.round += 1
            if len(self._results) == self.settings.keep:
                newest = self._newest_state()
                if newest is not None and newest >= self.round:
                    self._results.clear()
                    self._lacks_state, self.round = True, newest + 1
            result = self._read_result(self.round)

    def _put(self, contribution: Contribution) -> str:
        """Put a payload into the open round. Return the name of a parameter with a NaN, or ""."""
        settings, meter = self.settings, self.meter
        with meter.timing("compress_seconds"):
            packed = self.packing.pack(contribution.values)
        payloads = [] if packed.nonfinite else packed.payloads
        header = {
            "run": self._run,
            "worker": settings.worker,
            "round": self.round,
            "weight": contribution.weight,
            **contribution.about,
            "nonfinite": packed.nonfinite,
            "lengths": [len(payload) for payload in payloads],
        }
        name = objects.payload_name(self.kind, self.round, settings.worker)
        data = objects.pack(header, *payloads)
        payload = objects.unpack(name, data)
        self._got[payload.digest] = payload
        logger.debug("%s: round %d begins", self.kind, self.round)
        self._sent = header, data
        self._upload(name, data)
        late, self._late = self._late, []
        self._store.delete(late)  # nobody waits for them any more, and clean-up may have passed
        meter.pushed_bytes += len(data)
        logger.debug("%s: the payload of round %d is put", self.kind, self.round)
        return packed.nonfinite

    def _upload(self, name: str, data: bytes) -> None:
        began = time.monotonic()
        self.uploads_until = began + transfer_seconds(len(data))
        try:
            self._store.put(name, data)
        finally:
            self.uploads_until = time.monotonic()
            self._put_seconds = self.uploads_until - began

    def _result_of_open_round(self) -> Header:
        """Wait for the result of the open round, or write it."""
        settings, began = self.settings, time.monotonic()
        with self.meter.timing("wait_seconds"):
            enough_since: float | None = None
            has_warned = False
            before = self._look(self.round - 1)
            while True:
                open_round = self._look(self.round)
                if open_round.has_result:
                    return self._read_result(self.round)
                present = open_round.workers
                now = time.monotonic()
                if len(present) >= settings.min_workers:
                    self._store.note_progress()
                    enough_since = now if enough_since is None else enough_since
                    graced = now - enough_since >= settings.grace
                    if graced or self._has_all(open_round, before):
                        return self._decide(open_round)
                else:
                    self._store.note_waiting()
                    if now - began > settings.grace and not has_warned:
                        has_warned = True
                        logger.warning(
                            "round %d has %d workers of min_workers %d: training goes on locally",
                            self.round,
                            len(present),
                            settings.min_workers,
                        )
                self._store.sleep(min(_LONGEST, max(_SHORTEST, (now - began) / 10)))

    def _has_all(self, open_round: Look, before: Look) -> bool:
        """Whether all are there that put a payload into the round before, even if it was late."""
        gone = open_round.leavers | before.leavers
        if not before.workers or before.workers - gone - open_round.workers:
            return False
        late = self._look(self.round - 1).workers
        return not late - gone - open_round.workers

    def _decide(self, open_round: Look) -> Header:
        """Write the result of the open round, or read that of who was faster."""
        logger.debug("%s: round %d is complete", self.kind, self.round)
        name = objects.result_name(self.kind, self.round)
        if self._look(self.round + 1).has_result and self._store.get(name) is None:
            raise MissingError(f"object '{name}' is missing, but the next round has a result")
        counted, excluded, payloads = [], {}, dict.fromkeys(sorted(open_round.workers))
        _, own = self._sent
        if open_round.payloads.get(self.settings.worker) == len(own):  # it is not cut short
            payloads[self.settings.worker] = own
        others = [worker for worker, data in payloads.items() if data is None]
        payloads.update(zip(others, self._get_all(self.round, others)))
        for worker, data in payloads.items():
            try:
                counted.append(self._entry(worker, data))
            except ValueError as error:  # DamagedError is one
                excluded[worker] = str(error)
        logger.debug("%s: the payloads of round %d are read", self.kind, self.round)
        header = {
            "run": self._run,
            "round": self.round,
            "decider": self.settings.worker,
            "counted": counted,
            "excluded": excluded,
            "left": sorted(open_round.leavers),
        }
        if not self._store.put(name, objects.pack(header), create=True):
            header = self._read_result(self.round)
            if header["decider"] != self.settings.worker:
                return header  # else the store's first answer was lost
        logger.debug("%s: the result of round %d is written", self.kind, self.round)
        self._saved = max(self._saved, self._newest_state() or 0)
        keep = self.settings.keep
        if self.round % keep == 0 or self.round - self._saved >= 2 * keep:  # else one has crashed
            self._saves = self.round
        return header

    def _entry(self, worker: str, data: bytes | None) -> Header:
        """What a result tells about a payload. ValueError if it must not count."""
        name = objects.payload_name(self.kind, self.round, worker)
        if data is None:
            raise ValueError(f"object '{name}' is missing")
        payload = objects.unpack(name, data)
        header, body, digest = payload
        if header["run"] != self._run:
            raise ValueError("its run has been removed, and this is another one")
        if header["nonfinite"]:
            raise ValueError(f"parameter {header['nonfinite']} has a NaN or an infinity")
        if not (0 <= header["weight"] < float("inf")):
            raise ValueError(f"its weight is {header['weight']}")
        with self.meter.timing("decompress_seconds"):
            for _ in self.packing.unpack(header["lengths"], body):
                pass
        self._got[digest] = payload
        told = {key: header.get(key) for key in ("weight", "steps", "seconds", "loss")}
        return {"worker": worker, "digest": digest, "bytes": len(data), **told}

    def _mean(self, result: Header) -> Arrays:
        """The average of a round. An empty dict if no payload has a weight."""
        number, entries = result["round"], result["counted"]
        for worker, why in result["excluded"].items():
            logger.warning("round %d leaves out worker %s: %s", number, worker, why)
        if not sum(entry["weight"] for entry in entries):
            return {}
        payloads = dict(self._got)
        missing = [entry for entry in entries if entry["digest"] not in payloads]
        names = [entry["worker"] for entry in missing]
        for entry, data in zip(missing, self._get_all(number, names)):
            name = objects.payload_name(self.kind, number, entry["worker"])
            if data is None:
                self._require_not_removed(number)
                raise MissingError(f"object '{name}' is missing, but the round's result lists it")
            payload = objects.unpack(name, data)
            if payload.digest != entry["digest"]:
                raise DamagedError(f"object '{name}' is not the one that the round's result lists")
            payloads[payload.digest] = payload
        weighted = []
        for entry in entries:
            header, body, _ = payloads[entry["digest"]]
            weighted.append((entry["weight"], header["lengths"], body))
        with self.meter.timing("decompress_seconds"):
            return self.packing.mean(weighted)

    # Objects

    def _get_all(self, number: int, workers: Sequence[str]) -> list[bytes | None]:
        names = [objects.payload_name(self.kind, number, worker) for worker in workers]
        found = self._read_all(names)
        self.meter.pulled_bytes += sum(len(data) for data in found if data is not None)
        return found

    def _read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Read objects in several threads, for which Python does not wait at its end."""
        reads: list[Future[bytes | None]] = [Future() for _ in names]
        open_reads: SimpleQueue[tuple[str, Future[bytes | None]]] = SimpleQueue()
        for read in zip(names, reads):
            open_reads.put(read)

        def read_some() -> None:
            with suppress(Empty):
                while True:
                    name, read = open_reads.get_nowait()
                    try:
                        read.set_result(self._store.get(name))
                    except BaseException as error:
                        read.set_exception(error)

        for _ in range(min(_READERS, len(names)) - 1):
            threading.Thread(target=read_some, name=f"get {self.kind}", daemon=True).start()
        read_some()
        return [read.result() for read in reads]

    def _look(self, number: int) -> Look:
        """List the objects of a round."""
        look, folder = Look(), objects.round_folder(self.kind, number)
        for entry in self._store.list(folder):
            what, _, worker = entry.name[len(folder) :].partition("/")
            if what == "result":
                look.has_result = True
            elif objects.is_worker(worker) and what == "payloads":
                look.payloads[worker] = entry.size
            elif objects.is_worker(worker):
                look.leavers.add(worker)
        return look

    def _read_result(self, number: int) -> Header | None:
        name = objects.result_name(self.kind, number)
        data = self._store.get(name)
        if data is None:
            return None
        header = objects.unpack(name, data).header
        self._require_run(header)
        return header

    def _require_same_run(self) -> None:
        data = self._store.get_kept(objects.JOB)
        self._require_run(objects.unpack(objects.JOB, data).header)

    def _require_run(self, header: Header) -> None:
        if header.get("run") != self._run:
            raise replaced(self._store.url)

    # Saved states

    def _require_not_removed(self, number: int) -> None:
        newest = self._newest_state()
        if newest is not None and newest >= number:
            raise _Removed

    def _newest_state(self) -> int | None:
        return max(self._states(self._store), default=None)

    def _states(self, store: PatientStore) -> list[int]:
        entries = store.list(objects.states_folder(self.kind))
        numbers = (objects.last_part(entry.name) for entry in entries)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _read_state(self, number: int) -> State | None:
        """Read a saved state, and go on after it. None if it has been removed."""
        name = objects.state_name(self.kind, number)
        data = self._store.get(name)
        if data is None:
            return None
        header, body, _ = objects.unpack(name, data)
        self._require_run(header)
        state: State = {}
        for kind, parameter, dtype, size in header["arrays"]:
            length = size * np.dtype(dtype).itemsize
            state.setdefault(kind, {})[parameter] = np.frombuffer(body[:length], dtype).copy()
            body = body[length:]
        self._saved, self._lacks_state = max(self._saved, number), False
        if self._saves is not None and self._saves <= number:
            self._saves = None
        if number >= self.round:
            self.round = number + 1
            self._got.clear()
        while self._results and self._results[0]["round"] <= number:
            self._results.popleft()
        return state

    def _begin_to_save(self, state: State) -> None:
        """Save the state after a round on a thread, because it is large."""
        number, self._saves = self._saves, None
        if self._saving is None or not self._saving.is_alive():
            self._saving = threading.Thread(
                target=self._save, args=(number, state), name=f"save {self.kind}", daemon=True
            )
            self._saving.start()

    def _save(self, number: int, state: State) -> None:
        """Save a state, and remove the payloads that nobody needs any more.

        Results stay, so that no round can be decided twice. If the store fails, a later decider
        saves a state.
        """
        store = self._store.impatient()
        try:
            self._write_state(store, number, state)
            self._clean_up(store)
        except StoreError as error:
            logger.warning("%s: the state after round %d is not saved", error, number)

    def _clean_up(self, store: PatientStore) -> None:
        states = self._states(store)
        last_but_one = states[-2:][0]
        for old in range(states[0] + 1, last_but_one + 1):
            result = objects.result_name(self.kind, old)
            entries = store.list(objects.round_folder(self.kind, old))
            store.delete(entry.name for entry in entries if entry.name != result)
            logger.debug("%s: the payloads of round %d are removed", self.kind, old)
        store.delete(objects.state_name(self.kind, old) for old in states[:-2])
        if time.monotonic() > self._partial_from:
            self._partial_from = time.monotonic() + _DAY
            store.delete_partial(f"{self.kind}/", _DAY)
        logger.debug("%s: the states before round %d are removed", self.kind, last_but_one)

    def _write_state(self, store: PatientStore, number: int, state: State) -> None:
        arrays = [
            (kind, name, array) for kind, named in state.items() for name, array in named.items()
        ]
        header = {
            "run": self._run,
            "round": number,
            "arrays": [[kind, name, array.dtype.name, array.size] for kind, name, array in arrays],
        }
        data = objects.pack(header, *(array.view(np.uint8).data for _, _, array in arrays))
        store.put(objects.state_name(self.kind, number), data, create=True)
        self._saved = max(self._saved, number)
        logger.debug("%s: the state after round %d is saved", self.kind, number)


def _workers(result: Header) -> list[str]:
    return [entry["worker"] for entry in result["counted"]]


def _lists(result: Header, worker: str) -> bool:
    """Whether a worker's payload was there in time, damaged or not."""
    return worker in {*_workers(result), *result["excluded"]}
