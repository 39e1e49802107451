"""A node reconnects to the scheduler, over real sockets."""

import asyncio
import socket
import struct
import threading

import pytest

from gluon_gc.launch.scheduler.connection import Connection
from gluon_gc.launch.scheduler.protocol import Session, nonce
from gluon_gc.launch.scheduler.reconnection import ReturnPort, come_back
from gluon_gc.launch.scheduler.scheduler import Node


@pytest.fixture
def sessions():
    """Return the two ends of a session."""
    nonces = nonce(), nonce()
    return Session("secret", *nonces, is_node=True), Session("secret", *nonces, is_node=False)


class _Worker:
    """The scheduler's end of a worker, with the methods that the port uses."""

    def __init__(self, session, came):
        self._session, self._came = session, came

    def session(self):
        return self._session

    def reconnect(self, reader, writer, received):
        self._came.append(received)
        writer.write(b'{"received": 5}\n')

    def watch_life(self, reader, writer):
        self._lives = reader, writer  # otherwise the connection would be closed


@pytest.fixture
def door(sessions):
    """Return an open port, and the list of received counts of reconnected workers."""
    came, opened, loop = [], threading.Event(), asyncio.new_event_loop()
    nodes = {"worker 0": _Worker(sessions[1], came)}

    async def serve():
        port = ReturnPort(nodes)
        await port.open("127.0.0.1")
        came.append(port.number)
        opened.set()

    loop.create_task(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert opened.wait(10)
    yield came.pop(), came
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_a_node_comes_back_and_each_end_says_how_much_it_has_received(sessions, door):
    node, scheduler = sessions
    for number in range(3):
        node.open(scheduler.seal({"number": number}))
    port, came = door
    link, received = come_back(("127.0.0.1", port), "worker 0", node)
    link.close()
    assert received == 5 and came == [3]
    assert [node.open(line) for line in [scheduler.seal({"next": 1})]] == [{"next": 1}]


def test_what_was_lost_is_sent_again_and_opens_there(sessions):
    node, scheduler = sessions
    lines = [node.seal({"number": number}) for number in range(5)]
    for line in lines[:2]:
        scheduler.open(line)
    lost = node.after(scheduler.received).splitlines(keepends=True)
    assert [scheduler.open(line)["number"] for line in lost] == [2, 3, 4]
    for impossible in (-1, 6):
        with pytest.raises(ValueError):
            node.after(impossible)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 65536,
        b"[" * 8000 + b"\n",
        b'{"name": "worker 0", "what": 3, "proof": "0"}\n',
        b'{"name": "worker 0", "what": "lives", "proof": "0"}\n',
        b'{"name": "worker 9", "what": 3, "proof": "0"}\n',
        b'{"name": [], "what": {}, "proof": null}\n',
    ],
)
def test_who_proves_nothing_is_shut_out(door, said):
    port, came = door
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        assert b"nonce" in stranger.recv(4096)
        stranger.sendall(said)
        try:
            assert stranger.recv(4096) == b""
        except ConnectionResetError:
            pass
    assert came == []


def test_another_session_proves_nothing(door, monkeypatch):
    monkeypatch.setenv("PS_HEARTBEAT_TIMEOUT", "1")
    other = Session("secret", nonce(), nonce(), is_node=True)
    port, came = door
    with pytest.raises(OSError):
        come_back(("127.0.0.1", port), "worker 0", other)
    assert came == []


def test_a_scheduler_that_has_ended_is_not_waited_for(sessions):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        come_back(("127.0.0.1", port), "worker 0", sessions[0])


def _connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = socket.create_connection(server.getsockname())
        return link, server.accept()[0]


def test_a_reset_is_one_where_a_sender_has_got_the_error(sessions, door, monkeypatch):
    monkeypatch.setenv("PS_HEARTBEAT_INTERVAL", "0")
    node, _ = sessions
    for number in range(5):
        node.seal({"number": number})
    port, came = door
    link, other = _connected()
    connection = Connection(link, node)
    connection.survives("worker 0", port)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    with pytest.raises(ConnectionError):
        # Consume the error as a sender would; a receiver then sees the end of the stream.
        link.recv(1)
    assert next(connection.messages) is None  # reconnected, without a message
    connection.close()
    assert came == [0]


def test_an_end_is_none(sessions, door):
    port, came = door
    link, other = _connected()
    connection = Connection(link, sessions[0])
    connection.survives("worker 0", port)
    other.recv(1)  # unread data would reset the connection
    other.close()
    assert list(connection.messages) == [] and came == []
    connection.close()  # or its heartbeats would go to the next socket with its number


def test_the_last_message_of_a_process_that_has_ended_is_read(sessions):
    async def run():
        accepted = asyncio.Queue()
        server = await asyncio.start_server(
            lambda *connection: accepted.put_nowait(connection), "127.0.0.1", 0
        )
        address = server.sockets[0].getsockname()
        _, main = await asyncio.open_connection(*address)
        session, scheduler = sessions
        node = Node("worker 0", scheduler, *await accepted.get())
        _, life = await asyncio.open_connection(*address)
        node.watch_life(*await accepted.get())
        message = asyncio.ensure_future(node.next())
        life.close()
        await asyncio.sleep(0.2)
        main.write(session.seal({"failed": "ValueError: x"}))
        main.close()
        assert await message == {"failed": "ValueError: x"}
        with pytest.raises(EOFError):
            await node.next()
        server.close()

    asyncio.run(run())
