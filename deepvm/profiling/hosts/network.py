"""The network cards of this host, and what tells it from others."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from deepvm.errors import RequestError

_SIOCGIFADDR = 0x8915


def own_addresses() -> dict[str, str]:
    """IPv4 addresses by network card, those of loopback last; empty where the kernel does not say."""
    found = {}
    with contextlib.suppress(ImportError, OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        import fcntl  # not on every system

        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # a card without an address
                reply = fcntl.ioctl(asker, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(reply[20:24])
    return dict(sorted(found.items(), key=lambda item: item[1].startswith("127.")))


def boot_id() -> str:
    """The same on two hosts only if they are one machine under one kernel; "" where the system does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def one_machine(boots: Iterable[str]) -> bool:
    """Whether two of several hosts are one machine, by what :func:`boot_id` says on each."""
    known = [boot for boot in boots if boot]
    return len(set(known)) < len(known)


def refuse_one_machine() -> None:
    """End a measurement that was to be saved as one of VMs, when its hosts turn out to be one machine.

    Raises:
        RequestError: always.
    """
    raise RequestError(
        "force_local", False, "this option, or --save over real hosts: these are one machine, which says nothing of VMs"
    )
