"""Several hosts on this machine: network namespaces with links of a given rate. Needs root."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
from typing import Dict, List, NamedTuple, Sequence, Tuple

_SUBNET = "10.77.0"
_QUEUE_SECONDS = 0.2  # what a link holds back before it drops packets
_BURST_SECONDS = 0.001  # what it sends at once
_BPF_RANDOM = 0xFFFFF038  # the address at which a packet filter finds a random number
_LEAST_BURST = 32 * 1024


def bits(rate: str) -> float:
    """Bits a second of a rate such as "100M", "1G" or "inf", for an argument.

    Raises
    ------
    argparse.ArgumentTypeError
        It is no rate.
    """
    units = {"K": 1e3, "M": 1e6, "G": 1e9}
    try:
        return float(rate[:-1]) * units[rate[-1]] if rate[-1:] in units else float(rate)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be bits a second like 100M, got {rate!r}") from None


class Traffic(NamedTuple):
    """Bytes over a host's link since it was made, with all headers but Ethernet's preamble."""

    sent: int
    received: int


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


def _tc(*words: str) -> None:
    subprocess.run(["tc", *words], check=True, capture_output=True)


class Network:
    """A hub and hosts, each linked to it at the same rate, both ways; a context manager.

    Parameters
    ----------
    hosts : int
        How many.
    rate : float
        Bits a second of each direction of a link; infinite: it is not shaped.

    Attributes
    ----------
    hub : str
        The address of the hub, which may run processes too; they share its end of all links.
    addresses : list of str
        Those of the hosts.
    interface : str
        What a host calls its link.

    Raises
    ------
    PermissionError
        Not root.
    """

    interface = "eth0"

    def __init__(self, hosts: int, rate: float) -> None:
        if os.geteuid() != 0:
            raise PermissionError("network namespaces need root")
        self._name = f"gc{os.getpid()}"
        self._rate = rate
        self._hosts = hosts
        self.hub = f"{_SUBNET}.1"
        self.addresses = [f"{_SUBNET}.{2 + host}" for host in range(hosts)]

    def _namespace(self, host: int) -> str:
        """A host's, or with -1 the hub's."""
        return f"{self._name}-{host}" if host >= 0 else f"{self._name}-hub"

    def __enter__(self) -> "Network":
        try:
            hub = self._namespace(-1)
            _ip("netns", "add", hub)
            _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
            _ip("-n", hub, "address", "add", f"{self.hub}/24", "dev", "bridge")
            for name in ("lo", "bridge"):
                _ip("-n", hub, "link", "set", name, "up")
            for host in range(self._hosts):
                self._link(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _ends(self, host: int) -> List[Tuple[str, str]]:
        """The namespaces and devices of the two ends of a host's link."""
        return [(self._namespace(-1), f"port{host}"), (self._namespace(host), self.interface)]

    def _link(self, host: int) -> None:
        hub, name, port = self._namespace(-1), self._namespace(host), f"port{host}"
        _ip("netns", "add", name)
        peer = ["peer", "name", self.interface, "netns", name]
        _ip("-n", hub, "link", "add", port, "type", "veth", *peer)
        _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"{self.addresses[host]}/24", "dev", self.interface)
        for device in ("lo", self.interface):
            _ip("-n", name, "link", "set", device, "up")
        self.shape(host, self._rate)

    def shape(self, host: int, rate: float) -> None:
        """Give a host's link a rate of its own, if it is not infinite."""
        if math.isinf(rate):
            return
        burst = max(_LEAST_BURST, int(rate / 8 * _BURST_SECONDS))
        limit = burst + int(rate / 8 * _QUEUE_SECONDS)
        words = f"root tbf rate {rate:.0f}bit burst {burst} limit {limit}".split()
        for namespace, device in self._ends(host):
            _tc("-n", namespace, "qdisc", "replace", "dev", device, *words)

    def link_down(self, host: int) -> None:
        """Let nothing through to a host nor from it, until `link_up`."""
        _ip("-n", self._namespace(-1), "link", "set", f"port{host}", "down")

    def link_up(self, host: int) -> None:
        """Let everything through again."""
        _ip("-n", self._namespace(-1), "link", "set", f"port{host}", "up")

    def lose(self, host: int, share: float) -> None:
        """Lose this share of the packets of each direction of a host's link, at random.

        A classifier sends them to a class that has room for none.
        """
        program = f"4,32 0 0 {_BPF_RANDOM},53 0 1 {int(share * 2**32)},6 0 0 0,6 0 0 {2**32 - 1}"
        words = [
            "qdisc replace dev {} root handle 1: htb default 1",
            f"class add dev {{}} parent 1: classid 1:1 htb rate {self._rate:.0f}bit quantum 60000",
            "class add dev {} parent 1: classid 1:2 htb rate 1kbit quantum 1500",
            "qdisc add dev {} parent 1:2 bfifo limit 1",
        ]
        for namespace, device in self._ends(host):
            for each in words:
                _tc("-n", namespace, *each.format(device).split())
            match = f"filter add dev {device} parent 1: bpf bytecode".split()
            _tc("-n", namespace, *match, program, "flowid", "1:2")

    def lost(self, host: int) -> int:
        """How many packets from a host its link has dropped."""
        words = ["tc", "-n", self._namespace(host), "-s", "-j", "qdisc", "show"]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        return sum(queue["drops"] for queue in json.loads(done.stdout) if queue["kind"] == "bfifo")

    def reset(self, host: int) -> None:
        """Reset all TCP connections of a host."""
        words = ["ip", "netns", "exec", self._namespace(host)]
        words += "ss --kill --tcp state established".split()
        subprocess.run(words, check=True, capture_output=True)

    def command(self, host: int, words: Sequence[str]) -> List[str]:
        """What runs a command on a host, or on the hub (-1).

        A host's name is its address, since Horovod looks its own name up.
        """
        address = self.addresses[host] if host >= 0 else self.hub
        named = ["unshare", "--uts", "sh", "-c", f'hostname {address} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self._namespace(host), *named, *words]

    def traffic(self) -> Dict[int, Traffic]:
        """What each host has sent and received so far."""
        links = json.loads(_ip("-n", self._namespace(-1), "-s", "-j", "link"))
        by_name = {link["ifname"]: link["stats64"] for link in links}
        ports = {host: by_name[f"port{host}"] for host in range(self._hosts)}
        return {
            host: Traffic(sent=port["rx"]["bytes"], received=port["tx"]["bytes"])
            for host, port in ports.items()
        }

    def __exit__(self, *_: object) -> None:
        """Remove all of it. Processes in it must have ended."""
        for host in range(-1, self._hosts):
            subprocess.run(
                ["ip", "netns", "delete", self._namespace(host)], check=False, capture_output=True
            )
