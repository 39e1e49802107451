"""If a node leaves early, all other nodes end with a message that names it."""

import itertools
import os
import re
import signal
import sys
import time

import mxnet as mx
import pytest

import gluon_gc as bps
from gluon_gc.launch.cli.tasks import service
from tests.mxnet.cluster.cluster import last_line, start_horovod
from tests.mxnet.cluster.jobs import forever

SOON = 100  # seconds for all nodes to start and end under load
FOREVER = "while True: exchange()"


def _all_end(nodes, said, codes=None):
    """Check that all nodes end in time, and that those without an own error name the reason."""
    for name in nodes.processes:
        code = nodes.wait(name, SOON)
        if name in (codes or {}):
            assert code == codes[name]
        else:
            assert code == 1
            assert re.search(said, last_line(nodes.log(name))), nodes.log(name)


@pytest.mark.parametrize(
    "script, said, code",
    [
        ("sys.exit(3)", r"sys.exit\(3\)", 3),
        ("sys.exit('no data')", r"sys.exit\('no data'\)", 1),
        ("raise ValueError('on purpose')", "ValueError: on purpose", 1),
        ("try: 1 / 0\nfinally: bps.shutdown()", "ZeroDivisionError: division by zero", 1),
        ("try: sys.exit(4)\nfinally: bps.shutdown()", r"sys.exit\(4\)", 4),
        ("sys.excepthook = lambda *_: None\nraise KeyError('gone')", "KeyError: 'gone'", 1),
    ],
)
def test_a_script_that_fails_is_named_with_its_reason(cluster, script, said, code):
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_script(0, FOREVER)
    nodes.start_script(1, f"exchange()\n{script}")
    _all_end(nodes, f"ends: worker 1 at 127.0.0.1 has failed: {said}", {"worker1": code})
    assert nodes.log("worker1").count("Traceback") == ("Error" in said and "gone" not in said)


@pytest.mark.parametrize("script", ["sys.exit()", "pass", "bps.shutdown()", "raise SystemExit(5)"])
def test_a_script_that_ends_before_the_others_is_named(cluster, script):
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_script(0, FOREVER)
    nodes.start_script(1, f"exchange()\n{script}")
    said = r"ends: worker 1 has left after \d+ exchanges, but worker 0 has begun another"
    _all_end(nodes, said)


@pytest.mark.parametrize("script", ["", "sys.exit(0)", "bps.shutdown()"])
def test_scripts_that_end_alike_end_well_though_one_comes_late(cluster, tmp_path, script):
    nodes = cluster(2, 1)
    nodes.start_roles()
    early = f"import time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.02)\n"
    nodes.start_script(0, f"exchange()\n{early}{script}")
    nodes.start_script(1, f"exchange()\nopen('{tmp_path}/there', 'w')\n{script}")
    nodes.wait_for(tmp_path / "there")
    assert nodes.processes["worker1"].poll() is None
    (tmp_path / "go").touch()
    for name in nodes.processes:
        assert nodes.wait(name, SOON) == 0, nodes.log(name)
        assert nodes.log(name) == ""


def test_a_script_goes_on_after_it_has_left_by_an_error_but_joins_no_other(cluster):
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_script(0, FOREVER)
    nodes.start_script(
        1,
        "try:\n  try: 1 / 0\n  finally: bps.shutdown()\nexcept ZeroDivisionError: print('caught')\n"
        "try: bps.init()\nexcept RuntimeError as error: print(error)",
    )
    _all_end(nodes, "ends: worker 1 at 127.0.0.1 has failed: ZeroDivisionError", {"worker1": 1})
    caught, refused = nodes.log("worker1").splitlines()
    assert caught == "caught" and "cannot join another" in refused


@pytest.mark.parametrize("when", ["before init", "after init"])
def test_a_users_excepthook_is_called_and_the_process_leaves(cluster, when):
    hook = "sys.excepthook = lambda kind, *_: print('user saw', kind.__name__)\n"
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_script(0, FOREVER)
    before = hook if when == "before init" else ""
    nodes.start_script(1, f"{'' if before else hook}raise ValueError('x')", before=before)
    _all_end(nodes, "worker 1 at 127.0.0.1 has failed: ValueError: x", {"worker1": 1})
    assert nodes.log("worker1") == "user saw ValueError\n"


