"""Hosts in users' files, and the command to reach them: a template such as ``ssh {host}``."""

import json
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepvm.errors import CatalogFormatError, Issue, RequestError
from deepvm.io.safe_read import read_text
from deepvm.records import dataclass

# Templates by the names that ``--launcher`` knows
PRESETS = {
    # ServerAlive: a host that has silently gone is noticed after a minute, not after hours.
    "ssh": (
        "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o"
        " ServerAliveCountMax=4 {host}"
    ),
    # With its own host name: to MPI, processes with one host name are on one machine.
    "netns": """ip netns exec {host} unshare --uts sh -c 'hostname "$0" && exec "$@"' {host}""",
    "local": "",
}
HOST = "{host}"
COMMAND = "{command}"
_SHELLS = ("ssh", "rsh")
_MOST_HOSTS = 1024
# Never a hyphen first: ssh would take the name for an option.
_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]{0,254}", re.ASCII)
_A_NAME = (
    "a host name, an address or user@host: letters, digits and . _ - : @ % [ ], not beginning with"
    " a hyphen"
)
_A_LINE = "one host a line, such as: 10.0.0.7 or: ubuntu@worker-2 slots=1 address=10.0.0.8"
_A_KEY = "slots=, address=, port=, user=, type= and price= (dollars an hour)"


@dataclass(frozen=True)
class Host:
    """A machine: name for the launcher, address for the others, and number of processes."""

    name: str
    address: str = ""  # empty: found out
    slots: int = 0  # 0: the GPUs that it has
    port: int = 0  # of its ssh; 0: the usual
    type: str = ""
    usd_per_hour: float = 0.0

    @property
    def plain(self) -> str:
        return self.name.rpartition("@")[2]


