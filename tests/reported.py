"""Reads what reports write: event files of TensorBoard, and the page for Prometheus."""

import random
import socket
import struct
import urllib.request
from pathlib import Path


def two_free_ports():
    """Return a port that is free, as the next one is. No system gives them to other sockets."""
    while True:
        port = random.randrange(20000, 30000)
        try:
            for each in (port, port + 1):
                with socket.socket() as free:
                    free.bind(("", each))
        except OSError:
            continue
        return port


def scalars(folder):
    """Return {step: {name: value}} of the event files in a folder, as TensorBoard reads them."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(Path(folder).glob("events*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            event = Event.FromString(data[12 : 12 + length])  # after the length's checksum
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value.simple_value
            data = data[16 + length :]
    return found


def scraped(port):
    """Return {name with labels: value} of the gauges that a worker serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
