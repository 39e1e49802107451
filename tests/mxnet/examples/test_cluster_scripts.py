"""example/cluster: the commands that its scripts start, and run.sh on namespaces as machines."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import train_cifar100
import train_imagenet
from common.arguments import compression_params
from common.log import read_log

from benchmark.network import Network
from gluon_gc.compression import parse
from tests.mxnet.cluster.hosts import namespaces, needs_namespaces
from tests.mxnet.examples import test_examples as published
from tests.processes import clean_environ, heed_interrupts

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "example" / "cluster"
CLEAN = {k: text for k, text in clean_environ().items() if not k.startswith("CLUSTER_")}


# The scripts run a stub instead of Python, which records its arguments and environment.


@pytest.fixture
def started(tmp_path):
    stand_in = tmp_path / "python"
    stand_in.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\nprintf "%s\\n" "$@" > {tmp_path}/words')
    stand_in.chmod(0o755)

    def run(*words, **environ):
        script, *arguments = words
        own = {"CLUSTER_PYTHON": str(stand_in), "CLUSTER_WORK": str(tmp_path / "work")}
        subprocess.run(
            [str(SCRIPTS / script), *arguments], env={**CLEAN, **own, **environ}, check=True
        )
        words = (tmp_path / "words").read_text().splitlines()
        lines = (tmp_path / "env").read_text().splitlines()
        return words, dict(line.split("=", 1) for line in lines if "=" in line)

    return run


JOBS = {
    "cifar100": (train_cifar100, published.CIFAR100, "8"),
    "resnet50": (train_imagenet, published.RESNET50, "8"),
    "vgg16": (train_imagenet, published.VGG16, "4"),
}
VARIANTS = dict(
    zip(("baseline", "onebit", "topk", "randomk", "dithering", "fp16"), published.COMPRESSED)
)
OURS = ("mode", "logging_file", "save_dir", "data_dir")  # spelling and paths differ on purpose


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("job", JOBS)
def test_a_worker_runs_what_the_guide_runs(started, job, variant):
    script, command, machines = JOBS[job]
    words, environ = started("worker.sh", job, variant, CLUSTER_DATA="~/data")
    assert words[:2] == ["-m", "bpslaunch"]
    assert Path(words[3]).resolve() == Path(script.__file__)
    if VARIANTS[variant].startswith("--compressor"):
        command = command.replace("0.2", "0.1")  # the guide's rate for ResNet-50 with a compressor
        assert environ["BYTEPS_THREADPOOL_SIZE"] == "16"
    found = vars(script.parse_arguments(words[4:]))
    expected = vars(script.parse_arguments(shlex.split(f"{command} {VARIANTS[variant]}")))
    assert {k: v for k, v in found.items() if k not in OURS} == {
        k: v for k, v in expected.items() if k not in OURS
    }
    assert environ["BYTEPS_MIN_COMPRESS_BYTES"] == "1024000"
    assert environ["DMLC_ROLE"] == "worker"
    assert environ["DMLC_NUM_WORKER"] == machines
    assert int(environ["DMLC_NUM_SERVER"]) == 2 * int(machines)


@pytest.mark.parametrize(
    "variant, compressor, k",
    [("dgc", "dgc", 0.001), ("bytegrad-fp16", "bytegrad", None), ("topk-fp16", "topk", 0.001)],
)
def test_variants_that_the_guide_does_not_have(started, variant, compressor, k):
    words, _ = started("worker.sh", "cifar100", variant)
    given = compression_params(train_cifar100.parse_arguments(words[4:]))
    params = parse(given, 0.9)
    assert params.compressor.name == compressor and params.fp16 == variant.endswith("fp16")
    assert given["k"] == k and (given["warmup_epochs"] or 0) == (4 if variant == "dgc" else 0)


def test_arguments_of_the_command_line_come_last(started):
    words, _ = started("worker.sh", "cifar100", "topk", "--k", "0.01", "--save-dir", "a b")
    assert words[-4:] == ["--k", "0.01", "--save-dir", "a b"]


def test_restarts_are_asked_for_by_a_setting(started):
    environ = {"DMLC_NUM_WORKER": "2", "CLUSTER_MAX_RESTARTS": "3"}
    asked = ["-m", "bpslaunch", "--max-restarts", "3"]
    assert started("server.sh", **environ)[0] == asked
    assert started("worker.sh", "cifar100", "topk", **environ)[0][:4] == asked


@pytest.mark.parametrize("servers", ["", "0", "3"])
def test_a_worker_runs_a_command_of_ones_own(started, tmp_path, servers):
    command = ["python", "train.py", "--name", "a b", "|", "tee", "$HOME"]
    own = {"CLUSTER_HOSTS": "a b c", **({"CLUSTER_SERVERS": servers} if servers else {})}
    words, environ = started("worker.sh", "--", *command, **own)
    assert words == ["-m", "bpslaunch", *command]
    assert environ["DMLC_NUM_WORKER"] == "3"
    assert environ["DMLC_NUM_SERVER"] == str(3 * int(servers or 2))
    assert environ["PATH"].startswith(f"{tmp_path}:")  # the folder of CLUSTER_PYTHON comes first
    assert "BYTEPS_THREADPOOL_SIZE" not in environ
    assert "BYTEPS_MIN_COMPRESS_BYTES" not in environ  # small models are compressed, too


def test_a_python_without_gluon_gc_is_told(tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    own = {"CLUSTER_PYTHON": str(tmp_path / "python"), "CLUSTER_WORK": str(tmp_path / "work")}
    clean = {name: text for name, text in CLEAN.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(SCRIPTS / "worker.sh"), "--", "python", "train.py"],
        env={**clean, **own, "CLUSTER_HOSTS": "a"},
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )
    assert done.returncode == 2
    said = "worker.sh: gluon_gc must be installed in the environment of CLUSTER_PYTHON"
    assert done.stderr.startswith(said)


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_the_environment_wins_over_the_settings(started, role):
    guide = {
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "7",
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "10.0.0.9",
        "DMLC_PS_ROOT_PORT": "4321",
        "OMP_NUM_THREADS": "2",
        "NVIDIA_VISIBLE_DEVICES": "",
    }
    words, environ = started(f"{role}.sh", **guide)
    assert words == ["-m", "bpslaunch"]
    assert {name: environ[name] for name in guide} == guide
    assert "BYTEPS_MIN_COMPRESS_BYTES" not in environ


@pytest.mark.parametrize(
    "words, environ, message",
    [
        ("run.sh cifar100", {}, "usage: run.sh JOB VARIANT [ARGUMENT...], or run.sh -- COMMAND..."),
        ("worker.sh --", {}, "usage: worker.sh JOB VARIANT [ARGUMENT...], or worker.sh -- COMMAND"),
        (
            "run.sh vgg16 onebit",
            {"CLUSTER_SERVERS": "0"},
            "CLUSTER_SERVERS must be positive for vgg16",
        ),
        (
            "run.sh -- true",
            {"CLUSTER_SERVERS": "-1"},
            "CLUSTER_SERVERS must be a whole number >= 0, got '-1'",
        ),
        ("run.sh mnist onebit", {}, "JOB must be cifar100, resnet50 or vgg16, got 'mnist'"),
        ("worker.sh vgg16 two", {}, "VARIANT must be baseline, onebit, topk, randomk, dithering"),
        (
            "run.sh cifar100 onebit",
            {"CLUSTER_HOSTS": "a b"},
            "CLUSTER_HOSTS must name 8 machines or more, got 2",
        ),
        ("run.sh vgg16 onebit", {"CLUSTER_HOSTS": " "}, "CLUSTER_HOSTS must list machines, got"),
        (
            "server.sh",
            {"DMLC_NUM_WORKER": "two"},
            "DMLC_NUM_WORKER must be a positive whole number, got 'two'",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(words, environ, message):
    script, *arguments = words.split()
    done = subprocess.run(
        [str(SCRIPTS / script), *arguments],
        env={**CLEAN, **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"{script}: {message}") and done.stderr.count("\n") == 1


@pytest.fixture
def run_here(tmp_path):
    """Run run.sh with this machine as all machines and a stub for Python; returns its output."""

    def run(*arguments, does, **environ):
        for name, source in [("shell", 'exec sh -c "$2"'), ("python", does)]:
            (tmp_path / name).write_text(f"#!/bin/sh\n{source}")
            (tmp_path / name).chmod(0o755)
        own = {
            "CLUSTER_HOSTS": "here there",
            "CLUSTER_SERVERS": "1",
            "CLUSTER_REMOTE_SHELL": str(tmp_path / "shell"),
            "CLUSTER_REPOSITORY": str(ROOT),
            "CLUSTER_PYTHON": str(tmp_path / "python"),
            "CLUSTER_WORK": str(tmp_path / "work"),
            "DMLC_NUM_WORKER": "2",
        }
        command = [str(SCRIPTS / "run.sh"), *arguments]
        environ = {**CLEAN, **own, **environ}
        said = subprocess.check_output(command, env=environ, encoding="utf-8", timeout=60)
        return [line.split("] ") for line in said.splitlines()]

    return run


@pytest.mark.parametrize("given", ["", "mine"])
def test_all_that_run_sh_starts_share_a_secret(run_here, given):
    secrets, job = [], ("cifar100", "onebit")
    for _ in range(2):
        lines = run_here(*job, does='echo "$GLUON_GC_SECRET"', GLUON_GC_SECRET=given)
        assert len(lines) == 5  # a scheduler, two servers and two workers
        (secret,) = {text for _, text in lines}
        secrets.append(secret)
    assert secrets == ["mine"] * 2 if given else secrets[0] != secrets[1] and len(secrets[0]) == 32


@pytest.mark.parametrize(
    "servers, services", [("0", []), ("1", ["[scheduler", "[server 0", "[server 1"])]
)
def test_run_sh_starts_a_command_of_ones_own_on_all_machines(run_here, tmp_path, servers, services):
    command = ["python", "my train.py", "--to", "$HOME"]
    lines = run_here("--", *command, does='printf "%s," "$PWD" "$@"; echo', CLUSTER_SERVERS=servers)
    work = f"{tmp_path}/work,-m,bpslaunch,"
    expected = [[name, work] for name in services]
    expected += [[f"[worker {rank}", f"{work}{','.join(command)},"] for rank in (0, 1)]
    assert sorted(lines) == expected
    assert len(list((tmp_path / "work" / "logs" / "command").glob("*.log"))) == len(expected)


# run.sh on two namespaces


class Cluster:
    """Two namespaces as machines; run.sh runs outside them."""

    def __init__(self, network, folder, data):
        self.work = folder / "work"
        self.started = []
        self._network = network
        shell = folder / "remote_shell"
        cases = [
            f'{address}) exec {shlex.join(network.command(host, ["sh", "-c"]))} "$2" ;;'
            for host, address in enumerate(network.addresses)
        ]
        shell.write_text("#!/bin/sh\ncase $1 in\n" + "\n".join(cases) + "\nesac")
        shell.chmod(0o755)
        self._environ = {
            "CLUSTER_HOSTS": " ".join(network.addresses),
            "CLUSTER_SERVERS": "1",
            "CLUSTER_REMOTE_SHELL": str(shell),
            "CLUSTER_REPOSITORY": str(ROOT),
            "CLUSTER_PYTHON": sys.executable,
            "CLUSTER_DATA": str(data),
            "CLUSTER_WORK": str(self.work),
            "CLUSTER_GPUS": "0",
            "DMLC_NUM_WORKER": "2",
            "DMLC_INTERFACE": network.interface,
            "NVIDIA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "BYTEPS_THREADPOOL_SIZE": "2",
            "BYTEPS_MIN_COMPRESS_BYTES": "0",
            "PYTHONPATH": str(ROOT),
        }

    def run(self, arguments, **environ):
        """Start run.sh for CIFAR-100."""
        small = "--model cifar_resnet20_v1 --batch-size 16 -j 0"
        return self.start("cifar100", "onebit", *f"{small} {arguments}".split(), **environ)

    def start(self, *arguments, **environ):
        """Start run.sh."""
        command = [str(SCRIPTS / "run.sh"), *arguments]
        process = subprocess.Popen(
            command,
            env={**CLEAN, **self._environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            preexec_fn=heed_interrupts,
        )
        self.started.append(process)
        return process

    def processes(self, host):
        """Return the processes on a machine: their ids and commands."""
        name = self._network._namespace(host)
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, encoding="utf-8")
        commands = {}
        for pid in map(int, done.stdout.split()):
            try:
                commands[pid] = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:  # it has ended
                pass
        return commands


@pytest.fixture
def cluster(tmp_path, data):
    with Network(hosts=2, rate=1e9) as network:
        cluster = Cluster(network, tmp_path, data)
        yield cluster
        left = [cluster.processes(host) for host in (0, 1)]
        for pid in [pid for commands in left for pid in commands]:
            os.kill(pid, signal.SIGKILL)
        for process in cluster.started:
            process.kill()
            process.communicate()
    assert left == [{}, {}]
    assert network._name not in namespaces()


@needs_namespaces
def test_a_job_trains_on_two_machines(cluster):
    out, err = cluster.run("--num-epochs 2").communicate(timeout=100)
    assert err == ""
    pattern = r"^\[worker (\d)\] rank \1 of 2: checksum of the parameters (\w+)$"
    sums = dict(re.findall(pattern, out, re.M))
    assert set(sums) == {"0", "1"} and sums["0"] == sums["1"]
    logs = cluster.work / "logs" / "cifar100-onebit"
    roles = ("scheduler", "server-0", "server-1", "worker-0", "worker-1")
    assert {path.name for path in logs.iterdir()} == {f"{role}.log" for role in roles}
    for worker, checksum in sums.items():
        assert checksum in (logs / f"worker-{worker}.log").read_text()
    records = read_log(str(cluster.work / "cifar100-onebit.jsonl"))
    assert [record["epoch"] for record in records] == [1, 2]
    assert all(np.isfinite(record["step_loss"]).all() for record in records)
    saved = {path.name for path in (cluster.work / "params" / "cifar100-onebit").iterdir()}
    endings = ("params", "states.0", "states.1")
    assert saved == {f"cifar100-cifar_resnet20_v1-2.{ending}" for ending in endings}


@needs_namespaces
def test_a_script_of_ones_own_trains_on_two_machines(cluster, tmp_path):
    (tmp_path / "my train.py").write_text(
        "import mxnet as mx, gluon_gc as bps\n"
        "bps.init()\n"
        "total = bps.allreduce(bps.rank() + 1, average=False)\n"
        "print('worker', bps.rank(), 'of', bps.size(), 'total', total)\n"
        "bps.shutdown()"
    )
    out, err = cluster.start("--", "python", str(tmp_path / "my train.py")).communicate(timeout=100)
    assert err == ""
    for rank in (0, 1):
        assert f"[worker {rank}] worker {rank} of 2 total 3" in out


@pytest.fixture
def waiting(cluster, tmp_path):
    """A job of run.sh whose two workers have started and wait."""
    script = "import time; print('started', flush=True); time.sleep(1000)"
    (tmp_path / "waits.py").write_text(script)
    run = cluster.start("--", "python", str(tmp_path / "waits.py"))
    started = set()
    while len(started) < 2:
        line = run.stdout.readline()
        assert line, run.communicate()[1]
        if line.endswith("] started\n"):
            started.add(line)
    return run


@needs_namespaces
def test_a_worker_that_dies_ends_the_job_with_its_code(cluster, waiting):
    (worker,) = [p for p, words in cluster.processes(1).items() if "waits.py" in words]
    os.kill(worker, signal.SIGKILL)
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 137
    assert re.search(r"run.sh: worker 1 on \S+ ended with code 137: \S+/worker-1.log\n", err)


@needs_namespaces
def test_an_interrupt_ends_the_job(waiting):
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 130
