"""Network namespaces as hosts: each with a card ``eth0`` of its own, all at one switch, gone in
every case.

``with namespaces(4) as hosts: ...``; commands get there by ``ip netns exec {host.name} ...``.
``shaped_hosts`` gives them bandwidths as well, by `tc tbf`. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import pytest

_RUNNING = Path("/run/netns")
_NAME = re.compile(r"dvm(\d+)-\d+-\w+")
_numbers = count(1)


@dataclass(frozen=True)
class Host:
    """A namespace: its name, and the address of its ``eth0``."""

    name: str
    address: str

    def cut(self) -> None:
        """Take its link down like a broken network: packets are lost without a notice."""
        ip("-n", self.name, "link", "set", "eth0", "down")

    def processes(self) -> list[int]:
        """Numbers of the processes that run in it."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, timeout=10
        )
        return list(map(int, done.stdout.split()))


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@cache
def why_not(*, shaped: bool = False) -> str:
    """Why there can be no namespaces here, or none with bandwidths; "" when there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    needed = ("ip", "unshare", "hostname", "tc")[: 4 if shaped else 3]
    if missing := [name for name in needed if not shutil.which(name)]:
        return f"needs {' and '.join(missing)} (packages iproute2, util-linux and hostname)"
    try:
        with shaped_hosts(1, receiver_mbit=100) if shaped else namespaces(1):
            return ""
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", b"") or b""
        return (
            "network namespaces cannot be made here:"
            f" {said.decode(errors='replace').strip() or error}"
        )


def need_namespaces(*, shaped: bool = False) -> None:
    """Skip the test where they cannot be had."""
    if reason := why_not(shaped=shaped):
        pytest.skip(reason)


@contextmanager
def shaped_hosts(
    senders: int,
    *,
    receiver_mbit: float | None = None,
    sender_mbit: float | None = None,
    buffer_ms: float = 100,
) -> Iterator[list[Host]]:
    """One receiver, which is the first, and so many senders; a bandwidth of None is left as it is.

    The bandwidth of a sender is that of what it sends, that of the receiver of what it is sent:
    TCP, MPI and the memory nodes see what they would see of a slow link. ``buffer_ms``: how long a
    packet may queue before it is dropped. The machine itself is at the switch as well, for mpirun.
    """
    with namespaces(senders + 1, machine=True) as hosts:
        for host in hosts:
            # Every kernel has it, and it shares a slow link fairly; BBR on tbf leaves a tenth of it
            # unused, or more.
            _in(host.name, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        if receiver_mbit is not None:
            _shape(f"{hosts[0].name.rpartition('-')[0]}-switch", "port1", receiver_mbit, buffer_ms)
        if sender_mbit is not None:
            for host in hosts[1:]:
                _shape(host.name, "eth0", sender_mbit, 100)
        yield hosts


def _shape(name: str, card: str, mbit: float, buffer_ms: float) -> None:
    # A bucket of less than a packet that the kernel has joined (64 KiB) would make it cut them up
    # one by one.
    limits = ["rate", f"{mbit}mbit", "burst", "128kb", "latency", f"{buffer_ms}ms"]
    _in(name, "tc", "qdisc", "replace", "dev", card, "root", "tbf", *limits)


def _in(name: str, *words: str) -> None:
    ip("netns", "exec", name, *words)


def processes_in(hosts: Sequence[Host]) -> list[int]:
    """Numbers of the processes that run in any of them."""
    return [pid for host in hosts for pid in host.processes()]


@contextmanager
def namespaces(hosts: int, *, machine: bool = False) -> Iterator[list[Host]]:
    """Make them, and remove them whatever happens; those of a test run that was killed go as well.

    The switch is in a namespace too: nothing of this shows up among the machine's own cards and
    addresses, unless ``machine`` asks for a card at the switch for the machine itself.
    """
    _sweep()
    stem = f"dvm{os.getpid()}-{next(_numbers)}"
    switch = f"{stem}-switch"
    # Several tests may run at a time: the process makes addresses its own.
    number = os.getpid() % 30000
    network = f"10.{128 + number // 250}.{number % 250}"
    made = [Host(f"{stem}-{i}", f"{network}.{i}") for i in range(1, hosts + 1)]
    names = [switch, *(h.name for h in made)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(made, start=1):
            card = f"port{number}"
            pair = ["type", "veth", "peer", "name", card, "netns", switch]
            ip("-n", host.name, "link", "add", "eth0", *pair)
            ip("-n", switch, "link", "set", card, "master", "bridge", "up")
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "eth0", "up")
        if machine:  # this card goes with the switch
            ip("link", "add", stem, "type", "veth", "peer", "name", "machine", "netns", switch)
            ip("-n", switch, "link", "set", "machine", "master", "bridge", "up")
            ip("address", "add", f"{network}.254/24", "dev", stem)
            ip("link", "set", stem, "up")
        yield made
    finally:
        for name in names:
            _remove(name)


def _remove(name: str) -> None:
    with contextlib.suppress(subprocess.SubprocessError):
        ip("netns", "delete", name)


def _sweep() -> None:
    for path in _RUNNING.glob("dvm*") if _RUNNING.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(path.name)
