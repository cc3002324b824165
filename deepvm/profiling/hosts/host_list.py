"""The machines that take part in a measurement, as users write them down."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepvm.errors import CatalogFormatError, Problem, RequestError
from deepvm.io.safe_read import read_text

MOST_HOSTS = 1024
# Never a hyphen first: ssh would take the name for an option.
_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]{0,254}", re.ASCII)
_A_NAME = "a host name, an address or user@host: letters, digits and . _ - : @ % [ ], not beginning with a hyphen"
_A_LINE = "one host a line, such as: 10.0.0.7 or: ubuntu@worker-2 slots=1 address=10.0.0.8"


@dataclass(frozen=True)
class Host:
    """One machine.

    Attributes:
        name: replaces ``{host}`` in the launcher's template. address: where the others reach it; "" to find out.
        slots: processes that train on it, one for each GPU; 0 to find out.
    """

    name: str
    address: str = ""
    slots: int = 0

    @property
    def plain(self) -> str:
        """The name without the user before it."""
        return self.name.rpartition("@")[2]


def parse_hosts(text: str, option: str = "hosts") -> tuple[Host, ...]:
    """Names separated by commas; raises a RequestError for ``option`` when one is invalid or stands there twice."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    for name in names:
        if not _NAME.fullmatch(name):
            raise RequestError(option, name, _A_NAME)
    return _distinct([Host(n) for n in names], option)


def read_hosts(path: Path, option: str = "hosts_file") -> tuple[Host, ...]:
    """A host file as of torchrun or MPI: one host a line, then ``slots=`` and ``address=``; ``#`` begins comments.

    Raises:
        RequestError: no such file, no host in it, or one twice.
        CatalogFormatError: it cannot be read, or lines are no hosts: names each by its number.
    """
    try:
        text = read_text(path, f"expected a text file with {_A_LINE}")
    except FileNotFoundError:
        raise RequestError(option, str(path), f"a file that exists; {_A_LINE}") from None
    hosts: list[Host] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if words := line.partition("#")[0].split():
                hosts.append(_host(*words))
        except ValueError as error:
            problems.append(Problem(f"line {number}", repr(line.strip()[:80]), str(error)))
    if problems:
        raise CatalogFormatError(path, problems)
    return _distinct(hosts, option)


def _host(name: str, *keys: str) -> Host:
    if "<" in name:
        raise ValueError("a placeholder: fill in the address of the VM")
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected {_A_NAME}")
    address, slots = "", 0
    for word in keys:
        key, _, value = word.partition("=")
        if key == "slots" and re.fullmatch(r"[1-9][0-9]{0,2}", value, re.ASCII):
            slots = int(value)
        elif key == "address" and _NAME.fullmatch(value):
            address = value
        else:
            raise ValueError(f"{word!r} is not known; expected {_A_LINE}")
    return Host(name, address, slots)


def _distinct(hosts: Sequence[Host], option: str) -> tuple[Host, ...]:
    if not 1 <= len(hosts) <= MOST_HOSTS:
        raise RequestError(option, f"{len(hosts)} hosts", f"1 to {MOST_HOSTS} hosts, {_A_LINE}")
    for name, count in Counter(h.name for h in hosts).items():
        if count > 1:
            raise RequestError(option, name, "each host once: two processes on one VM are not two VMs")
    if len({h.slots for h in hosts}) > 1:
        alike = "the same slots= for all hosts, as the VMs of one cluster are alike"
        raise RequestError(option, "different slots", alike)
    return tuple(hosts)
