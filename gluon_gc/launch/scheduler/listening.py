"""Opens the socket to which a cluster's nodes connect."""

from __future__ import annotations

import errno
import socket

from ...env import ConfigurationError


def listen(host: str, port: int, whose: str = "the scheduler's own") -> socket.socket:
    """A socket that listens at this address only, not on all interfaces of the machine.

    `whose` machine must have the address, for error messages. Raises ConfigurationError if `host`
    is not an address or belongs to another machine, or if the port is in use.
    """
    try:
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    except socket.gaierror as error:
        raise ConfigurationError(
            f"DMLC_PS_ROOT_URI must be an address, got {host!r}: {error.strerror}"
        ) from None
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        reason = f"cannot listen on port {port} of {host}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is in use"
        elif error.errno == errno.EADDRNOTAVAIL:
            reason = f"DMLC_PS_ROOT_URI must be an address of {whose} machine, got {host!r}"
        raise ConfigurationError(reason) from None
    return listener
