"""How nodes join: settings that must be equal, and strangers at the scheduler's port."""

import json
import random
import re
import socket
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gluon_gc.launch.cli.tasks import service
from gluon_gc.launch.scheduler.protocol import Session, check_hello, nonce, plain, unsealed
from tests.mxnet.cluster.cluster import last_line

STOCK_SERVER = [sys.executable, "-c", "import mxnet"]


def _port(nodes):
    return int(nodes.environment["DMLC_PS_ROOT_PORT"])


@pytest.mark.parametrize(
    "workers, second, said",
    [
        (3, {"DMLC_WORKER_ID": 0}, "worker 0 came twice"),
        (2, {"BYTEPS_LOCAL_SIZE": 2}, r"worker \d has BYTEPS_LOCAL_SIZE \d, but worker \d has \d"),
    ],
    ids=["two workers with one number", "machines with different numbers of workers"],
)
def test_nodes_that_make_no_cluster_are_named_to_all(cluster, workers, second, said):
    nodes = cluster(workers, 1, GLUON_GC_CONNECT_TIMEOUT=12)  # nobody else comes
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    nodes.start_script(1, "exchange()", **second)
    for name in ("worker0", "worker1", "server0", "scheduler"):
        assert nodes.wait(name) == 1
        assert re.search(said, last_line(nodes.log(name)))


@pytest.mark.parametrize(
    "node, variable, value, said, first",
    [
        ("worker 1", "DMLC_NUM_WORKER", 3, "3, but the scheduler has 2", True),
        ("worker 1", "DMLC_NUM_WORKER", 3, "3, but the scheduler has 2", False),
        ("server 0", "DMLC_NUM_WORKER", 1, "1, but the scheduler has 2", True),
        ("worker 1", "DMLC_NUM_SERVER", 2, "2, but the scheduler has 1", False),
        ("server 0", "PS_HEARTBEAT_TIMEOUT", 60, "60, but the scheduler has 30", False),
        ("worker 1", "PS_HEARTBEAT_INTERVAL", 0, "0, but the scheduler has 1", True),
        ("worker 1", "PS_RESEND", 1, "True, but the scheduler has False", False),
    ],
)
def test_a_node_that_was_told_otherwise_is_named_to_all(
    cluster, node, variable, value, said, first
):
    nodes = cluster(2, 1, BYTEPS_LOG_LEVEL="INFO")
    starts = {
        "server 0": lambda **own: nodes.start("server0", service("server"), **own),
        "worker 0": lambda **own: nodes.start_script(0, "exchange()", **own),
        "worker 1": lambda **own: nodes.start_script(1, "exchange()", **own),
    }
    odd = starts.pop(node)
    nodes.start("scheduler", service("scheduler"))
    if first:
        odd(**{variable: value})
        nodes.wait_for_line("scheduler", f"{node} has come")
    for name, start in starts.items():
        start()
        if not first:
            nodes.wait_for_line("scheduler", f"{name} has come")
    if not first:
        odd(**{variable: value})
    problem = f"the cluster does not fit together: {node} has {variable} {said}"
    for name in ("scheduler", "server0", "worker0", "worker1"):
        assert nodes.wait(name) == 1
        assert problem in last_line(nodes.log(name))


def test_a_scheduler_that_was_told_otherwise_is_named(cluster):
    nodes = cluster(1, 1)
    scheduler = service("scheduler")
    nodes.start("scheduler", scheduler, DMLC_NUM_WORKER=2)
    nodes.start_script(0, "exchange()")
    assert nodes.wait("worker0") == 1
    said = "worker 0 has DMLC_NUM_WORKER 1, but the scheduler has 2"
    assert said in last_line(nodes.log("worker0"))


@pytest.mark.parametrize(
    "module, here",
    [("launch.scheduler.protocol", "the scheduler "), ("exchange.agreement", "[0-9.]+ is here")],
)
def test_another_version_of_gluon_gc_is_refused(cluster, module, here):
    nodes = cluster(1, 1)
    nodes.start_roles()
    code = (
        f"import gluon_gc as bps, gluon_gc.{module}, mxnet as mx; "
        f"bps.{module}.__version__ = '9.9.9'; "
        "bps.init(); bps.byteps_push_pull(mx.nd.ones(1), name='x')"
    )
    nodes.start("worker0", [sys.executable, "-c", code], DMLC_ROLE="worker", DMLC_WORKER_ID=0)
    assert nodes.wait("worker0") == 1
    said = rf"worker 0 (has version of|runs) gluon_gc 9.9.9, (but )?{here}"
    assert re.search(said, nodes.log("worker0"))


