"""The workers of a run, and checks of what they have done, against a NumPy replay."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

import numpy as np

from gluon_gc import compression
from gluon_gc.mailbox import objects
from gluon_gc.mailbox.store import Store
from tests.algorithm_replay import LocalStepsReplay
from tests.neutral.mailbox.recording import ARCHIVE, digest

TIMEOUT = 100  # seconds for anything that a test waits for
# One payload is one parameter, and every parameter is compressed.
ENVIRONMENT = {"BYTEPS_MIN_COMPRESS_BYTES": "0"}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
EVERY_5 = {"name": "local_steps", "every": 5, "outer_momentum": 0.5}


class Worker:
    """A process of a run."""

    def __init__(self, folder: Path, name: str, process: Any) -> None:
        self.name, self.process, self._begin = name, process, folder / name

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it lives."""
        poll = getattr(self.process, "poll", None)  # a multiprocessing.Process has none
        return poll() if poll else self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def _text(self, suffix: str) -> str:
        file = Path(f"{self._begin}.{suffix}")
        return file.read_text() if file.exists() else ""

    @property
    def log(self) -> str:
        """The messages of gluon_gc."""
        return self._text("log")

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._text("out")

    @property
    def steps(self) -> int:
        """The steps that it has made so far."""
        return len(self._text("steps"))

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds after which it could look: {"kind", "round", "digest"}."""
        lines = self._text("rounds").split("\n")[:-1]  # after the last newline, half a line
        return [json.loads(line) for line in lines]

    @property
    def last_round(self) -> int:
        return max((line["round"] for line in self.rounds), default=-1)

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads(self._text("json"))

    @property
    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """What it has made, its residuals and its parameters, at its end."""
        found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
        with np.load(f"{self._begin}.npz") as saved:
            for key in saved:
                kind, _, name = key.partition("/")
                found[kind][name] = saved[key]
        return found


class Workers:
    """The workers of one run, and their common config."""

    def __init__(self, folder: Path, url: str, variables: dict[str, str], **config: Any) -> None:
        self.folder, self.url, self.variables = folder, url, variables
        self.config = {"algorithm": EVERY_5, "compression_params": ONEBIT, **config}
        self.workers: list[Worker] = []
        folder.mkdir(exist_ok=True)

    def start(self, name: str, **config: Any) -> Worker:
        """Start a worker, whose config has these keys besides the common ones."""
        raise NotImplementedError

    def _started(self, name: str, process: Any) -> Worker:
        self.workers.append(Worker(self.folder, name, process))
        return self.workers[-1]

    def _config(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        own = {"folder": str(self.folder), "url": self.url, "name": name}
        return {**self.config, **config, **own}

    def wait(self, what: str, happens: Callable[[], Any]) -> None:
        """Wait until something happens. Fail if that takes too long, or if a worker fails."""
        deadline = time.monotonic() + TIMEOUT
        while not happens():
            self._require_no_failure()
            assert time.monotonic() < deadline, f"{what} does not happen\n{self.logs()}"
            time.sleep(0.01)

    def wait_for_rounds(self, number: int, *workers: Worker) -> None:
        """Wait until each of these workers has seen this number of rounds more."""
        goals = [len(worker.rounds) + number for worker in workers]
        self.wait(
            f"{number} more rounds",
            lambda: all(len(w.rounds) >= goal for w, goal in zip(workers, goals)),
        )

    def wait_for_end(self, worker: Worker, code: int = 0) -> None:
        self.wait(f"the end of {worker.name}", lambda: worker.exit_code is not None)
        assert worker.exit_code == code, self.logs()

    def stop(self) -> list[Worker]:
        """Let all workers leave. Return those that lived until then."""
        alive = [worker for worker in self.workers if worker.exit_code is None]
        (self.folder / "stop").touch()
        for worker in alive:
            self.wait_for_end(worker)
        return alive

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            wait = getattr(worker.process, "join", None) or worker.process.wait
            wait()

    def _require_no_failure(self) -> None:
        """Fail if a worker has ended with an error that no test expects."""
        for worker in self.workers:
            assert worker.exit_code in (None, 0, 1, 3, 143, -signal.SIGKILL, -signal.SIGINT) and (
                worker.exit_code != 1 or "the worker's own error" in worker.said
            ), f"{worker.name} has failed\n{self.logs()}"

    def logs(self) -> str:
        texts = []
        for worker in self.workers:
            last = worker.log.splitlines()[-15:] or [""]
            texts.append(
                "\n".join([f"-- {worker.name}: {worker.exit_code}", *last, worker.said[-1500:]])
            )
        return "\n".join(texts)


@contextmanager
def running(folder: Path, kind: type[Workers]) -> Iterator[Callable[..., Workers]]:
    """Return a function that makes `Workers` of this kind for the run at a URL. They end after."""
    made: list[Workers] = []

    def make(url: str, **config: Any) -> Workers:
        variables = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        variables["NO_PROXY"] = "127.0.0.1"
        made.append(kind(folder / f"workers{len(made)}", url, variables, **config))
        return made[-1]

    try:
        yield make
    finally:
        for workers in made:
            workers.kill()


class Round:
    """A round in the store: its result, and its payloads by worker."""

    def __init__(self, header: dict[str, Any], payloads: dict[str, objects.Object]) -> None:
        self.number, self.counted, self.excluded, self.left = (
            header[key] for key in ("round", "counted", "excluded", "left")
        )
        self.payloads = payloads

    @property
    def names(self) -> list[str]:
        return [entry["worker"] for entry in self.counted]


class Replay:
    """All that a run has left in its store, and its shared state after each round."""

    def __init__(self, url: str, config: dict[str, Any], kind: str = "difference") -> None:
        self._store, self.kind, self._config = Store(url), kind, config
        state = self._get(objects.state_name(kind, 0))
        arrays: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
        begin = 0
        for shared, name, dtype, size in state.header["arrays"]:
            values = arrays[shared][name] = np.frombuffer(state.body, dtype, size, begin).copy()
            begin += values.nbytes
        self.names = list(arrays["anchor"])
        self._sizes = {name: values.size for name, values in arrays["anchor"].items()}
        assert not any(values.any() for values in arrays["outer_momentum"].values())
        options = {key: value for key, value in config["algorithm"].items() if key != "name"}
        self._algorithm = LocalStepsReplay([arrays["anchor"]], **{**options, "every": 1})
        self._algorithm.velocity = arrays["outer_momentum"]  # zeros of both signs
        self.digests = {0: self._digest()}
        self.rounds = [*self._rounds()]
        for each in self.rounds:
            self._apply(each)
            self.digests[each.number] = self._digest()

    def _get(self, name: str) -> objects.Object | None:
        """Read an object, also after its removal."""
        for place in (name, ARCHIVE + name):
            data = self._store.get(place)
            if data is not None:
                return objects.unpack(place, data)
        return None

    def _rounds(self) -> Iterator[Round]:
        """The decided rounds. `open_payloads`: those of each other round, in order.

        A worker that leaves may put its last payload behind an open round that has none.
        """
        self.open_payloads: list[dict[str, objects.Object]] = []
        workers: defaultdict[int, set[str]] = defaultdict(set)  # with a payload, by round
        for place in ("", ARCHIVE):
            folder = place + objects.rounds_folder(self.kind)
            for entry in self._store.list(folder):
                number, what, *worker = entry.name[len(folder) :].split("/")
                workers[int(number)].update(worker if what == "payloads" else ())
        for number in sorted(workers.keys() - {0}):  # the first round is 1
            result = self._get(objects.result_name(self.kind, number))
            names = sorted(workers[number])
            payloads = {n: self._get(objects.payload_name(self.kind, number, n)) for n in names}
            if result is None:
                self.open_payloads.append(payloads)
            else:
                yield Round(result.header, payloads)

    def decoded(self, payload: objects.Object) -> dict[str, np.ndarray]:
        """The arrays of a payload."""
        found, begin = {}, 0
        for name, length in zip(self._order(), payload.header["lengths"]):
            part = np.frombuffer(payload.body, np.uint8, length, begin)
            begin += length
            params = self._params(name)
            if params.compressor is None:
                found[name] = part.view(np.float32)
                continue
            codec = params.codec(self._sizes[name], "float32")
            row = np.zeros(codec.payload_bytes, np.uint8)
            row[:length] = part
            found[name] = codec.decompress(row)[0]
        assert begin == len(payload.body)
        return found

    def _order(self) -> list[str]:
        return self.names

    def _params(self, name: str) -> compression.CompressionParams:
        return _parsed(json.dumps(self._config["compression_params"]))

    def _apply(self, each: Round) -> None:
        total = sum(entry["weight"] for entry in each.counted)
        if not total:
            return
        means: dict[str, np.ndarray] = {}
        for entry in each.counted:
            payload = each.payloads[entry["worker"]]
            assert payload.digest == entry["digest"]
            share = np.float32(entry["weight"] / total)
            for name, values in self.decoded(payload).items():
                part = share * values
                means[name] = means[name] + part if name in means else part
        for name, mean in means.items():
            self._algorithm._outer_step(name, mean)

    def _digest(self) -> str:
        flat = {
            "anchor": {n: self._algorithm.anchor[n] for n in self.names},
            "outer_momentum": {n: self._algorithm.velocity[n] for n in self.names},
        }
        return digest(flat)

    def handed_over(self, worker: str) -> dict[str, np.ndarray]:
        """The sum of what rounds have counted of a worker, and will count."""
        counting = [each.payloads[worker] for each in self.rounds if worker in each.names]
        counting += [payloads[worker] for payloads in self.open_payloads if worker in payloads]
        total = {name: np.zeros(size) for name, size in self._sizes.items()}
        for payload in counting:
            for name, values in self.decoded(payload).items():
                total[name] += values
        return total

    def require_equal_bits(self, workers: list[Worker]) -> None:
        """Check that all workers had the bits of this replay after each round."""
        seen = [line for worker in workers for line in worker.rounds if line["kind"] == self.kind]
        assert seen
        for line in seen:
            assert line["digest"] == self.digests[line["round"]], f"round {line['round']}"

    def require_nothing_lost(self, worker: Worker) -> None:
        """Check that rounds, the last payload and the residual have all that a worker has made."""
        arrays = worker.arrays
        handed_over = self.handed_over(worker.facts["worker"])
        for name in self.names:
            made = arrays["made"][name].reshape(-1)
            found = handed_over[name] + arrays["residual"].get(name, 0)
            scale = np.abs(made).max() + np.abs(arrays["parameter"][name]).max()
            np.testing.assert_allclose(found, made, rtol=0, atol=1e-5 * scale, err_msg=name)


def require_sound(run: Workers, alive: Iterable[Worker]) -> Replay:
    """Check bits after each round, and that workers that lived until the end lost nothing."""
    replay = Replay(run.url, run.config)
    replay.require_equal_bits(run.workers)
    for worker in alive:
        replay.require_nothing_lost(worker)
    return replay


def become_run_of(url: str, framework: str) -> None:
    """Make a run one of another framework's workers."""
    store = Store(url)
    header = objects.unpack(objects.JOB, store.get(objects.JOB)).header
    for _, values in header["facts"]:
        if "framework" in values:
            values["framework"] = json.dumps(framework)
    store.put(objects.JOB, objects.pack(header))


@lru_cache(maxsize=None)
def _parsed(params: str) -> compression.CompressionParams:
    return compression.parse(json.loads(params))
