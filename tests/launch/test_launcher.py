"""bpslaunch with real processes; `stand_in` replaces the servers and the scheduler."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gluon_gc.launch.cli import launcher, tasks
from gluon_gc.launch.cli.output import LineSplitter, PrefixedOutput
from gluon_gc.launch.leaving import ALONE
from gluon_gc.version import __version__
from tests.processes import clean_environ, free_port, heed_interrupts

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = {
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
}
P3 = {"DMLC_PS_VAN_TYPE": "p3"}
PYTHON = (sys.executable, "-c")
FOREVER = "import time; time.sleep(1000)"
# A signal that arrives just before a sleep is handled after it.
UNTIL_SIGNAL = "while True: time.sleep(0.05)"
UNTIL_WORKERS_ARE_DONE = """
import pathlib, time
while len(list(pathlib.Path().glob("done.*"))) < int(os.environ["DMLC_NUM_WORKER"]):
    time.sleep(0.02)
"""
DONE = "import os; open('done.' + os.environ['DMLC_WORKER_ID'], 'w').close()"


def worker(**changes):
    return {**CLUSTER, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", **changes}


@pytest.fixture
def launch(tmp_path):
    """Start bpslaunch with a PYTHONPATH that leads services to the stand-in."""
    started = []

    def launch(*arguments, stderr=subprocess.PIPE, **environ):
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "bpslaunch.py"), *arguments],
            cwd=tmp_path,
            env={**clean_environ(), "PYTHONPATH": f"{tmp_path}:{ROOT}", **environ},
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            preexec_fn=heed_interrupts,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()
    for pid in filter(alive, pids(tmp_path)):  # normally none is left
        if os.readlink(f"/proc/{pid}/cwd") == str(tmp_path):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def stand_in(tmp_path):
    """Write the code of servers and scheduler, which first print their role and variables."""
    package, original = tmp_path / "gluon_gc", ROOT / "gluon_gc"
    copied = ("", "launch", "launch/scheduler")
    for folder in (*copied, "mxnet"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    for part in (part for folder in copied for part in (original / folder).iterdir()):
        if part.name not in ("__init__.py", "mxnet", "launch", "scheduler", "scheduler.py"):
            (package / part.relative_to(original)).symlink_to(part)

    def write(source):
        note = "print(sys.argv[1], sorted(n for n in os.environ if n[:4] == 'DMLC'), flush=True)"
        start = "import os, sys\ndef serve(): pass"  # the import does all the work
        for service in ("launch/scheduler/scheduler.py", "mxnet/server.py"):
            (package / service).write_text(f"{start}\n{note}\n{source}")

    write(UNTIL_WORKERS_ARE_DONE)
    return write


def finish(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def local(workers, servers, source, n="-n"):
    return "--local", n, str(workers), "-s", str(servers), "--", *PYTHON, source


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid):
    """Return whether a process is running and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pids(folder):
    """Return the process ids that the processes of a cluster wrote to a folder."""
    return [int(path.name.split(".")[1]) for path in folder.glob("pid.*")]


NOTE_PID = "import os; open(f'pid.{os.getpid()}', 'w').close()\n"


# Configuration errors: one line that names the error, exit code 2, nothing is started