NO_HELLOS = {
    "nothing more": b"",
    "a port scan": b"\0",
    "ZeroMQ": b"\xff",
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,
    "no end": b"{" * 65536,
    "no nonce": b"{}\n",
    "a nonce that is none": b'{"nonce": 1e999}\n',
    "no object": b"[]\n",
    "too deep": b'{"nonce": ' + b"[" * 5000 + b"\n",
    "a number too long": b'{"nonce": ' + b"9" * 8000 + b"}\n",
}
_WORKER = {"role": "worker", "rank": 0, "local_size": 1, "settings": {}}
_WORKER.update(framework="mxnet", store=None)
FALSE_HELLOS = [
    b"\n",
    b"x" * 65536,
    b"[]",
    b'{"nonce": ' + b"[" * 5000,
    *(
        json.dumps({**_WORKER, name: value}).encode()
        for name, values in {
            "role": (1, "scheduler", None, []),
            "rank": (-1, 1e308, float("nan"), 10**18, "0", None, True, []),
            "local_size": (0, -1, 10**18, float("inf"), {}),
            "settings": (None, [], "x"),
            "framework": (None, "jax", [], 1),
            "store": (1, [], ["host"], ["host", "1"], [1, 1], {}),
        }.items()
        for value in values
    ),
]
ODD = [None, True, -1, 2**70, 1e999, "", "server", [], {}, [[]] * 9, "9" * 5000, "\ud800"]


def _damaged(line, random):
    """Return a line with bytes flipped, removed, repeated or inserted."""
    line = bytearray(line)
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(line) + 1), random.randint(1, 20)
        change = random.randrange(4)
        if change == 0 and at < len(line):
            line[at] ^= 1 << random.randrange(8)
        elif change == 1:
            del line[at : at + size]
        elif change == 2:
            line[at:at] = line[:size]
        else:
            line[at:at] = random.choice([b"\0", b"[" * 2000, b'"', b"\xff", b"NaN", b"}"])
    return bytes(line).replace(b"\n", b"")


def _damaged_hellos(random, count):
    """Yield hellos with odd values, missing values and damaged text. None of them is valid."""
    while count:
        hello = {**_WORKER, **{key: random.choice(ODD) for key in random.sample(list(_WORKER), 2)}}
        if random.random() < 0.2:
            del hello[random.choice(list(hello))]
        text = json.dumps(hello).encode()
        text = text if random.random() < 0.5 else _damaged(text, random)
        with suppress(Exception):
            check_hello(json.loads(text))
            continue
        count -= 1
        yield text


