"""GLUON_GC_SECRET: a stranger without the secret is rejected, even if it knows the protocol."""

import json
import re
import socket
import threading

import pytest

from gluon_gc.launch.cli.tasks import service
from gluon_gc.launch.scheduler.protocol import OtherSecretError, Session, nonce, plain, unsealed
from tests.mxnet.cluster.cluster import last_line


def _ends(secret="s", other="s"):
    nonces = nonce(), nonce()
    return Session(secret, *nonces, is_node=True), Session(other, *nonces, is_node=False)


def test_lines_arrive_in_order_from_the_other_end():
    node, scheduler = _ends()
    for number in range(3):
        assert scheduler.open(node.seal({"number": number})) == {"number": number}
        assert node.open(scheduler.seal({"answer": number})) == {"answer": number}


@pytest.mark.parametrize("change", ["again", "left out", "back", "altered", "other session"])
def test_a_line_that_is_not_the_next_one_is_refused(change):
    node, scheduler = _ends()
    line = node.seal({"done": True})
    if change == "again":
        scheduler.open(line)
    elif change == "left out":
        line = node.seal({"left": 1})
    elif change == "back":
        node, scheduler = scheduler, node
    elif change == "altered":
        line = line.replace(b"true", b"null")
    else:
        _, scheduler = _ends()
    with pytest.raises(OtherSecretError, match="another"):
        scheduler.open(line)


@pytest.mark.parametrize("secret, other, said", [("", "s", "no"), ("t", "s", "another")])
def test_the_other_end_says_whether_there_is_a_secret(secret, other, said):
    node, scheduler = _ends(secret, other)
    with pytest.raises(OtherSecretError, match=said):
        scheduler.open(node.seal({}))


@pytest.mark.parametrize("text", [b"[]", b"[" * 8000, b"{", b"\xff", b"", b"1" * 5000])
def test_what_is_no_message_is_a_value_error(text):
    with pytest.raises(ValueError):
        unsealed(b"0" * 64 + text)


def test_who_has_no_or_another_secret_is_refused_and_the_others_join(cluster):
    nodes = cluster(2, 1, GLUON_GC_SECRET="right", BYTEPS_LOG_LEVEL="INFO")
    nodes.start("scheduler", service("scheduler"))
    nodes.start_node("server")
    nodes.start_node("worker", 0)
    for name in ("server 0", "worker 0"):
        nodes.wait_for_line("scheduler", f"{name} has come")
    for secret, has in [("", "no"), ("wrong", "another")]:
        nodes.start_node("worker", 1, GLUON_GC_SECRET=secret)
        assert nodes.wait("worker1") == 1
        assert re.search(
            "GLUON_GC_SECRET must be the same on all nodes: this one has "
            rf"{'none' if has == 'no' else has}, the scheduler at 127.0.0.1:\d+ one",
            last_line(nodes.log("worker1")),
        )
        said = f"worker 1 at 127.0.0.1 has {has} GLUON_GC_SECRET, and is not let in"
        nodes.wait_for_line("scheduler", said)
    _replay_a_hello(nodes)
    nodes.start_node("worker", 1)
    for name in ("server0", "worker0", "worker1"):
        nodes.wait_for_line(name, "joined")


def _replay_a_hello(nodes):
    """Replay a hello that was valid on an earlier connection, with that connection's nonce."""
    theirs = nonce()
    with _begun(nodes, theirs) as (link, line):
        session = Session("right", theirs, unsealed(line)["nonce"], is_node=True)
        session.open(line)
        place = {"role": "worker", "rank": 1, "local_size": 1, "framework": "mxnet", "store": None}
        hello = session.seal({**place, "settings": {}})
    with _begun(nodes, theirs) as (link, line):
        link.sendall(hello)
        assert link.recv(1) == b""


class _begun:
    def __init__(self, nodes, theirs):
        port = int(nodes.environment["DMLC_PS_ROOT_PORT"])
        self.link = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.link.sendall(plain({"nonce": theirs}))

    def __enter__(self):
        with self.link.makefile("rb") as lines:
            return self.link, lines.readline()

    def __exit__(self, *_):
        self.link.close()


def _scheduler_of(secret, listener):
    """Answer the first connection as a scheduler with this secret would."""
    link, _ = listener.accept()
    with link, link.makefile("rb") as lines:
        theirs, ours = json.loads(lines.readline())["nonce"], nonce()
        if secret is None:
            link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        else:
            session = Session(secret, theirs, ours, is_node=False)
            link.sendall(session.seal({"nonce": ours}))
        lines.read()


@pytest.mark.parametrize(
    "own, secret, said",
    [
        ("right", "wrong", "this one has another, the scheduler at .* one"),
        ("right", "", "this one has one, the scheduler at .* none"),
        ("", "wrong", "this one has none, the scheduler at .* one"),
        ("", None, "the program that listens at .* is not gluon_gc's scheduler"),
    ],
)
def test_a_false_scheduler_is_refused(cluster, own, secret, said):
    nodes = cluster(1, 1, GLUON_GC_SECRET=own)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answering = threading.Thread(target=_scheduler_of, args=(secret, listener), daemon=True)
        answering.start()
        nodes.start_node("server", DMLC_PS_ROOT_PORT=port)
        assert nodes.wait("server0") == 1
        assert re.search(said, last_line(nodes.log("server0")))
        answering.join(30)
