"""Options that the profiling commands share, and the hosts that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from deepvm.cli.parameters import flag, opt
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.profiling.hosts.host_list import Host

LauncherName = Annotated[
    str,
    opt(
        "How commands reach a host: ssh, netns (network namespaces), local (all on this machine), or your own, such as "
        "'ssh -p 2222 {host}' or 'docker exec -i {host}'; it must forward stdin.",
        "NAME|TEMPLATE",
    ),
]
PythonThere = Annotated[str, opt("Python on the hosts; default: python3, with netns and local this one.", "PATH")]
Workdir = Annotated[str, opt("Working folder on the hosts.", "FOLDER")]
StartTimeout = Annotated[float, opt("Time limit until all hosts have connected.", "SECONDS")]
Verbose = Annotated[bool, flag("--verbose", "Show the output of the hosts.", "-v")]
Resolution = Annotated[int, opt("Height and width of the images.", "PIXELS")]
Device = Annotated[Literal["auto", "cpu", "cuda"], opt("auto: all GPUs, else the CPU.")]
Sizes = Annotated[str, opt("Numbers of VMs; default: 1, 2, 4, ... and all hosts.", "N,N,...")]
WarmUp = Annotated[int, opt("Untimed steps at the start of each scaling run.", "N")]
Steps = Annotated[int, opt("Steps per window of a scaling run.", "N")]
Transport = Annotated[Literal["tcp", "mpi"], opt("Network transport; mpi needs the extra mpi on all hosts.")]
CheckpointSize = Annotated[str, opt("Size that all senders push together: 300MB, 0.3GB, 512MiB.", "SIZE")]
Save = Annotated[bool, flag("--save", "Save to your measured tables, which recommend uses.")]
ForceSpread = Annotated[bool, flag("--force-spread", "Save even eFLOPS whose windows differ by more than half.")]
ForceLocal = Annotated[bool, flag("--force-local", "Save even if processes of one machine stood for VMs.")]
InstanceType = Annotated[str, opt("Instance type of these machines; needed with --save.", "TYPE")]
START_TIMEOUT = 180.0


def check_timeouts(start_timeout: float, timeout: float) -> None:
    """Refuse timeouts outside 1 to 1 000 000 seconds. Raises RequestError."""
    for option, seconds in (("start_timeout", start_timeout), ("timeout", timeout)):
        if not 1 <= seconds <= 1e6:
            raise RequestError(option, seconds, "1 to 1000000 seconds")


def hosts_of(option: str, names: str, file: str) -> tuple[Host, ...]:
    """The hosts of ``--option NAMES`` or ``--option-file FILE``, one of them. Raises RequestError, DataError."""
    from deepvm.profiling.hosts.host_list import parse_hosts, read_hosts

    if bool(names) == bool(file):
        both = f"{names} and {file}" if names else ""
        raise RequestError(option, both, f"one of --{option} NAMES and --{option}-file FILE")
    return parse_hosts(names, option) if names else read_hosts(Path(file), f"{option}_file")