@pytest.mark.parametrize("gone", ["server 0", "worker 0"])
def test_a_node_that_dies_before_all_are_there_is_named(cluster, gone):
    nodes = cluster(2, 2, BYTEPS_LOG_LEVEL="INFO", GLUON_GC_CONNECT_TIMEOUT=12)
    nodes.start("scheduler", service("scheduler"))
    nodes.start("server0", service("server"))
    nodes.wait_for_line("scheduler", "server 0 has come")
    nodes.start("server1", service("server"))
    nodes.start_script(0, "exchange()")
    for name in ("server 1", "worker 0"):
        nodes.wait_for_line("scheduler", f"{name} has come")
    process = gone.replace(" ", "")
    nodes.processes[process].kill()
    _all_end(nodes, f"{gone}( at 127.0.0.1)? is gone", {process: -signal.SIGKILL})


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_node_that_dies_as_ps_lite_starts_is_named(cluster, role):
    """It joins the cluster, and dies before it contacts ps-lite."""
    nodes = cluster(1 + (role == "worker"), 1 + (role == "server"))
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    code = (
        "import os; from gluon_gc import env; from gluon_gc.launch.scheduler.lifeline import join\n"
        f"lifeline = join(env.cluster('{role}'), 60); print(lifeline.name, flush=True)\n"
        "os._exit(9)"
    )
    odd = {"DMLC_WORKER_ID": 1}
    if role == "server":
        taken = nodes.processes.pop("server1")
        taken.kill()
        taken.wait()
    nodes.start("odd", [sys.executable, "-c", code], **odd)
    _all_end(nodes, f"{role} [01] at 127.0.0.1 is gone", {"odd": 9})


@pytest.mark.parametrize("role", ["server", "worker", "scheduler"])
def test_a_node_that_dies_while_all_train_is_named(cluster, role):
    nodes = cluster(2, 1)
    nodes.start_roles()
    for rank in range(2):
        nodes.start_worker(rank, forever, {"folder": str(nodes.folder)})
    for rank in range(2):
        nodes.wait_for(nodes.folder / f"running{rank}")
    process = {"server": "server0", "worker": "worker1", "scheduler": "scheduler"}[role]
    nodes.processes[process].kill()
    said = {"server": "server 0", "worker": "worker 1", "scheduler": "the scheduler"}[role]
    _all_end(nodes, f"{said}( at 127.0.0.1)? is gone", {process: -signal.SIGKILL})


def _has_unread(port):
    """Return whether a process on this machine has unread data from this port."""
    sockets = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
    from_port = [fields for fields in sockets if int(fields[2].split(":")[1], 16) == port]
    return any(int(fields[4].split(":")[1], 16) > 0 for fields in from_port)


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_node_that_dies_before_it_has_read_everything_is_named_at_once(cluster, role):
    """Then the kernel resets its connection, as a bad network might."""
    nodes = cluster(2, 2, PS_HEARTBEAT_TIMEOUT=1000, PS_HEARTBEAT_INTERVAL=1)
    nodes.start("scheduler", service("scheduler"))
    for kind, rank in (("server", 0), ("worker", 0), ("server", 1), ("worker", 1)):
        nodes.start_node(kind, rank, "time.sleep(1000)")
    for name in ("server0", "server1", "worker0", "worker1"):
        nodes.wait_for_line(name, "joined")
    victim = nodes.processes[f"{role}1"]
    nodes.suspend(f"{role}1")
    port = int(nodes.environment["DMLC_PS_ROOT_PORT"])
    nodes.wait_until(lambda: _has_unread(port), "nothing is unread")
    victim.kill()
    _all_end(nodes, f"{role} [01] at 127.0.0.1 is gone", {f"{role}1": -signal.SIGKILL})


def test_a_server_that_dies_when_all_workers_are_done_costs_nothing(cluster):
    nodes = cluster(2, 2)
    nodes.start("scheduler", service("scheduler"))
    for server in range(2):
        nodes.start_node("server", server, "time.sleep(1000)")
    for rank in range(2):
        nodes.start_node("worker", rank, "lifeline.stay(); lifeline.close()")
    for rank in range(2):
        assert nodes.wait(f"worker{rank}") == 0, nodes.logs()
    nodes.processes["server1"].kill()
    for name in ("server0", "scheduler"):
        assert nodes.wait(name, SOON) == 0, nodes.logs()
        said = r"ends: server [01] at 127.0.0.1 is gone; all workers were done"
        assert re.search(said, last_line(nodes.log(name)))


STANDS_STILL = "os.kill(os.getpid(), 19)"


def _all_miss(nodes, name):
    """Check that all other nodes report missing heartbeats of a stopped node; then end it."""
    stopped = nodes.processes.pop(name.replace(" ", ""))
    where = f"{name} at 127.0.0.1" if name[-1].isdigit() else f"the {name}"
    try:
        _all_end(nodes, f"no heartbeat for 3 s from {where}")
    finally:
        stopped.kill()
        stopped.wait()