def parse_hosts(text: str, option: str = "hosts") -> tuple[Host, ...]:
    """Hosts of names separated by commas. Raises RequestError for ``option``."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    for name in names:
        if not _NAME.fullmatch(name):
            raise RequestError(option, name, _A_NAME)
    return _distinct([Host(n) for n in names], option)


def read_hosts(path: Path, option: str = "hosts_file") -> tuple[Host, ...]:
    """A host file as for torchrun or MPI. Raises RequestError, CatalogFormatError."""
    try:
        text = read_text(path, f"a text file with {_A_LINE}")
    except FileNotFoundError:
        raise RequestError(option, str(path), f"a file that exists; {_A_LINE}") from None
    hosts = []
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if words := line.partition("#")[0].split():
                hosts.append(_host(*words))
        except ValueError as error:
            problems.append(Issue(f"{line.strip()[:80]!r}: {error}", number))
    if problems:
        raise CatalogFormatError(path, problems)
    return _distinct(hosts, option)


def _host(name: str, *keys: str) -> Host:
    if "<" in name:
        raise ValueError("a placeholder: fill in the address of the VM")
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected {_A_NAME}")
    found = {}
    for word in keys:
        key, _, value = word.partition("=")
        if key in found or not re.fullmatch(_VALUES.get(key, _NOTHING), value, re.ASCII):
            raise ValueError(f"{word!r}: expected {_A_LINE}; once each: {_A_KEY}")
        found[key] = value
    port = int(found.get("port", 0))
    user = found.get("user", "")
    if port > 65535 or (user and "@" in name):
        raise ValueError(f"port above 65535, or two users: expected {_A_LINE}")
    return Host(
        f"{user}@{name}" if user else name,
        found.get("address", ""),
        int(found.get("slots", 0)),
        port,
        found.get("type", ""),
        float(found.get("price", 0)),
    )


_NOTHING = r"(?!)"
# What may stand behind each key of a line
_VALUES = {
    "slots": r"[1-9][0-9]{0,2}",
    "address": _NAME.pattern,
    "port": r"[1-9][0-9]{0,4}",
    "user": r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}",
    "type": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "price": r"[0-9]{1,6}(\.[0-9]{1,9})?",
}


def _distinct(hosts: Sequence[Host], option: str) -> tuple[Host, ...]:
    if not 1 <= len(hosts) <= _MOST_HOSTS:
        raise RequestError(option, f"{len(hosts)} hosts", f"1 to {_MOST_HOSTS} hosts, {_A_LINE}")
    for name, count in Counter(h.name for h in hosts).items():
        if count > 1:
            raise RequestError(
                option, name, "each host once: two processes on one VM are not two VMs"
            )
    if len({h.slots for h in hosts}) > 1:
        raise RequestError(
            option,
            "different slots",
            "the same slots= for all hosts, as VMs of one cluster are alike",
        )
    return tuple(hosts)


@dataclass(frozen=True)
class Launcher:
    """How a command gets to a host: behind the ``words`` of a template."""

    words: tuple[str, ...]
    python: str
    folder: str
    quoted: bool  # as one word, for a shell on the host
    local: bool  # all hosts are this machine

    @classmethod
    def parse(cls, template: str, python: str = "", folder: str = "") -> "Launcher":
        """Read ``ssh``, ``netns``, ``local``, or a template with ``{host}``. Raises RequestError.

        The command is appended, or replaces ``{command}`` as one word, quoted there and after
        ``ssh`` and ``rsh``. ``python``: the hosts' interpreter, by default this one for ``netns``
        and ``local``, else ``python3``; ``folder``: where they start it.
        """
        local = template == "local"
        here = template in ("netns", "local")
        try:
            words = shlex.split(PRESETS.get(template, template))
        except ValueError as error:
            raise RequestError("launcher", template, f"balanced quotes ({error})") from None
        if not local and not any(HOST in w for w in words):
            raise RequestError(
                "launcher",
                template,
                f"{', '.join(PRESETS)}, or a command with {HOST} in it, such as 'ssh {HOST}'",
            )
        if words and HOST not in words[0] and shutil.which(words[0]) is None:
            raise RequestError(
                "launcher", template, f"a program of this machine; there is no {words[0]} here"
            )
        if any(COMMAND in w and w != COMMAND for w in words) or words.count(COMMAND) > 1:
            raise RequestError(
                "launcher", template, f"{COMMAND} once and as a word of its own, or not at all"
            )
        python = python or (sys.executable if here else "python3")
        if here and not folder and shutil.which(python) is None:
            raise RequestError("python", python, "a Python of this machine that can be started")
        quoted = COMMAND in words or bool(words) and os.path.basename(words[0]) in _SHELLS
        return cls(tuple(words), python, folder, quoted, local)

    def command(self, host: Host, module: str, arguments: Sequence[str]) -> list[str]:
        return self.reach(host, self.program(module, arguments))

    def agent(self, host: Host, module: str, **order: Any) -> tuple[Host, list[str]]:
        """A :func:`~.watchdog.agent` on a host, with its order, as a Coordinator takes it."""
        return host, self.command(host, module, [json.dumps(order)])

    def reach(self, host: Host, there: Sequence[str]) -> list[str]:
        words = [w.replace(HOST, host.name) for w in self.words]
        if host.port and words and os.path.basename(words[0]) == "ssh":
            words[1:1] = ["-p", str(host.port)]
        if not self.quoted:
            return [*words, *there]
        whole = shell_words(there)
        if COMMAND in words:
            return [whole if w == COMMAND else w for w in words]
        return [*words, whole]

    def program(self, module: str, arguments: Sequence[str]) -> list[str]:
        there = [self.python, "-m", module, *arguments]
        if self.folder:
            return ["sh", "-c", 'cd -- "$0" && exec "$@"', self.folder, *there]
        return there


def shell_words(words: Sequence[str]) -> str:
    """Words as one, quoted for the shell of a host."""
    # A shell expands ~ only outside quotes; it means the host's home
    return " ".join(
        "~/" + shlex.quote(w[2:]) if w.startswith("~/") else shlex.quote(w) for w in words
    )
