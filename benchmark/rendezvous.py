"""Runs the rendezvous server through which Horovod's workers find each other.

    rendezvous.py HOST:1,HOST:1,...

It prints its port, and runs until its standard input is closed.
"""

import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main() -> None:
    hosts = parse_hosts(sys.argv[1])
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, len(hosts)))
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