@pytest.mark.parametrize("name", ["server 0", "worker 1", "scheduler"])
def test_a_node_that_stands_still_is_missed_while_all_train(cluster, name):
    nodes = cluster(2, 1, PS_HEARTBEAT_TIMEOUT=3)
    nodes.start_roles()
    for rank in range(2):
        nodes.start_worker(rank, forever, {"folder": str(nodes.folder)})
    for rank in range(2):
        nodes.wait_for(nodes.folder / f"running{rank}")
    nodes.suspend(name.replace(" ", ""))
    _all_miss(nodes, name)


@pytest.mark.parametrize("name", ["worker 0", "scheduler"])
def test_a_node_that_stands_still_is_missed_before_all_are_there(cluster, name):
    nodes = cluster(
        2, 1, PS_HEARTBEAT_TIMEOUT=3, BYTEPS_LOG_LEVEL="INFO", GLUON_GC_CONNECT_TIMEOUT=1
    )
    nodes.start("scheduler", service("scheduler"))
    for role in ("server", "worker"):
        nodes.start_node(role)
        nodes.wait_for_line("scheduler", f"{role} 0 has come")
    nodes.suspend(name.replace(" ", ""))
    _all_miss(nodes, name)


@pytest.mark.parametrize(
    "when, before, script",
    [
        ("ps-lite starts", f"mx.kv.create = lambda _: {STANDS_STILL}\n", ""),
        ("all begin alike", "", f"{STANDS_STILL}\nbps.barrier()"),
        ("it leaves", "", f"exchange()\nmx.nd.waitall = lambda: {STANDS_STILL}\nbps.shutdown()"),
    ],
)
def test_a_worker_that_stands_still_is_missed_when(cluster, when, before, script):
    nodes = cluster(2, 1, PS_HEARTBEAT_TIMEOUT=3)
    nodes.start_roles()
    nodes.start_script(0, "exchange()" if when == "it leaves" else "bps.barrier()")
    nodes.start_script(1, script, before=before)
    _all_miss(nodes, "worker 1")


@pytest.mark.parametrize("gone", ["server 0", "worker 1", "scheduler"])
def test_a_node_that_dies_while_a_worker_waits_to_leave_is_named(cluster, tmp_path, gone):
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_script(0, f"exchange()\nopen('{tmp_path}/leaving', 'w').close()\nbps.shutdown()")
    nodes.start_script(1, "exchange()\nimport time\ntime.sleep(1000)")
    nodes.wait_for(tmp_path / "leaving")
    process = gone.replace(" ", "")
    nodes.processes[process].kill()
    _all_end(nodes, f"{gone}( at 127.0.0.1)? is gone", {process: -signal.SIGKILL})


def test_a_child_that_outlives_a_worker_does_not_hide_its_death(cluster, tmp_path):
    nodes = cluster(2, 1, PS_HEARTBEAT_INTERVAL=0)
    nodes.start_roles()
    nodes.start_script(0, FOREVER)
    fork = (
        "import multiprocessing, time\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        f"child.start(); open('{tmp_path}/child.new', 'w').write(str(child.pid))\n"
        f"os.rename('{tmp_path}/child.new', '{tmp_path}/child')\n{FOREVER}"
    )
    nodes.start_script(1, fork)
    nodes.wait_for(tmp_path / "child")
    nodes.processes["worker1"].kill()
    try:
        _all_end(nodes, "worker 1 at 127.0.0.1 is gone", {"worker1": -signal.SIGKILL})
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def leaving(how):
    """Exchange until worker 1 fails, stops or ends its script."""
    for step in itertools.count():
        tensor = mx.nd.ones(1)
        bps.byteps_push_pull(tensor, name="again")
        tensor.wait_to_read()
        if bps.rank() == 1 and step == 3:
            if how == "finally":
                try:
                    raise ValueError("on purpose")
                finally:
                    bps.shutdown()
            if how == "stall":
                time.sleep(1000)
            sys.exit(3 if how == "exit" else 0)


@pytest.mark.parametrize("how", ["exit", "finally", "early", "stall"])
def test_under_horovod_a_script_that_fails_ends_all(tmp_path, how):
    patience = {"GLUON_GC_STALL_SECONDS": 2, "GLUON_GC_TIMEOUT": 12} if how == "stall" else {}
    with start_horovod(tmp_path, leaving, {"how": how}, variables=patience) as nodes:
        assert nodes.wait("horovodrun", SOON) != 0
        said = "worker 0 ends: no exchange has finished for 12 s: waiting for other workers"
        assert (said in nodes.log("horovodrun")) == (how == "stall")
