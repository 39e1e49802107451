"""Run: this process as a worker of a run, whose workers share an object store."""

from __future__ import annotations

import copy
import numbers
import os
import re
import socket
import threading
import time
import uuid
from typing import Any, Callable, Iterator, Mapping, Protocol, TypeVar

import xxhash

from ..algorithms.base import Algorithm, Shapes
from ..compression import CompressionParams
from ..exchange.agreement import Facts, difference, stated
from ..log import logger
from ..options import is_whole
from ..version import __version__
from . import objects
from .packing import Packing
from .participant import Participant, Settings
from .patient_store import PatientStore
from .signals import Signals
from .store import Store

FORMAT = 1
_LEAVING_SECONDS = 60.0  # besides those of uploads: a folder on a network may never answer
_POLL = 0.1  # seconds between two looks at a worker that leaves
Answer = TypeVar("Answer")


class Site(Protocol):
    """The workers of this site, whose gradients are averaged as usual."""

    is_first: bool
    size: int

    def share(self, make: Callable[[], Answer]) -> Answer:
        """Call a function in the first worker, and return its result, or its error, in all."""


class Alone:
    """A site of one worker."""

    is_first, size = True, 1

    def share(self, make: Callable[[], Answer]) -> Answer:
        return make()


class Run:
    """A run, and this worker's settings in it.

    Parameters
    ----------
    url : str
        The store: "s3://bucket/run1", "gs://...", "az://...", "file:///folder" or a folder.
    framework : str
        All workers must have the same.
    min_workers : int
        A round needs this number of workers.
    grace : float
        The seconds that a round waits for missing workers.
    keep : int
        The number of rounds between two saved states.
    samples_per_step : float
        The samples of a step of one process, by which workers are weighted. If all make equally
        large steps, it may stay 1.
    worker_name : str, optional
        The beginning of this worker's name. By default the name of its machine.
    site : Site, optional
        The workers that share this worker's parameters.

    Raises
    ------
    ValueError, TypeError
        A setting is wrong, or the store cannot create objects only if they are absent.
    StoreError
        The store does not answer, or refuses.
    """

    def __init__(
        self,
        url: str,
        framework: str,
        min_workers: int = 1,
        grace: float = 30.0,
        keep: int = 30,
        samples_per_step: float = 1,
        worker_name: str | None = None,
        site: Site | None = None,
    ) -> None:
        for name, value in (("min_workers", min_workers), ("keep", keep)):
            if not is_whole(value) or value < 1:
                raise ValueError(f"{name} must be a whole number > 0, got {value!r}")
        for name, value in (("grace", grace), ("samples_per_step", samples_per_step)):
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not value > 0:
                raise ValueError(f"{name} must be a number > 0, got {value!r}")
        self.given: Any = None  # the arguments of `connect`
        self._site: Site = site or Alone()
        self._whole_site = self._site
        self.framework = framework
        self.samples_per_step = float(samples_per_step) * self._site.size
        self.loss: float | None = None
        self._identity = ""  # of the run, which all its objects have
        self._is_founder = False  # whether this worker has created the run
        self._shards: list[Run] = []
        self._drivers: list[Any] = []  # each `MailboxDriver` leaves first
        self._participants: dict[str, Participant] = {}
        name, self.seed = self.share(lambda: _name_and_seed(worker_name))
        self._settings = Settings(name, int(min_workers), float(grace), int(keep))
        self._open(url)
        self.share(lambda: self._store.require_create(name))

    def _open(self, url: str) -> None:
        self._store = Store(url)
        self._patient = PatientStore(self._store)

    def of_shard(self, number: int, count: int) -> Run:
        """The run of one shard of a site's parameters, below this run.

        Each worker of a site has the rounds of its own shard. All sites have the same shards.
        """
        self.share(lambda: self._require_shards(count))
        shard = copy.copy(self)
        shard._site, shard._participants, shard._drivers, shard._shards = Alone(), {}, [], []
        shard._open(f"{self.url}/shard-{number}-of-{count}")
        self._shards.append(shard)
        return shard

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def worker(self) -> str:
        """This worker's name, which it has until it ends."""
        return self._settings.worker

    @property
    def grace(self) -> float:
        return self._settings.grace

    @property
    def is_first(self) -> bool:
        """Whether this is the worker of its site that uses the store."""
        return self._site.is_first

    @property
    def size(self) -> int:
        """The number of workers in the last round."""
        return self.share(lambda: max((p.size for p in self._all_participants()), default=1))

    @property
    def rounds(self) -> int:
        """The number of rounds that this worker has seen the result of, from the run's begin."""
        return self.share(lambda: min((p.round - 1 for p in self._all_participants()), default=0))

    def _all_participants(self) -> Iterator[Participant]:
        for run in (self, *self._shards):
            yield from run._participants.values()

    def report_loss(self, loss: float) -> None:
        """See `gluon_gc.mailbox.report_loss`."""
        for run in (self, *self._shards):
            run.loss = float(loss)

    def now(self) -> float:
        """The clock of the site's first worker, in seconds. All its workers call this together."""
        return self._whole_site.share(time.monotonic)

    def share(self, make: Callable[[], Answer]) -> Answer:
        """See `Site.share`."""
        return self._site.share(make)

    def hindered_seconds(self) -> float:
        return self._patient.hindered_seconds

    def participant(self, kind: str, packing: Packing) -> Participant:
        """This worker's part in the rounds of a kind."""
        participant = Participant(
            self._patient, kind, packing, self._settings, self._identity, self._is_founder
        )
        self._participants[kind] = participant
        return participant

    def join(
        self,
        algorithm: Algorithm,
        params: Mapping[str, CompressionParams],
        shapes: Shapes,
        dtypes: Mapping[str, str],
    ) -> None:
        """Create the run, or raise RuntimeError if it has other settings than this worker.

        Only one optimizer of a process can join.

        ValueError if the run's compressors cannot be used.
        """
        if self._drivers:
            raise RuntimeError(
                f"the run at {self.url} has the parameters of one optimizer, and this process has "
                "joined it with another one: use one, or call bps.shutdown() and bps.init() again"
            )
        for name, of_parameter in params.items():
            _require_usable(name, of_parameter)
        facts = _facts(self.framework, algorithm, params, shapes, dtypes)
        if self._site is self._whole_site:
            self.share(lambda: self._require_shards(0))
        self._identity = self.share(lambda: self._join(facts))

    def _require_shards(self, count: int) -> None:
        """Raise RuntimeError if the sites of the run have another number of shards; 0: none."""
        name, own = objects.SHARDS, {"shards": count}
        if self._patient.put(name, objects.pack(own), create=True):
            return
        found = objects.unpack(name, self._patient.get(name) or b"").header
        if found != own:
            raise RuntimeError(
                f"the sites of the run at {self.url} have {found['shards']} shards of fully_shard, "
                f"but this one has {count}: all need the same number of workers"
            )

    def _join(self, facts: Facts) -> str:
        """Return the run's identity."""
        own, identity = stated(facts), uuid.uuid4().hex
        job = {"format": FORMAT, "version": __version__, "run": identity, "facts": own}
        if self._patient.put(objects.JOB, objects.pack(job), create=True):
            logger.debug("the run at %s is new", self.url)
            self._is_founder = True
            return identity
        header = objects.unpack(objects.JOB, self._patient.get(objects.JOB) or b"").header
        if header["format"] != FORMAT:
            raise RuntimeError(
                f"the run at {self.url} has format {header['format']}, of gluon_gc "
                f"{header['version']}, but this is {__version__}, which has format {FORMAT}"
            )
        problem = difference("the run", header["facts"], "this worker", own)
        if problem:
            raise RuntimeError(
                f"this worker does not fit the run at {self.url}: {problem}. Use another URL for "
                "another run, or the run's settings"
            )
        return header["run"]

    def joined(self, driver: Any) -> None:
        """Note that this worker has joined. From now on, a failing store does not stop it."""
        self._patient.repeats, self._store.kept = True, objects.JOB
        self._drivers.append(driver)

    def close(self, puts: bool = True) -> None:
        """Leave the run. `puts`: whether other workers get what this one has changed since.

        The first signal meanwhile is held back. The second one ends this at once.
        """
        signals = Signals()
        if puts:
            signals.hold()
        try:
            self._close(puts, signals)
        finally:
            signals.release()

    def _close(self, puts: bool, signals: Signals) -> None:
        for shard in self._shards:
            shard._close(puts, signals)
        drivers, self._drivers = self._drivers, []
        self._patient.repeats = False
        self._patient.stop()
        for driver in drivers if puts else ():
            self._leave(driver, signals)
        if puts and not (drivers or self._shards):
            logger.warning(
                "this process has made no round of the run at %s: a DistributedOptimizer or "
                "DistributedTrainer with the algorithm local_steps makes them",
                self.url,
            )

    def _leave(self, driver: Any, signals: Signals) -> None:
        """Let a driver leave on a thread, as long as the store may need for it."""

        def leave() -> None:
            try:
                driver.leave()
            except Exception as error:
                self._warn_of_lost_steps(driver, error)
            else:
                if driver.uncounted_steps:
                    self._warn_of_lost_steps(driver, "the last payload has come too late")

        began, told = time.monotonic(), 0
        leaving = threading.Thread(target=leave, daemon=True)
        leaving.start()
        while True:
            leaving.join(_POLL)
            if not leaving.is_alive():
                return None
            uploads = [p.uploads_until for p in self._participants.values()]
            if signals.count > 1:
                return self._warn_of_lost_steps(driver, "a second signal has come")
            if time.monotonic() > max([began, self._patient.answered, *uploads]) + _LEAVING_SECONDS:
                return self._warn_of_lost_steps(driver, f"{self.url} is silent")
            if signals.count > told:
                told = signals.count
                logger.warning(
                    "this worker is leaving the run: another signal would lose its last %d steps",
                    driver.uncounted_steps,
                )

    def _warn_of_lost_steps(self, driver: Any, why: Any) -> None:
        steps = driver.uncounted_steps
        if steps:
            logger.warning("%s: the last %d steps of this worker are lost", why, steps)
        else:
            logger.warning("%s: one round waits for this worker", why)