def test_strangers_are_shut_out_and_the_nodes_join(cluster):
    """This includes strangers that know the protocol, if there is no secret."""
    nodes = cluster(1, 1, BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.wait_for_line("scheduler", "server 0 has come")
    for what, data in NO_HELLOS.items():
        with _stranger(nodes, data) as stranger, suppress(ConnectionResetError):
            stranger.shutdown(socket.SHUT_WR) if not data else None
            assert stranger.recv(1) == b"", what
    for text in (*FALSE_HELLOS, *_damaged_hellos(random.Random(14), 300)):
        theirs = nonce()
        with _stranger(nodes, plain({"nonce": theirs})) as stranger, suppress(ConnectionResetError):
            with stranger.makefile("rb") as lines:
                session = Session(None, theirs, unsealed(lines.readline())["nonce"], is_node=True)
                stranger.sendall(_sealed(session, text))
                assert lines.read() == b"", text
    idle = [_stranger(nodes, b'{"nonce": ') for _ in range(1000)]
    nodes.start_script(0, "exchange()")
    nodes.wait_for_end()
    for stranger in idle:
        stranger.close()
    assert "Traceback" not in nodes.log("scheduler")
    assert nodes.log("scheduler").count("has come") == 2


def _sealed(session, text):
    """Return any bytes as the session's next line."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json, "dumps", lambda _: SimpleNamespace(encode=lambda: text))
        return session.seal({})


def _stranger(nodes, data):
    stranger = socket.create_connection(("127.0.0.1", _port(nodes)), timeout=30)
    with suppress(
        ConnectionError
    ):  # the scheduler may close the connection before all data is sent
        stranger.sendall(data)
    return stranger


def test_a_stock_mxnet_server_is_not_let_in_and_the_scheduler_says_so(cluster):
    nodes = cluster(1, 1)
    nodes.start("scheduler", service("scheduler"))
    nodes.start("server0", STOCK_SERVER, DMLC_ROLE="server")
    nodes.start_script(0, "exchange()")
    nodes.wait_for_line("scheduler", "a node at 127.0.0.1 runs MXNet's own parameter server")
    nodes.processes["server0"].kill()
    nodes.processes["server0"].wait()
    nodes.start("server0", service("server"))
    nodes.wait_for_end()
    assert nodes.log("scheduler").count("MXNet's own") == 1


def test_the_scheduler_listens_only_where_it_was_told_to(cluster):
    nodes = cluster(1, 1, DMLC_PS_ROOT_URI="127.0.0.2", BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.wait_for_line("scheduler", "server 0 has come")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", _port(nodes)))
    with pytest.raises(OSError):
        socket.create_connection(("::1", _port(nodes)))
    nodes.start_script(0, "exchange()")
    nodes.wait_for_end()


def test_the_scheduler_may_be_named_by_its_host(cluster):
    nodes = cluster(1, 1, DMLC_PS_ROOT_URI="localhost")
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    nodes.wait_for_end()


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_the_schedulers_is_refused(cluster, address):
    nodes = cluster(1, 1, DMLC_PS_ROOT_URI=address)
    nodes.start("scheduler", service("scheduler"))
    assert nodes.wait("scheduler") == 1
    said = rf"DMLC_PS_ROOT_URI must be an address.*, got '{address}'"
    assert re.search(said, last_line(nodes.log("scheduler")))


@pytest.mark.parametrize(
    "framework, said",
    [
        ("mxnet", "accepts no more nodes: either its cluster is complete, and this node is"),
        (
            "torch",
            "the cluster is complete: all of its 1 workers and 1 servers have joined, so",
        ),
    ],
)
def test_a_node_that_is_one_too_many_is_told_so_and_disturbs_nobody(cluster, framework, said):
    nodes = cluster(1, 1)
    nodes.start("scheduler", service("scheduler"))
    nodes.start_node("server", script="lifeline.wait_for_workers()")
    nodes.start_node("worker", 0, "lifeline.wait_for_workers()", framework)
    nodes.wait_for_line("worker0", "joined")
    nodes.start_node("server", 1)
    nodes.start_node("worker", 1, framework=framework, DMLC_WORKER_ID=0)
    for name in ("server1", "worker1"):
        assert nodes.wait(name) == 1
        assert said in last_line(nodes.log(name))
    assert set(nodes.ended()) == {"server1", "worker1"}


def test_a_scheduler_that_lost_a_node_says_how_long_it_stays_and_for_whom(cluster):
    nodes = cluster(2, 1, BYTEPS_LOG_LEVEL="INFO")
    nodes.start("scheduler", service("scheduler"))
    nodes.start_node("server")
    nodes.wait_for_line("scheduler", "server 0 has come")
    nodes.processes["server0"].kill()
    gone = "server 0 at 127.0.0.1 is gone"
    stays = f"{gone}; waits up to 60 s to tell worker 0, worker 1"
    nodes.wait_for_line("scheduler", stays)
    for rank in (0, 1):
        nodes.start_node("worker", rank)
    for name in ("worker0", "worker1", "scheduler"):
        assert nodes.wait(name) == 1
        assert gone in last_line(nodes.log(name))


def test_servers_that_pytorchs_workers_do_not_need_end_with_them(cluster):
    nodes = cluster(2, 2)
    nodes.start_roles()
    for rank in (0, 1):
        nodes.start_node("worker", rank, "lifeline.close()", framework="torch")
    nodes.wait_for_end()
    for rank in (0, 1):
        assert nodes.log(f"worker{rank}") == "joined ['host', 1]\n"
        assert nodes.log(f"server{rank}") == ""
    needless = "the workers train with PyTorch and need no servers (DMLC_NUM_SERVER is 2)"
    assert nodes.log("scheduler") == f"gluon_gc: scheduler: {needless}\n"


def test_workers_of_two_frameworks_make_no_cluster(cluster):
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_node("worker", 0, framework="torch")
    nodes.start_node("worker", 1)
    for name in ("worker0", "worker1", "server0", "scheduler"):
        assert nodes.wait(name) == 1
        said = r"worker \d trains with (MXNet|PyTorch), but worker \d with (PyTorch|MXNet)"
        assert re.search(said, last_line(nodes.log(name)))
