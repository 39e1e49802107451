"""If a step does not finish, a message names the missing node, and finally all nodes give up."""

import re
import signal
import sys
import time

import pytest

from gluon_gc.launch.cli.tasks import service
from gluon_gc.launch.scheduler.stalls import Progress, StallWatch
from tests.mxnet.cluster.cluster import last_line

SOON = 100  # seconds for all nodes to start and end under load


def _all_end(nodes, said, besides=()):
    for name in set(nodes.processes) - set(besides):
        assert nodes.wait(name, SOON) == 1
        assert re.search(said, last_line(nodes.log(name))), nodes.log(name)


def _all_come(nodes, *workers):
    """Start nodes that only join the cluster; then the workers run these scripts."""
    nodes.start("scheduler", service("scheduler"))
    nodes.start_node("server", script="time.sleep(1000)")
    for rank, script in enumerate(workers):
        nodes.start_node("worker", rank, script)


@pytest.mark.parametrize("waits", ["exchange()", "bps.shutdown()"])
def test_for_whom_a_worker_waits_is_said_to_it(cluster, waits):
    nodes = cluster(2, 1, GLUON_GC_STALL_SECONDS=2)
    nodes.start_roles()
    nodes.start_script(0, f"exchange()\n{waits}")
    nodes.start_script(1, "import time\nexchange()\ntime.sleep(1000)")
    said = "s: all wait for worker 1 at 127.0.0.1"
    nodes.wait_for_line("worker0", said)
    assert said in nodes.log("scheduler")
    assert said not in nodes.log("worker1")


_TRAINING = (
    "import time\n"
    "param = mx.gluon.Parameter('p', shape=(300, 7))\n"
    "param.initialize()\n"
    "onebit = {'compressor': 'onebit', 'ef': 'vanilla'}\n"
    "trainer = bps.DistributedTrainer([param], 'sgd', compression_params=onebit)\n"
    "def step():\n"
    "    with mx.autograd.record():\n"
    "        loss = param.data().sum()\n"
    "    loss.backward()\n"
    "    trainer.step(1)\n"
    "    mx.nd.waitall()\n"
    "step()\n"
    "file = f'{FOLDER}/states{bps.rank()}'\n"
    "trainer.save_states(file)\n"
)


@pytest.mark.parametrize(
    "other, said",
    [
        (
            "while True: step()",
            "s, because the workers are in different calls: worker 0 at 127.0.0.1 waits in "
            "load_states, worker 1 at 127.0.0.1 waits in an exchange of tensors",
        ),
        ("time.sleep(1000)", "s: all wait for worker 1 at 127.0.0.1 to call load_states"),
    ],
)
def test_a_worker_that_loads_states_alone_is_told_that_all_must(cluster, other, said):
    nodes = cluster(2, 1, GLUON_GC_STALL_SECONDS=2)
    nodes.start_roles()
    training = f"FOLDER = {str(nodes.folder)!r}\n{_TRAINING}"
    nodes.start_script(0, f"{training}trainer.load_states(file)")
    nodes.start_script(1, training + other)
    nodes.wait_for_line("worker0", said)
    assert said in nodes.log("scheduler")


def test_where_no_scheduler_sees_all_workers_the_call_is_named(monkeypatch, logged):
    monkeypatch.setenv("GLUON_GC_STALL_SECONDS", "1")
    progress = Progress()
    watch = StallWatch("worker 0", progress)
    with progress.waiting("load_states"), logged.at_level("WARNING"):
        time.sleep(2.5)
    watch.end()
    (line, *_) = logged.messages
    assert line.endswith("s: waiting for other workers to call load_states")


def test_who_is_missing_is_warned_of_and_in_the_end_all_give_up(cluster):
    nodes = cluster(3, 1, GLUON_GC_STALL_SECONDS=3, GLUON_GC_TIMEOUT=10)
    waits = "with lifeline.progress.waiting(): time.sleep(1000)"
    _all_come(nodes, waits, "time.sleep(1000)", waits)
    missing = "all wait for worker 1 at 127.0.0.1"
    _all_end(nodes, rf"no exchange has finished for 10 s: {missing} \(GLUON_GC_TIMEOUT\)")
    for name in ("scheduler", "worker0", "worker2"):
        for seconds in (3, 6, 9):
            line = f"no exchange has finished for {seconds} s: {missing}\n"
            assert nodes.log(name).count(line) == 1, nodes.log(name)
    assert "for 3 s" not in nodes.log("worker1")


def test_that_nobody_waits_is_no_stall(cluster):
    nodes = cluster(2, 1, GLUON_GC_STALL_SECONDS=1, GLUON_GC_TIMEOUT=20)
    script = "with lifeline.progress.waiting(): pass\ntime.sleep(4)\nlifeline.abandon('done')"
    _all_come(nodes, script, script)
    _all_end(nodes, "has failed: done", ["worker0", "worker1"])
    assert "no exchange" not in nodes.log("scheduler")


