"""How a command gets to a host: through a template such as ``ssh {host}``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from deepvm.errors import RequestError
from deepvm.profiling.hosts.host_list import Host

PRESETS = {
    # ServerAlive: a machine that is silently gone is noticed after a minute, not after hours.
    "ssh": "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 {host}",
    # A host name of its own as well: to MPI, processes with one host name are on one machine.
    "netns": """ip netns exec {host} unshare --uts sh -c 'hostname "$0" && exec "$@"' {host}""",
    "local": "",
}
"""Templates by the names that ``--launcher`` knows."""
HOST, COMMAND = "{host}", "{command}"
_SHELLS = ("ssh", "rsh")


@dataclass(frozen=True)
class Launcher:
    """How a command gets to a host.

    Attributes:
        words: the template, split as a shell would. python: the interpreter there. folder: where it is started.
        quoted: whether a shell on the host reads the command: it goes as one word, quoted for that shell.
        local: whether all hosts are this machine, and their names only names.
    """

    words: tuple[str, ...]
    python: str
    folder: str
    quoted: bool
    local: bool

    @classmethod
    def parse(cls, template: str, python: str = "", folder: str = "") -> Launcher:
        """Read ``ssh``, ``netns``, ``local``, or a template: words with ``{host}`` in them.

        The command is appended to the template, or replaces ``{command}`` as one word. It is quoted there, and behind
        ``ssh`` and ``rsh``, which hand it to a shell. ``python`` is the hosts' interpreter, by default this one for
        ``netns`` and ``local``, else ``python3``; ``folder`` is where they start it, by default the launcher's choice.

        Raises:
            RequestError: no ``{host}`` in it, unbalanced quotes, or no such program or interpreter here.
        """
        local, here = template == "local", template in ("netns", "local")
        try:
            words = shlex.split(PRESETS.get(template, template))
        except ValueError as error:
            raise RequestError("launcher", template, f"balanced quotes ({error})") from None
        if not local and not any(HOST in w for w in words):
            known = ", ".join(PRESETS)
            raise RequestError("launcher", template, f"{known}, or a command with {HOST} in it, such as 'ssh {HOST}'")
        if words and HOST not in words[0] and shutil.which(words[0]) is None:
            raise RequestError("launcher", template, f"a program of this machine; there is no {words[0]} here")
        if any(COMMAND in w and w != COMMAND for w in words) or words.count(COMMAND) > 1:
            raise RequestError("launcher", template, f"{COMMAND} once and as a word of its own, or not at all")
        quoted = COMMAND in words or bool(words) and os.path.basename(words[0]) in _SHELLS
        python = python or (sys.executable if here else "python3")
        if here and not folder and shutil.which(python) is None:
            raise RequestError("python", python, "a Python of this machine that can be started")
        return cls(tuple(words), python, folder, quoted, local)

    def command(self, host: Host, module: str, arguments: Sequence[str]) -> list[str]:
        """The words to start here, so that ``python -m module arguments`` runs on the host."""
        there = self.program(module, arguments)
        words = [w.replace(HOST, host.name) for w in self.words]
        if not self.quoted:
            return [*words, *there]
        whole = joined(there)
        return [whole if w == COMMAND else w for w in words] if COMMAND in words else [*words, whole]

    def program(self, module: str, arguments: Sequence[str]) -> list[str]:
        """What runs on the host then, in words."""
        there = [self.python, "-m", module, *arguments]
        return ["sh", "-c", 'cd -- "$0" && exec "$@"', self.folder, *there] if self.folder else there


def joined(words: Sequence[str]) -> str:
    """Words as one, quoted for the shell of a host."""
    # A shell knows ~ only outside of quotes, and `--python '~/venv/bin/python'` means the home of the host.
    return " ".join("~/" + shlex.quote(w[2:]) if w.startswith("~/") else shlex.quote(w) for w in words)
