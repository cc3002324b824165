"""Network namespaces as hosts: each with a card ``eth0`` of its own, all at one switch, gone in every case.

``with namespaces(4) as hosts: ...``; commands get there by ``ip netns exec {host.name} ...``. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

_RUNNING = Path("/run/netns")
_NAME = re.compile(r"dvm(\d+)-\d+-\w+")
_numbers = count(1)


@dataclass(frozen=True)
class Host:
    """A namespace: its name, and the address of its ``eth0``."""

    name: str
    address: str

    def cut(self) -> None:
        """Take its link away, as a broken network would: no packet comes or goes, nobody is told."""
        ip("-n", self.name, "link", "set", "eth0", "down")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@cache
def why_not() -> str:
    """Why there can be no namespaces here, "" when there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2)"
    try:
        with namespaces(1):
            return ""
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", b"") or b""
        return f"network namespaces cannot be made here: {said.decode(errors='replace').strip() or error}"


@contextmanager
def namespaces(hosts: int) -> Iterator[list[Host]]:
    """Make them, and remove them whatever happens; those of a test run that was killed go as well.

    The switch is in a namespace too: nothing of this shows up among the machine's own cards and addresses.
    """
    _sweep()
    stem = f"dvm{os.getpid()}-{next(_numbers)}"
    switch = f"{stem}-switch"
    made = [Host(f"{stem}-{i}", f"10.88.0.{i}") for i in range(1, hosts + 1)]
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
