"""Damaged node messages at the scheduler's port; none of them may end the scheduler."""

import json
import random
import socket
from contextlib import suppress

HELLO = {"role": "worker", "rank": 0, "local_size": 1, "settings": {}}
HELLO.update(framework="torch", store=None)
ODD = [None, True, -1, 2**70, 1e999, "", "server", [], {}, [[]] * 9, "9" * 5000, "\ud800"]


def damaged(line, random):
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
            line[at:at] = random.choice([b"\n", b"\0", b"[" * 2000, b'"', b"\xff", b"NaN", b"}"])
    return bytes(line)


def is_of_a_node(line):
    """Return whether a line is a valid node's, by chance."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        hello = json.loads(line.split(b"\n")[0])
        return hello["role"] in ("worker", "server")
    return False


def lines(random, count):
    """Yield `count` lines that no node sends."""
    while count:
        said = dict(HELLO)
        for key in random.sample(list(said), random.randint(0, 2)):
            said[key] = random.choice(ODD)
        if random.random() < 0.2:
            del said[random.choice(list(said))]
        line = damaged(json.dumps(said).encode() + b"\n", random)
        if not is_of_a_node(line):
            count -= 1
            yield line


def test_no_line_of_a_stranger_ends_the_scheduler(cluster):
    nodes = cluster(1, 1, BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.wait_for_line("scheduler", "server 0 has come")
    port = int(nodes.environment["DMLC_PS_ROOT_PORT"])
    for line in lines(random.Random(14), 300):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
            with suppress(OSError):
                stranger.sendall(line)
                stranger.shutdown(socket.SHUT_WR)
                assert b"local_size" not in stranger.recv(1000)
    nodes.start_script(0, "exchange()")
    nodes.wait_for_end()
    assert "Traceback" not in nodes.log("scheduler")
