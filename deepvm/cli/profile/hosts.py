"""Options shared by profiling commands that use several machines: hosts, launcher and timeouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.profiling.hosts.host_list import Host

LauncherName = Annotated[
    str,
    typer.Option(
        metavar="NAME|TEMPLATE",
        help="How a command gets to a host: ssh, netns (network namespaces), local (this machine under all names), or "
        "your own, such as 'ssh -p 2222 {host}' or 'docker exec -i {host}'; it must pass standard input on.",
    ),
]
PythonThere = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="Python with deepvm on the hosts.  [default: python3; netns and local: this one]"
    ),
]
Workdir = Annotated[str, typer.Option(metavar="FOLDER", help="Where it is started on the hosts.")]
StartTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="Until all hosts have found each other; the first may load slowly.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", show_default=False, help="Show what hosts print.")]
START_TIMEOUT = 180.0


def check_timeouts(start_timeout: float, timeout: float) -> None:
    """Refuse unreasonable timeouts.

    Raises:
        RequestError: one is not 1 to 1 000 000 seconds.
    """
    for option, seconds in (("start_timeout", start_timeout), ("timeout", timeout)):
        if not 1 <= seconds <= 1e6:
            raise RequestError(option, seconds, "1 to 1000000 seconds")


def hosts_of(option: str, names: str, file: str) -> tuple[Host, ...]:
    """The hosts of ``--option NAMES`` or ``--option-file FILE``, whichever was given.

    Raises:
        RequestError: both or neither were given, or they hold no hosts. DataError: the file cannot be read.
    """
    from deepvm.profiling.hosts.host_list import parse_hosts, read_hosts

    if bool(names) == bool(file):
        both = f"{names} and {file}" if names else ""
        raise RequestError(option, both, f"one of --{option} NAMES and --{option}-file FILE")
    return parse_hosts(names, option) if names else read_hosts(Path(file), f"{option}_file")