def _name_and_seed(worker_name: str | None) -> tuple[str, int]:
    """A name that no other worker has, nor an earlier life of this one, and a seed from it."""
    given = worker_name or socket.gethostname()
    if worker_name is not None and not re.fullmatch(r"[\w.-]{1,64}", worker_name, re.ASCII):
        raise ValueError(
            f"worker_name must be up to 64 letters, digits, '.', '_' or '-', got {worker_name!r}"
        )
    readable = re.sub(r"[^\w.-]", "-", given, flags=re.ASCII)[:64]
    name = f"{readable}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    return name, xxhash.xxh32_intdigest(name.encode())


def _require_usable(name: str, params: CompressionParams) -> None:
    compressor = params.compressor
    if params.accuracy is not None:
        raise ValueError(
            "compression_params['compressor'] must name a compressor with a mailbox, got 'auto'"
        )
    if compressor is not None and compressor.traits.draws_alike:
        raise ValueError(
            f"compression_params['compressor'] must not be '{compressor.name}' with a mailbox: its "
            "payloads can only be decoded by workers that draw the same random numbers"
        )


def _facts(
    framework: str,
    algorithm: Algorithm,
    params: Mapping[str, CompressionParams],
    shapes: Shapes,
    dtypes: Mapping[str, str],
) -> Facts:
    """What must be the same in all workers of a run."""
    options: dict[str, Any] = {"algorithm": algorithm.name, **algorithm.described()}
    options.pop("every")
    options.pop("start", None)  # always 0; runs of earlier versions lack it
    for given in (options, *(options.get("overrides") or {}).values()):
        for name in given.keys() & algorithm.keys():
            if algorithm.keys()[name].types == (numbers.Real,):
                given[name] = float(given[name])  # 1 is 1.0
    of_parameters = [
        (
            f"parameter {name}",
            {
                "name": name,
                "shape": list(shape),
                "dtype": dtypes[name],
                "compressor": None,  # an error names it before its options
                **params[name].identity(),
            },
        )
        for name, shape in shapes.items()
    ]
    return [("", {"framework": framework}), ("the algorithm", options), *of_parameters]
