"""Checks network interfaces, the host's name, and the ports of the job."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import closing
from pathlib import Path
from typing import Iterator

from .. import env
from . import ERROR, GOOD, WARNING, Finding

_GET_ADDRESS, _GET_FLAGS, _UP = 0x8915, 0x8913, 1  # ioctls of Linux, and a flag
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def findings() -> Iterator[Finding]:
    """Check the interfaces, which of them the engines use, and the ports."""
    here = _interfaces()
    listed = [f"{name} {address or 'without an address'}" for name, address in here.items()]
    if any(address and not _is_loopback(address) for address in here.values()):
        yield Finding(GOOD, "interfaces", ", ".join(listed))
    else:
        text = f"{', '.join(listed) or 'none'}: other machines cannot be reached"
        yield Finding(WARNING, "interfaces", text, "connect this machine to a network")
    named = env.interfaces()
    for variable, name in named.items():
        yield _named(variable, name, here)
    if not named:
        yield _host_name()
    low, high = _PORTS.read_text().split()
    yield Finding(GOOD, "ports", f"connections use {low} to {high}")
    for of_address, of_port in (
        ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
        ("MASTER_ADDR", "MASTER_PORT"),
    ):
        if env.is_set(of_address) and env.get(of_address) in {*here.values(), "localhost"}:
            yield from _port(of_port)


def _interfaces() -> dict[str, str | None]:
    """Return the IPv4 addresses of the interfaces that are up, by name."""
    found: dict[str, str | None] = {}
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, request), 16)
            if flags & _UP:
                try:
                    answer = fcntl.ioctl(any_socket, _GET_ADDRESS, request)
                    found[name] = socket.inet_ntoa(answer[20:24])
                except OSError:
                    found[name] = None
    return found


def _named(variable: str, name: str, here: dict[str, str | None]) -> Finding:
    """Check the interface that a variable names."""
    if here.get(name):
        return Finding(GOOD, variable, f"{name}, {here[name]}")
    text = f"{name!r} has no IPv4 address" if name in here else f"{name!r} is not up"
    others = ", ".join(other for other, address in here.items() if address)
    return Finding(ERROR, variable, text, f"set it to one of {others}, or unset it")


def _host_name() -> Finding:
    """Check the address of the host's name, at which PyTorch's Gloo listens."""
    name = socket.gethostname()
    remedy = "set GLOO_SOCKET_IFNAME to the interface of the cluster's network"
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        text = f"{name} has no address ({error.strerror}), so PyTorch cannot listen there"
        return Finding(WARNING, "host name", text, f"{remedy}, or add it to /etc/hosts")
    if _is_loopback(address):
        text = f"{name} is {address}: other machines cannot reach it"
        return Finding(WARNING, "host name", text, f"{remedy}. One machine alone needs nothing")
    return Finding(GOOD, "host name", f"{name}, {address}: PyTorch listens there")


def _port(variable: str) -> Iterator[Finding]:
    """Check whether this machine's port is free, before a job starts."""
    try:
        port = env.get(variable)
    except env.ConfigurationError:
        return  # the variable is missing, or has its own finding
    with closing(socket.socket()) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            remedy = "choose another port, or end the job that uses it"
            yield Finding(WARNING, variable, f"port {port}: {error.strerror}", remedy)
            return
    yield Finding(GOOD, variable, f"port {port} is free")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