def test_what_the_engine_has_not_computed_is_not_waited_for(cluster):
    """It counts messages that are ready, not messages that Python has queued."""
    nodes = cluster(2, 1, GLUON_GC_STALL_SECONDS=3)
    nodes.start_roles()
    script = (
        "exchange()\n"
        "class Late(mx.operator.CustomOp):\n"
        "    def forward(self, is_train, req, in_data, out_data, aux):\n"
        "        import time\n"
        f"        open(f'{nodes.folder}/computes{{bps.rank()}}', 'w').close()\n"
        f"        while not os.path.exists('{nodes.folder}/computed'): time.sleep(0.1)\n"
        "        self.assign(out_data[0], req[0], in_data[0])\n"
        "@mx.operator.register('late')\n"
        "class LateProp(mx.operator.CustomOpProp):\n"
        "    def create_operator(self, *_): return Late()\n"
        "array = mx.nd.Custom(mx.nd.ones(1), op_type='late')\n"
        "bps.byteps_push_pull(array, name='x')\n"
        "array.wait_to_read()"
    )
    for rank in range(2):
        nodes.start_script(rank, script)
    for rank in range(2):
        nodes.wait_for(nodes.folder / f"computes{rank}")
    time.sleep(5)  # until the scheduler hears that nobody waits for others to start
    before = nodes.log("scheduler")
    time.sleep(6)
    assert "no exchange" not in nodes.log("scheduler")[len(before) :]
    (nodes.folder / "computed").touch()
    nodes.wait_for_end()


def test_a_server_that_does_not_answer_is_named(cluster):
    nodes = cluster(2, 2, GLUON_GC_STALL_SECONDS=2)
    deaf = (
        "import os, time\nfrom gluon_gc.mxnet import server\nupdate = server.Server.update\n"
        "def late(self, key, *arrays):\n"
        f"    if os.path.exists('{nodes.folder}/deaf'): time.sleep(1000)\n"
        "    update(self, key, *arrays)\n"
        "server.Server.update = late\nserver.serve()"
    )
    nodes.start("scheduler", service("scheduler"))
    nodes.start("server0", service("server"))
    nodes.start("server1", [sys.executable, "-c", deaf])
    script = (
        "def both():\n"
        "    for name in 'xy':\n"
        "        array = mx.nd.ones(100, dtype='float64')\n"
        "        bps.byteps_push_pull(array, name=name)\n"
        "    mx.nd.waitall()\n"
        f"both()\nif bps.rank() == 0: open('{nodes.folder}/deaf', 'w').close()\n"
        "while True: both()"
    )
    for rank in range(2):
        nodes.start_script(rank, script)
    for rank in range(2):
        said = "sent their messages: no answer from server "
        nodes.wait_for_line(f"worker{rank}", said)
        assert re.search(f"{said}[01] at 127.0.0.1\n", nodes.log(f"worker{rank}"))


def test_a_node_that_never_comes_is_given_up(cluster):
    nodes = cluster(2, 1, GLUON_GC_TIMEOUT=15, GLUON_GC_CONNECT_TIMEOUT=1)
    _all_come(nodes, "")
    _all_end(nodes, r"worker 1 did not come within 15 s \(GLUON_GC_TIMEOUT\)")


def test_a_worker_that_holds_pythons_lock_for_long_is_alive(cluster):
    nodes = cluster(2, 1, PS_HEARTBEAT_TIMEOUT=2)
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    nodes.start_script(1, "import ctypes\nctypes.PyDLL(None).sleep(7)\nexchange()")
    nodes.wait_for_end()


def test_standing_still_for_a_while_costs_time_and_no_more(cluster):
    """Each node stops for less than the time-out, then all together for longer."""
    nodes = cluster(2, 1, PS_HEARTBEAT_TIMEOUT=4)
    nodes.start_roles()
    script = (
        "def goes_on():\n"
        f"    ended = mx.nd.array([os.path.exists('{nodes.folder}/end')])\n"
        "    bps.byteps_push_pull(ended, name='ended', is_average=False)\n"
        "    return ended.asscalar() == 0\n"
        f"while goes_on(): open(f'{nodes.folder}/running{{bps.rank()}}', 'w').close()"
    )
    for rank in range(2):
        nodes.start_script(rank, script)
    for rank in range(2):
        nodes.wait_for(nodes.folder / f"running{rank}")
    for process, seconds in [*((p, 2) for p in nodes.processes), (None, 7)]:
        stopped = [process] if process else list(nodes.processes)
        for name in stopped:
            nodes.suspend(name)
        with pytest.raises(AssertionError):
            nodes.wait_until(nodes.ended, "", seconds)
        for name in stopped:
            nodes.processes[name].send_signal(signal.SIGCONT)
    (nodes.folder / "end").touch()
    nodes.wait_for_end()