@pytest.mark.parametrize(
    "arguments, environ, message",
    [
        (
            ["true", "x"],
            {},
            "DMLC_ROLE is not set: set it to worker, server or scheduler, or use --local",
        ),
        (["true", "x"], {"DMLC_ROLE": "boss"}, "DMLC_ROLE must be one of"),
        ([], {**CLUSTER, "DMLC_ROLE": "worker"}, "a worker needs a COMMAND to run"),
        (["true", "x"], {**CLUSTER, "DMLC_ROLE": "worker"}, "DMLC_WORKER_ID is not set"),
        (
            ["true", "x"],
            {**CLUSTER, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "2"},
            "DMLC_WORKER_ID must be < DMLC_NUM_WORKER (2), got 2",
        ),
        ([], {**CLUSTER, "DMLC_ROLE": "server", "DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI is not"),
        (
            [],
            {**CLUSTER, "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "192.0.2.1"},
            "DMLC_PS_ROOT_URI must be an address of the scheduler's own machine, got '192.0.2.1'",
        ),
        (["--local"], {}, "a worker needs a COMMAND to run"),
        (["--local", "true"], P3, "DMLC_PS_VAN_TYPE must be zmq, got 'p3'"),
        (["true"], {**worker(), **P3}, "DMLC_PS_VAN_TYPE must be zmq, got 'p3'"),
        ([], {**CLUSTER, **P3, "DMLC_ROLE": "server"}, "DMLC_PS_VAN_TYPE must be zmq, got 'p3'"),
        (["--local", "-n", "0", "true"], {}, "-n must be a positive whole number, got 0"),
        (["--local", "-s", "-1", "true"], {}, "-s must be a whole number >= 0, got -1"),
        (["-n", "2", "true"], {}, "-n needs --local"),
        (["--backend", "horovod", "true"], {}, "--backend needs --local"),
        (["--local", "--backend", "horovod", "-s", "1", "true"], {}, "-s must be left out with"),
        (["--local", "--backend", "mpi", "true"], {}, "argument --backend: invalid choice: 'mpi'"),
        (["--local", "-n", "two", "true"], {}, "argument -n/-np: invalid int value: 'two'"),
        (["--local", "-np", "0", "true"], {}, "-n must be a positive whole number, got 0"),
        (["--local", "no-such-program", "x"], {}, "COMMAND must be a program"),
        (
            ["--local", "train.py", "--lr", "0.1", "a b"],
            {},
            "COMMAND must be a program, got 'train.py'; did you mean "
            "`python train.py --lr 0.1 'a b'`?",
        ),
        (["--local", "train.py"], {}, "COMMAND must be a program, got 'train.py'; did you mean"),
        (["--local", "A=1", "./train.py"], {}, "COMMAND must be a program, got './train.py'; did"),
        (["--local", "A=1"], {}, "a worker needs a COMMAND to run"),
        (
            ["--max-restarts", "-1", "true"],
            {},
            "--max-restarts must be a whole number >= 0, got -1",
        ),
        (["--lokal", "true"], {}, "unrecognized arguments: --lokal"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(
    launch, tmp_path, arguments, environ, message
):
    (tmp_path / "train.py").touch()  # not executable
    code, out, err = finish(launch(*arguments, **environ))
    assert (code, out) == (2, "")
    assert err.startswith("bpslaunch: " + message) and err.count("\n") == 1


def test_alone_it_says_how_it_is_used(launch):
    code, out, err = finish(launch())
    assert (code, out) == (2, "")
    assert err.startswith("usage: bpslaunch [--max-restarts N] COMMAND...\n")
    assert "bpslaunch --local -n WORKERS" in err
    assert err.splitlines()[-1].startswith("bpslaunch: DMLC_ROLE is not set: ")


def test_it_says_its_version_and_its_defaults(launch):
    assert finish(launch("--version")) == (0, f"gluon_gc {__version__}\n", "")
    shown = finish(launch("--help"))[1]
    assert shown.count("(default 1") == 2 and "{dist_sync,horovod}" in shown


def test_a_scheduler_whose_port_is_taken_says_which_port(launch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environ = {**CLUSTER, "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_PORT": port}
        code, _, err = finish(launch(**environ))
    assert (code, err) == (2, f"bpslaunch: port {port} of 127.0.0.1 is in use\n")


# One role on this machine


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_a_service_starts_without_its_role_in_the_environment(launch, stand_in, role):
    stand_in("sys.exit(7)")
    port = str(free_port())
    environ = {**CLUSTER, "DMLC_ROLE": role, "DMLC_PS_ROOT_PORT": port}
    code, out, _ = finish(launch(**environ))
    assert (code, out) == (7, f"{role} {sorted(CLUSTER)}\n")


def test_a_single_worker_is_the_command_itself(launch):
    source = "import os, sys; print(os.environ['BYTEPS_LOCAL_SIZE'], os.getpid()); sys.exit(9)"
    process = launch(*PYTHON, source, **worker())
    code, out, _ = finish(process)
    assert (code, out) == (9, f"1 {process.pid}\n")


def test_every_visible_device_gets_a_worker_which_sees_all_devices(launch):
    names = ["BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "NVIDIA_VISIBLE_DEVICES"]
    source = f"import os; print([os.environ[name] for name in {names}])"
    code, out, _ = finish(launch(*PYTHON, source, **worker(NVIDIA_VISIBLE_DEVICES="3,5")))
    assert code == 0
    assert sorted(out.splitlines()) == [
        "[worker 2] ['0', '2', '3,5']",
        "[worker 3] ['1', '2', '3,5']",
    ]


@pytest.mark.parametrize("devices", ["all", "none", "void", "0", ""])
def test_without_a_list_of_devices_there_is_one_worker(launch, devices):
    source = "import os; print(os.environ['BYTEPS_LOCAL_SIZE'])"
    code, out, _ = finish(launch(*PYTHON, source, **worker(NVIDIA_VISIBLE_DEVICES=devices)))
    assert (code, out) == (0, "1\n")


def test_the_number_of_workers_may_come_from_the_local_size(launch):
    code, out, _ = finish(launch("echo", "here", **worker(BYTEPS_LOCAL_SIZE="2")))
    assert (code, sorted(out.splitlines())) == (0, ["[worker 2] here", "[worker 3] here"])


def test_workers_are_spread_over_the_numa_nodes(monkeypatch, tmp_path):
    nodes = tmp_path / "nodes"
    for node in (0, 1):
        (nodes / f"node{node}").mkdir(parents=True)
    numactl = tmp_path / "numactl"
    numactl.touch(mode=0o755)
    monkeypatch.setattr(tasks, "_NODES", nodes)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, text in worker(NVIDIA_VISIBLE_DEVICES="0,1,2,3", BYTEPS_NUMA_ON="1").items():
        monkeypatch.setenv(name, text)
    bound = [task.command[:-2] for task in tasks.worker_tasks(["env", "x"])]
    options = [["numactl", f"--cpunodebind={node}", "--localalloc"] for node in (0, 0, 1, 1)]
    assert bound == options
    monkeypatch.setenv("BYTEPS_NUMA_ON", "0")
    assert [task.command for task in tasks.worker_tasks(["env", "x"])] == [["env", "x"]] * 4


def test_redirections_among_the_words_work_as_under_byteps(launch, tmp_path):
    words = [*PYTHON, "import sys; print(sys.argv)", "a b", "$HOME", "2>&1", ">>log"]
    assert finish(launch(*words, **worker()))[:2] == (0, "")
    assert (tmp_path / "log").read_text() == "['-c', 'a b', '$HOME']\n"


def test_a_single_word_is_a_shell_command(launch):
    assert finish(launch("echo one && exit 4", **worker()))[:2] == (4, "one\n")


def test_a_program_may_be_a_script_that_does_not_say_what_runs_it(launch, tmp_path):
    (tmp_path / "run").write_text("echo ran")
    (tmp_path / "run").chmod(0o755)
    assert finish(launch("./run", **worker()))[:2] == (0, "ran\n")


def test_variables_in_front_are_the_workers(launch, tmp_path):
    source = "import os, sys; print(os.environ['A'], os.environ['B'], sys.argv[1:])"
    words = ["A=$HOME", "B=", *PYTHON, source, "C=3", "a b"]
    assert finish(launch(*words, **worker()))[:2] == (0, "$HOME  ['C=3', 'a b']\n")
    assert finish(launch(*words, ">log", **worker()))[:2] == (0, "")
    assert (tmp_path / "log").read_text() == "$HOME  ['C=3', 'a b']\n"


@pytest.mark.parametrize(
    "words, out",
    [
        (["A=1 printenv A | sed s/1/2/ > log; cat log"], "2\n"),
        (["A=1 printenv", "A"], "1\n"),
        (["A=1", "printenv A | sed s/1/2/"], "2\n"),
        (["echo a |", "sed", "s/a/b/"], "b\n"),
    ],
)
def test_what_only_a_shell_can_read_a_shell_reads(launch, words, out):
    assert finish(launch(*words, **worker()))[:2] == (0, out)


SHOW = [*PYTHON, "import sys; print(sys.argv[1:]); print('err', file=sys.stderr)"]


@pytest.mark.parametrize(
    "words, shown",
    [
        ([*SHOW, "a b", "$HOME", "*", "|", "cat", ">", "a log"], "['a b', '$HOME', '*']\n"),
        ([*SHOW, ">", "a log", "2>", "/dev/null"], "[]\n"),
        ([*SHOW, "|&", ">", "a log", "2>&1"], "['|&']\nerr\n"),
        ([*SHOW, "&>", "a log"], "[]\nerr\n"),
        (["cat", "<", "in put", ">>", "a log"], "in\n"),
        (["false", "&&", "echo", "a", "||", "echo", ";", ">", "a log"], ""),
        (["true", "&&", "A=a b", "printenv", "A", ">", "a log"], "a b\n"),
        (["A=$HOME", "printenv", "A", "|", "sed", "s/$/ ;/", ">", "a log"], "$HOME ;\n"),
    ],
)
def test_a_word_that_is_an_operator_of_a_shell_is_one(launch, tmp_path, words, shown):
    (tmp_path / "in put").write_text("in\n")
    assert finish(launch(*words, **worker()))[0] == 0
    assert (tmp_path / "a log").read_text() == shown


def test_without_bash_there_is_sh(launch, tmp_path):
    words = [*PYTHON, "print('a b')", "|", "/bin/cat"]
    assert finish(launch(*words, **worker(PATH=str(tmp_path))))[:2] == (0, "a b\n")


@pytest.mark.parametrize("words", [["exit 3 | cat"], ["sh", "-c", "exit 3", "|", "cat"]])
@pytest.mark.parametrize("size", ["1", "2"])
def test_a_program_that_fails_in_front_of_a_pipe_has_failed(launch, words, size):
    code, _, err = finish(launch(*words, **worker(BYTEPS_LOCAL_SIZE=size)))
    assert code == 3 and err.endswith(" exited with code 3\n")


@pytest.mark.parametrize("size", [1, 2])
def test_a_signal_reaches_programs_that_a_shell_runs_and_they_may_take_their_time(
    launch, tmp_path, size
):
    source = f"""{NOTE_PID}
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    open(f"saved.{{os.getpid()}}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"ready.{{os.getpid()}}", "w").close()
{UNTIL_SIGNAL}"""
    words = [*PYTHON, source, "|", *PYTHON, NOTE_PID + FOREVER, "&&", "touch", "went-on"]
    process = launch(*words, **worker(BYTEPS_LOCAL_SIZE=str(size)))
    wait_for(lambda: len(list(tmp_path.glob("ready.*"))) == size)
    wait_for(lambda: len(pids(tmp_path)) == 2 * size)
    process.terminate()
    assert finish(process)[0] == 128 + signal.SIGTERM
    assert len(list(tmp_path.glob("saved.*"))) == size and not (tmp_path / "went-on").exists()
    assert not any(map(alive, pids(tmp_path)))


# A job on one machine


def alone(**changes):
    """Return the variables that BytePS needs for the only worker of a job."""
    return {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", **changes}


ADDRESS = {"DMLC_PS_ROOT_URI": "192.0.2.1", "DMLC_PS_ROOT_PORT": "9000", "DMLC_NUM_SERVER": "1"}


@pytest.mark.parametrize("servers", [{}, {"DMLC_NUM_SERVER": "0"}, ADDRESS])
def test_one_worker_of_one_machine_needs_no_scheduler(launch, servers):
    process = launch(*PYTHON, "import os; print(os.getpid())", **alone(**servers))
    assert finish(process)[:2] == (0, f"{process.pid}\n")


@pytest.mark.parametrize("told", [{}, {**ADDRESS, "DMLC_NUM_SERVER": "2"}])
@pytest.mark.parametrize("several", ["NVIDIA_VISIBLE_DEVICES", "BYTEPS_LOCAL_SIZE"])
def test_several_workers_of_one_machine_need_no_scheduler(launch, stand_in, several, told):
    names = ("DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
    source = f"{DONE}; print([os.environ[n] for n in {names}])"
    given = {"NVIDIA_VISIBLE_DEVICES": "3,5", "BYTEPS_LOCAL_SIZE": "2"}[several]
    code, out, err = finish(launch(*PYTHON, source, **alone(**{several: given}, **told)))
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        f"[worker {rank}] ['1', '{rank}', '2']" for rank in range(2)
    ]


@pytest.mark.parametrize("address", [{}, ADDRESS])
@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_service_that_one_machine_does_not_need_says_so_and_ends(launch, stand_in, role, address):
    environ = {"DMLC_ROLE": role, "DMLC_NUM_WORKER": "1", **address}
    code, out, err = finish(launch(**environ))
    assert (code, out, err.count("\n")) == (0, "", 1)
    assert err.startswith(f"bpslaunch: no {role} is needed if DMLC_NUM_WORKER is 1, because ")


def test_one_machine_uses_servers_where_it_is_forced_to(launch, stand_in):
    stand_in("sys.exit(7)")
    forced = {**CLUSTER, "DMLC_NUM_WORKER": "1", "BYTEPS_FORCE_DISTRIBUTED": "1"}
    assert finish(launch(DMLC_ROLE="server", **forced))[0] == 7
    refused = finish(launch("true", **alone(BYTEPS_FORCE_DISTRIBUTED="1")))
    assert refused == (
        2,
        "",
        "bpslaunch: DMLC_PS_ROOT_URI is not set: the address of the scheduler\n",
    )


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_service_of_a_cluster_without_servers_says_so_and_ends(launch, stand_in, role):
    code, out, err = finish(launch(**{**CLUSTER, "DMLC_ROLE": role, "DMLC_NUM_SERVER": "0"}))
    said = f"bpslaunch: no {role} is needed if DMLC_NUM_SERVER is 0: "
    said += "PyTorch's workers use no servers\n"
    assert (code, out, err) == (0, "", said)


# torchrun's variables for each worker

TORCHRUNS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SHOW_PLACE = f"import os; print(*[os.environ.get(name, '-') for name in {TORCHRUNS[:5]}])"


@pytest.mark.parametrize(
    "arguments, environ, shown",
    [
        (["--local", "-n", "2", "-s", "1"], {}, {"0 2 0 2 127.0.0.1", "1 2 1 2 127.0.0.1"}),
        (["--local", "-n", "2", "-s", "0"], {}, {"0 2 0 2 127.0.0.1", "1 2 1 2 127.0.0.1"}),
        ([], alone(BYTEPS_LOCAL_SIZE="2"), {"0 2 0 2 127.0.0.1", "1 2 1 2 127.0.0.1"}),
        ([], alone(), {"0 1 0 1 127.0.0.1"}),
        ([], worker(BYTEPS_LOCAL_SIZE="2"), {"2 4 0 2 -", "3 4 1 2 -"}),
        ([], worker(DMLC_NUM_SERVER="0"), {"1 2 0 1 127.0.0.1"}),
    ],
)
def test_workers_get_torchruns_variables(launch, stand_in, arguments, environ, shown):
    source = f"{SHOW_PLACE}\n{DONE}"
    stale = dict.fromkeys(TORCHRUNS[:4], "9")
    code, out, _ = finish(launch(*arguments, *PYTHON, source, **{**stale, **environ}))
    assert code == 0
    lines = [line.split("] ")[-1] for line in out.splitlines() if "DMLC" not in line]
    assert sorted(lines) == sorted(shown)


def test_without_servers_there_is_no_scheduler_and_the_workers_are_of_one_machine(launch, stand_in):
    names = ("DMLC_ROLE", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
    source = f"import os; print(*[os.environ[name] for name in {names}])"
    code, out, err = finish(
        launch(*local(2, 0, source), BYTEPS_FORCE_DISTRIBUTED="1", DMLC_ROLE="server")
    )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[worker 0] worker 1 0 2", "[worker 1] worker 1 1 2"]


def test_where_mxnet_is_not_installed_no_servers_are_started(monkeypatch, capsys):
    monkeypatch.setattr(launcher.ps_lite, "is_installed", lambda: False)
    runs = []
    monkeypatch.setattr(launcher.supervisor, "run", lambda tasks, _: runs.append(tasks(0)))
    for options in ([], ["-s", "2"]):
        launcher.main(["--local", *options, "env", "true"])
        assert [task.name for task in runs.pop()] == ["worker 0"]
    said = "bpslaunch: -s 2 is ignored: servers are for MXNet, which is not installed\n"
    assert capsys.readouterr().err == said


def test_a_service_names_a_misspelt_variable(launch):
    environ = {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "1", "GLUON_GC_CONECT_TIMEOUT": "1"}
    _, _, err = finish(launch(**environ))
    assert err.splitlines()[0] == (
        "gluon_gc: nothing reads the variable GLUON_GC_CONECT_TIMEOUT; "
        "did you mean GLUON_GC_CONNECT_TIMEOUT?"
    )


# A whole cluster on this machine


def test_a_local_cluster_runs_every_role_and_prefixes_their_output(launch, stand_in):
    source = f"{DONE}; print(os.environ['DMLC_ROLE'], os.environ['OMP_NUM_THREADS'])"
    environ = {"OMP_NUM_THREADS": "5", "DMLC_WORKER_ID": "77"}
    code, out, err = finish(launch(*local(2, 2, source), **environ))
    names = sorted([*CLUSTER, "DMLC_NODE_HOST", "DMLC_PS_VAN_TYPE"])
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        f"[scheduler] scheduler {names}",
        f"[server 0] server {names}",
        f"[server 1] server {names}",
        "[worker 0] worker 5",
        "[worker 1] worker 5",
    ]


@pytest.mark.parametrize("given", ["", "mine"])
def test_the_nodes_of_a_local_cluster_share_a_secret(launch, stand_in, given):
    source = f"{DONE}; print(os.environ['GLUON_GC_SECRET'])"
    stand_in(f"{UNTIL_WORKERS_ARE_DONE}\nprint(os.environ['GLUON_GC_SECRET'])")
    secrets = set()
    for _ in range(2):
        code, out, err = finish(launch(*local(1, 1, source), GLUON_GC_SECRET=given))
        assert (code, err) == (0, "")
        said = {line.split("] ")[1] for line in out.splitlines() if "DMLC" not in line}
        assert len(said) == 1
        secrets |= said
    assert secrets == {"mine"} if given else len(secrets) == 2 and len(min(secrets)) == 32


def test_local_workers_do_not_share_a_directory_for_traces(launch, stand_in):
    source = f"{DONE}; print(os.environ['BYTEPS_TRACE_DIR'])"
    words = local(2, 1, source, n="-np")  # as horovodrun spells -n
    code, out, _ = finish(launch(*words, BYTEPS_TRACE_ON="1", BYTEPS_TRACE_DIR="t"))
    assert code == 0
    assert {"[worker 0] t/worker0", "[worker 1] t/worker1"} <= set(out.splitlines())


def test_workers_may_go_on_after_the_services_have_left(launch, stand_in):
    stand_in("")
    code, out, err = finish(launch(*local(1, 1, "import time; time.sleep(1); print('end')")))
    assert (code, err) == (0, "")
    assert "[worker 0] end\n" in out


@pytest.mark.parametrize(
    "failure, code, how",
    [
        ("os._exit(3)", 3, "exited with code 3"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
    ],
)
def test_a_worker_that_fails_ends_all_with_its_code_and_last_lines(
    launch, stand_in, tmp_path, failure, code, how
):
    stand_in(NOTE_PID + FOREVER)
    source = f"""{NOTE_PID}
import pathlib, time
if os.environ["DMLC_WORKER_ID"] == "1":
    while len(list(pathlib.Path().glob("pid.*"))) < 4:
        time.sleep(0.02)
    print("first\\nlast", end="", flush=True)
    {failure}
time.sleep(1000)"""
    result, _, err = finish(launch(*local(2, 1, source)))
    assert (result, err) == (code, f"bpslaunch: worker 1 {how}; its last lines:\n  first\n  last\n")
    assert len(pids(tmp_path)) == 4 and not any(map(alive, pids(tmp_path)))


@pytest.mark.parametrize("buried", [False, True])
def test_last_lines_that_stand_at_the_end_already_are_not_repeated(
    launch, stand_in, tmp_path, buried
):
    stand_in(FOREVER)
    source = """
import os, pathlib, sys, time
def wait(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.02)
wait("go" + os.environ["DMLC_WORKER_ID"])
print("line of", os.environ["DMLC_WORKER_ID"], flush=True)
wait("fail" + os.environ["DMLC_WORKER_ID"])
sys.exit(3)"""
    process = launch(*local(2, 1, source), stderr=subprocess.STDOUT)
    lines = [process.stdout.readline() for _ in ("scheduler", "server")]
    for rank in "10" if buried else "01":
        (tmp_path / f"go{rank}").touch()
        lines.append(process.stdout.readline())
    assert sorted(lines[2:]) == ["[worker 0] line of 0\n", "[worker 1] line of 1\n"]
    (tmp_path / "fail1").touch()
    code, out, _ = finish(process)
    repeated = "; its last lines:\n  line of 1" if buried else ""
    assert (code, out) == (3, f"bpslaunch: worker 1 exited with code 3{repeated}\n")


def test_a_server_that_dies_ends_all_with_its_code(launch, stand_in, tmp_path):
    stand_in("if sys.argv[1] == 'server': sys.exit(5)\n" + FOREVER)
    code, _, err = finish(launch(*local(2, 1, NOTE_PID + FOREVER)))
    assert code == 5
    assert err.startswith("bpslaunch: server 0 exited with code 5; its last lines:\n  server ")
    assert not any(map(alive, pids(tmp_path)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_leaves_no_process_behind(launch, stand_in, tmp_path, number):
    stand_in(NOTE_PID + FOREVER)
    process = launch(*local(2, 1, NOTE_PID + FOREVER))
    wait_for(lambda: len(pids(tmp_path)) == 4)
    process.send_signal(number)
    code, _, _ = finish(process)
    assert code == (-9 if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not any(map(alive, pids(tmp_path))))


def test_a_signal_reaches_the_workers_while_the_servers_are_still_there(launch, stand_in, tmp_path):
    stand_in(NOTE_PID + FOREVER)
    source = f"""{NOTE_PID}
import pathlib, signal, sys, time
def save(*_):
    others = [p.name[4:] for p in pathlib.Path().glob("pid.*")]
    print("saved with", sum(os.path.exists("/proc/" + pid) for pid in others), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
{UNTIL_SIGNAL}"""
    process = launch(*local(1, 1, source))
    wait_for(lambda: len(pids(tmp_path)) == 3 and (tmp_path / "ready").exists())
    process.terminate()
    code, out, _ = finish(process)
    assert code == 128 + signal.SIGTERM
    assert "[worker 0] saved with 3\n" in out


def test_what_ignores_the_signal_is_killed_after_the_grace(launch, stand_in, tmp_path):
    stand_in(FOREVER)
    source = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{NOTE_PID}{FOREVER}"
    process = launch(*local(1, 1, source))
    wait_for(lambda: pids(tmp_path))
    process.terminate()
    assert finish(process)[0] == 128 + signal.SIGTERM
    assert not any(map(alive, pids(tmp_path)))


def test_what_a_worker_started_ends_with_it(launch, stand_in, tmp_path):
    child = f"{NOTE_PID}{FOREVER}"
    source = f"""import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}])
while not list(pathlib.Path().glob("pid.*")):
    time.sleep(0.02)
{DONE}"""
    assert finish(launch(*local(1, 1, source)))[0] == 0
    assert len(pids(tmp_path)) == 1
    wait_for(lambda: not any(map(alive, pids(tmp_path))))


def test_a_reader_that_goes_away_ends_the_cluster(launch, stand_in, tmp_path):
    stand_in(NOTE_PID + FOREVER)
    source = f"{NOTE_PID}import time\nwhile True: print('x'); time.sleep(0.01)"
    process = launch(*local(1, 1, source))
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    wait_for(lambda: not any(map(alive, pids(tmp_path))))


def test_the_launcher_needs_no_mxnet(launch, stand_in, tmp_path):
    (tmp_path / "mxnet.py").write_text("raise SystemExit('mxnet was imported')")
    assert finish(launch(*local(1, 1, DONE)))[0] == 0


# Restarts

COUNT = "import os; count = int(os.environ['GLUON_GC_RESTARTS'])\n"


def restarting(number, *arguments):
    return "--max-restarts", str(number), *arguments


@pytest.mark.parametrize(
    "failure, how", [("sys.exit(3)", "exited with code 3"), ("os.kill(os.getpid(), 9)", "was kil")]
)
def test_a_cluster_is_restarted_when_a_worker_fails(launch, stand_in, tmp_path, failure, how):
    stand_in(f"print(os.environ['DMLC_PS_ROOT_PORT'])\n{NOTE_PID}{UNTIL_WORKERS_ARE_DONE}")
    source = f"""{NOTE_PID}{COUNT}
import pathlib, sys, time
while len(list(pathlib.Path().glob("pid.*"))) < 4 * (count + 1):
    time.sleep(0.02)
if count == 2:
    {DONE}
    print("well", flush=True)
elif os.environ["DMLC_WORKER_ID"] == "1":
    print("last", flush=True)
    {failure}
else:
    time.sleep(1000)"""
    code, out, err = finish(launch(*restarting(2, *local(2, 1, source))))
    said = [line for line in err.splitlines() if line.startswith("bpslaunch")]
    assert code == 0 and len(said) == 2
    for restart, line in enumerate(said, start=1):
        assert line.startswith(f"bpslaunch: worker 1 {how}")
        assert line.endswith(f"; restart {restart} of 2; its last lines:")
    assert {"[worker 0] well", "[worker 1] well"} <= set(out.splitlines())
    ports = {line for line in out.splitlines() if line.startswith("[scheduler]")}
    assert len(ports) == 4  # its role, and the ports of three starts
    assert len(pids(tmp_path)) == 12 and not any(map(alive, pids(tmp_path)))


def test_what_fails_each_time_ends_with_its_code_after_the_last_restart(launch):
    words = [*PYTHON, COUNT + "print(count, flush=True); raise SystemExit(5)"]
    code, out, err = finish(launch(*restarting(2, *words), **worker()))
    assert (code, out) == (5, "0\n1\n2\n")
    assert err.splitlines() == [
        "bpslaunch: worker 1 exited with code 5; restart 1 of 2",
        "bpslaunch: worker 1 exited with code 5; restart 2 of 2",
        "bpslaunch: worker 1 exited with code 5",
    ]


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_a_service_of_its_own_is_restarted(launch, stand_in, role):
    stand_in("if os.environ['GLUON_GC_RESTARTS'] == '0': sys.exit(7)")
    port = str(free_port())
    environ = {**CLUSTER, "DMLC_ROLE": role, "DMLC_PS_ROOT_PORT": port}
    code, out, err = finish(launch(*restarting(1), **environ))
    assert (code, err) == (0, f"bpslaunch: {role} exited with code 7; restart 1 of 1\n")
    assert out.count(role) == 2


def test_all_workers_of_a_machine_are_restarted(launch, tmp_path):
    source = COUNT + (
        "rank = os.environ['BYTEPS_LOCAL_RANK']; open(f'ran{rank}.{count}', 'w').close()\n"
        "import pathlib, sys, time\n"
        "while len(list(pathlib.Path().glob(f'ran*.{count}'))) < 2: time.sleep(0.02)\n"
        "if count == 0: sys.exit(4) if rank == '1' else time.sleep(1000)"
    )
    environ = worker(BYTEPS_LOCAL_SIZE="2")
    code, _, err = finish(launch(*restarting(3, *PYTHON, source), **environ))
    assert (code, err) == (0, "bpslaunch: worker 3 exited with code 4; restart 1 of 3\n")
    assert {path.name for path in tmp_path.glob("ran*")} == {"ran0.0", "ran1.0", "ran0.1", "ran1.1"}


def test_who_is_alone_is_not_restarted_again(launch):
    words = [*PYTHON, COUNT + f"raise SystemExit({ALONE} if count else 1)"]
    code, _, err = finish(launch(*restarting(9, *words), **worker()))
    assert (code, err.count("\n")) == (ALONE, 2)


def test_a_service_that_fails_after_the_workers_is_not_restarted(launch, stand_in):
    stand_in(UNTIL_WORKERS_ARE_DONE + "if sys.argv[1] == 'server': sys.exit(7)")
    code, _, err = finish(launch(*restarting(3, *local(1, 1, DONE))))
    assert code == 7 and err.startswith("bpslaunch: server 0 exited with code 7; its last lines")


ALL_HERE_RANK_0_FAILS = """
import glob, time
while len(glob.glob("pid.*")) < int(os.environ["BYTEPS_LOCAL_SIZE"]):
    time.sleep(0.02)
if os.environ["BYTEPS_LOCAL_RANK"] == "0":
    os._exit(1)
"""


@pytest.mark.parametrize("size", ["1", "2"])
@pytest.mark.parametrize("when", ["running", "ending", "pausing"])
def test_a_signal_is_never_followed_by_a_restart(launch, tmp_path, when, size):
    fails = "" if when == "running" else ALL_HERE_RANK_0_FAILS
    patient = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if when == "ending" else ""
    source = f"import os, signal\n{patient}{NOTE_PID}{fails}{FOREVER}"
    environ = worker(BYTEPS_LOCAL_SIZE=size)
    process = launch(*restarting(9, *PYTHON, source), **environ)
    if when == "pausing":
        assert process.stderr.readline().endswith("; restart 1 of 9\n")
    else:
        wait_for(lambda: len(pids(tmp_path)) == int(size))
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 128 + signal.SIGINT
    assert not any(map(alive, pids(tmp_path)))


def test_horovodrun_is_started_again(monkeypatch):
    monkeypatch.setattr(launcher, "horovod_command", lambda words, n: ["hvd", str(n), *words])
    runs = []
    monkeypatch.setattr(launcher.supervisor, "run", lambda *arguments: runs.append(arguments))
    launcher.main(["--local", "-n", "2", "--backend", "horovod", *restarting(3, "true")])
    ((tasks, max_restarts),) = runs
    (task,) = tasks(2)
    assert (task.command, task.bare, max_restarts) == (["hvd", "2", "true"], True, 3)
    assert task.environ["GLUON_GC_RESTARTS"] == "2"


# Lines and progress bars


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_come_out_the_same_whatever_pieces_they_arrive_in(size):
    text = "plain\r\n\r 10%|\u2588\r 20%|\u2588\u2588\r 30%|\ndone\nopen".encode()
    splitter = LineSplitter()
    lines = [line for i in range(0, len(text), size) for line in splitter.feed(text[i : i + size])]
    assert lines + splitter.close() == ["plain", " 30%|", "done", "open"]


class _Terminal:
    """A stream that keeps the text that a terminal would show."""

    def __init__(self):
        self.text = ""

    def write(self, data):
        self.text += data.decode()

    def flush(self):
        self.rows = [row.rsplit("\r\x1b[K", 1)[-1] for row in self.text.split("\n")]

    def fileno(self):
        return -1


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((40, 24)))
    return _Terminal()


def test_a_progress_bar_stays_below_the_lines_of_others(terminal):
    output = PrefixedOutput(terminal, terminal=True)
    output.bar("worker 0", "10%")
    output.line("server 0", "hello")
    output.bar("worker 0", "20%")
    assert terminal.rows == ["[server 0] hello", "[worker 0] 20%"]
    output.line("worker 0", "100%")
    assert terminal.rows == ["[server 0] hello", "[worker 0] 100%", ""]


def test_a_progress_bar_never_wraps(terminal):
    PrefixedOutput(terminal, terminal=True).bar("worker 0", "x" * 100)
    assert len(terminal.rows[-1]) == 39
