"""Network namespaces as hosts, on one bridge, and `tc tbf` as their bandwidth. Needs root; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest

RECEIVER = "receiver"


@dataclass
class ShapedHosts:
    """Hosts that stand.

    Attributes:
        receiver, senders: their names, for `ip netns exec`.
        prefix: of all names that were made. network: all have addresses in this one, the bridge has the first.
    """

    prefix: str
    network: str
    receiver: str
    senders: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return [self.receiver, *self.senders]


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@cache
def why_not() -> str:
    """Why there can be no shaped hosts here; empty when there can."""
    if os.geteuid():
        return "needs root, for network namespaces and tc"
    if missing := [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]:
        return f"needs {' and '.join(missing)} (packages iproute2 and util-linux)"
    try:
        with shaped_hosts(1, receiver_mbit=100):
            return ""
    except OSError as error:
        return f"network namespaces with tc tbf do not work here: {error}"


def need_shaped_hosts() -> None:
    """Skip the test where they cannot be had."""
    if reason := why_not():
        pytest.skip(reason)


@contextlib.contextmanager
def shaped_hosts(
    senders: int,
    *,
    receiver_mbit: float | None = None,
    sender_mbit: float | None = None,
    buffer_ms: float = 100,
) -> Iterator[ShapedHosts]:
    """One receiver and so many senders; a bandwidth of None is left as it is.

    The bandwidth of a sender is that of what it sends, that of the receiver of what it is sent: TCP, MPI and the memory
    nodes see what they would see of a slow link. ``buffer_ms``: how long a packet may queue before it is dropped.
    """
    # Several tests may run at a time: the process makes names and addresses its own.
    number = os.getpid() % 60000
    prefix = f"dv{number:x}"
    network = f"10.{128 + number // 250 % 120}.{number % 250}"
    hosts = ShapedHosts(prefix, network, f"{prefix}r", [f"{prefix}s{i}" for i in range(1, senders + 1)])
    bridge = f"{prefix}b"
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "address", "add", f"{network}.1/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for place, host in enumerate(hosts.all):
            run("ip", "netns", "add", host)
            # The end in the bridge is called after the host; so it can be shaped, and goes with the namespace.
            run("ip", "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", host)
            run("ip", "link", "set", host, "master", bridge, "up")
            _in(host, "ip", "address", "add", f"{network}.{place + 2}/24", "dev", "eth0")
            _in(host, "ip", "link", "set", "eth0", "up")
            _in(host, "ip", "link", "set", "lo", "up")
            # Every kernel has it, and it shares a slow link fairly; BBR on tbf leaves a tenth of it unused, or more.
            _in(host, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        if receiver_mbit is not None:
            run(*_shape(hosts.receiver, receiver_mbit, buffer_ms))
        if sender_mbit is not None:
            for host in hosts.senders:
                _in(host, *_shape("eth0", sender_mbit, 100))
        yield hosts
    finally:
        for host in hosts.all:
            _quietly("ip", "netns", "delete", host)
            _quietly("ip", "link", "delete", host)
        _quietly("ip", "link", "delete", bridge)


def processes_in(hosts: Sequence[str]) -> list[str]:
    """Numbers of the processes that run in these namespaces."""
    found = []
    for host in hosts:
        done = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, timeout=10)
        found += done.stdout.split()
    return found


def _shape(device: str, mbit: float, buffer_ms: float) -> list[str]:
    # A bucket of less than a packet that the kernel has joined (64 KiB) would make it cut them up one by one.
    limits = ["rate", f"{mbit}mbit", "burst", "128kb", "latency", f"{buffer_ms}ms"]
    return ["tc", "qdisc", "replace", "dev", device, "root", "tbf", *limits]


def _in(host: str, *words: str) -> None:
    run("ip", "netns", "exec", host, *words)


def _quietly(*words: str) -> None:
    subprocess.run(words, capture_output=True, timeout=30)
