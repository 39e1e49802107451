"""Lets Horovod's workers find each other, as horovodrun does: prints its port, ends with its input.

rendezvous.py HOST:1,HOST:1,...
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
