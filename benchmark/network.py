"""Simulates several hosts on this machine: network namespaces with rate-limited links.

Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
from typing import NamedTuple, Sequence

_SUBNET = "10.77.0"
_QUEUE_SECONDS = 0.2  # the length of a link's queue; beyond it, packets are dropped
_BURST_SECONDS = 0.001  # the burst that a link sends at once
_BPF_RANDOM = 0xFFFFF038  # the address where a packet filter reads a random number
_LEAST_BURST = 32 * 1024


def bits(rate: str) -> float:
    """Parse a rate such as "100M", "1G" or "inf"; returns bits per second.

    Raises
    ------
    argparse.ArgumentTypeError
        If the text is not a rate.
    """
    units = {"K": 1e3, "M": 1e6, "G": 1e9}
    try:
        return float(rate[:-1]) * units[rate[-1]] if rate[-1:] in units else float(rate)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be bits a second like 100M, got {rate!r}") from None


def rates(text: str) -> list[float]:
    """Parse rates that are separated by commas, as `bits` parses one."""
    return [bits(rate) for rate in text.split(",")]


class Traffic(NamedTuple):
    """Bytes over a host's link so far, with all headers except Ethernet's preamble."""

    sent: int
    received: int


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


def _tc(*words: str) -> None:
    subprocess.run(["tc", *words], check=True, capture_output=True)


def _limit(namespace: str, device: str, rate: float) -> None:
    """Limit what a device sends to a rate in bits per second; infinity changes nothing."""
    if math.isinf(rate):
        return
    burst = max(_LEAST_BURST, int(rate / 8 * _BURST_SECONDS))
    limit = burst + int(rate / 8 * _QUEUE_SECONDS)
    words = f"root tbf rate {rate:.0f}bit burst {burst} limit {limit}".split()
    _tc("-n", namespace, "qdisc", "replace", "dev", device, *words)


class Network:
    """A context manager for a hub and hosts; each host has a link to the hub.

    Parameters
    ----------
    hosts : int
        The number of hosts.
    rate : float
        The rate of each direction of a link in bits per second; infinity: no limit.
    inner_rate : float
        The rate between processes of one host; infinity: no limit.

    Attributes
    ----------
    hub : str
        The hub's IP address. The hub may run processes too.
    addresses : list of str
        The hosts' IP addresses.
    interface : str
        The name of a host's network interface.

    Raises
    ------
    PermissionError
        If the user is not root.
    """

    interface = "eth0"

    def __init__(self, hosts: int, rate: float, inner_rate: float = math.inf) -> None:
        if os.geteuid() != 0:
            raise PermissionError("network namespaces need root")
        self._name = f"gc{os.getpid()}"
        self._rate, self._inner_rate = rate, inner_rate
        self._hosts = hosts
        self.hub = f"{_SUBNET}.1"
        self.addresses = [f"{_SUBNET}.{2 + host}" for host in range(hosts)]

    def _namespace(self, host: int) -> str:
        """Return the name of a host's namespace; host -1 is the hub."""
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

    def _ends(self, host: int) -> list[tuple[str, str]]:
        """Return the namespaces and devices of the two ends of a host's link."""
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
        _limit(name, "lo", self._inner_rate)

    def shape(self, host: int, rate: float) -> None:
        """Limit a host's link to a rate in bits per second; infinity changes nothing."""
        for namespace, device in self._ends(host):
            _limit(namespace, device, rate)

    def only_outgoing(self, host: int, port: int) -> None:
        """Let a host do nothing but open connections to a port of the hub. It needs nftables."""
        rules = """table inet firewall {
            chain input { type filter hook input priority 0; policy drop;
                iif lo accept; ct state established accept; }
            chain output { type filter hook output priority 0; policy drop;
                oif lo accept; ct state established accept; ip daddr %s tcp dport %d accept; }
        }"""
        words = ["ip", "netns", "exec", self._namespace(host), "nft", "-f", "-"]
        subprocess.run(words, input=rules % (self.hub, port), text=True, check=True)

    def link_down(self, host: int) -> None:
        """Block all traffic from and to a host until `link_up`."""
        _ip("-n", self._namespace(-1), "link", "set", f"port{host}", "down")

    def link_up(self, host: int) -> None:
        """Unblock the traffic of a host."""
        _ip("-n", self._namespace(-1), "link", "set", f"port{host}", "up")

    def lose(self, host: int, share: float) -> None:
        """Drop a random share of the packets in each direction of a host's link.

        A packet filter sends these packets to a class with a queue of one byte, which drops them.
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
        """Return the number of packets from a host that `lose` has dropped."""
        words = ["tc", "-n", self._namespace(host), "-s", "-j", "qdisc", "show"]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        return sum(queue["drops"] for queue in json.loads(done.stdout) if queue["kind"] == "bfifo")

    def reset(self, host: int) -> None:
        """Reset all TCP connections of a host."""
        words = ["ip", "netns", "exec", self._namespace(host)]
        words += "ss --kill --tcp state established".split()
        subprocess.run(words, check=True, capture_output=True)

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host; host -1 is the hub.

        The host's name is its IP address, because Horovod resolves its own host name.
        """
        address = self.addresses[host] if host >= 0 else self.hub
        named = ["unshare", "--uts", "sh", "-c", f'hostname {address} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self._namespace(host), *named, *words]

    def traffic(self) -> dict[int, Traffic]:
        """Return the bytes that each host has sent and received so far."""
        links = json.loads(_ip("-n", self._namespace(-1), "-s", "-j", "link"))
        by_name = {link["ifname"]: link["stats64"] for link in links}
        ports = {host: by_name[f"port{host}"] for host in range(self._hosts)}
        return {
            host: Traffic(sent=port["rx"]["bytes"], received=port["tx"]["bytes"])
            for host, port in ports.items()
        }

    def __exit__(self, *_: object) -> None:
        """Delete the namespaces. Their processes must have ended."""
        for host in range(-1, self._hosts):
            subprocess.run(
                ["ip", "netns", "delete", self._namespace(host)], check=False, capture_output=True
            )
