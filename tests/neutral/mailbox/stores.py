"""Stores for tests: a server of S3, and a proxy before it that a test lets fail."""

import http.client
import http.server
import importlib.util
import itertools
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

import pytest

ROOT = Path(__file__).resolve().parents[3]
SERVER = Path(__file__).with_name("s3_server.py")
TORCH = ROOT / ".venv-torch" / "bin" / "python"


def with_moto():
    """Return the Python that has moto. Skip the test if there is none."""
    if importlib.util.find_spec("moto"):
        return sys.executable
    if not TORCH.exists():
        pytest.skip("make .venv-torch/.installed makes the environment with moto")
    return str(TORCH)


class S3Server:
    """A process with a server of S3, whose buckets are empty at first."""

    def __init__(self):
        command = [with_moto(), str(SERVER)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="ascii")
        self.port = int(self.process.stdout.readline())
        self._numbers = itertools.count()

    def new_bucket(self):
        """Create a bucket, and return its name."""
        name = f"bucket-{next(self._numbers)}"
        assert send(self.port, "PUT", f"/{name}").status == 200
        return name

    def stop(self):
        self.process.kill()
        self.process.communicate()


def variables(port):
    """Return environment variables for the server at a port, or for a proxy before it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "never-shown",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }


@dataclass
class Message:
    """A request (without status) or an answer."""

    headers: Mapping[str, str]
    body: bytes
    method: str = ""
    path: str = ""
    status: int = 0


def send(port, method, path, body=b"", headers=None):
    """Send a request to a port of this machine, and return the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Message(dict(answer.headers), answer.read(), status=answer.status)
    finally:
        connection.close()


def refusal(status, code="SomeCode", message="some message"):
    """Return an answer of S3 with an error."""
    text = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Message({}, text.encode(), status=status)


class Proxy:
    """An HTTP server that passes requests on to a port.

    Attributes
    ----------
    change : function
        It gets each request, which it may change. If it returns an answer, the request is not
        passed on. A body that is shorter than the answer's Content-Length is cut short. An answer
        without a status is none: the connection is closed.
    after : function
        It gets each request and its answer, and returns the answer for the client.
    pause : float
        Seconds between pieces of 100 kB of an answer.
    requests : list of str
        The methods and paths of all requests.
    """

    def __init__(self, upstream=None):
        self.change = lambda request: None
        self.after = lambda request, answer: answer
        self.pause = 0.0
        self.requests = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Message(dict(self.headers), body, self.command, self.path)
                proxy.requests.append(f"{self.command} {self.path}")
                answer = proxy.change(request)
                if answer is None:
                    answer = send(upstream, self.command, self.path, body, request.headers)
                answer = proxy.after(request, answer)
                if answer.status:
                    self.reply(answer)

            def reply(self, answer):
                given = {name.lower(): value for name, value in answer.headers.items()}
                for name in ("connection", "transfer-encoding", "server", "date"):
                    given.pop(name, None)
                if self.command != "HEAD":
                    given.setdefault("content-length", str(len(answer.body)))
                self.send_response(answer.status)
                for name, value in given.items():
                    self.send_header(name, value)
                self.end_headers()
                for begin in range(0, len(answer.body), 100_000):
                    if begin:
                        time.sleep(proxy.pause)
                    self.wfile.write(answer.body[begin : begin + 100_000])

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *client):
                """Print nothing: a client may leave before its answer."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
