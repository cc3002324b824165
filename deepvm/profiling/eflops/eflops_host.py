"""eFLOPS of another machine: ``python -m deepvm.profiling.eflops.eflops_host`` there, and its reader here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepvm.profiling.eflops.measure_eflops import SECONDS, WINDOWS, measure_eflops
from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.hosts.launcher import Launcher
from deepvm.profiling.hosts.watchdog import emit, held, reason_of

MODULE = "deepvm.profiling.eflops.eflops_host"
_START_S = 180.0
_WINDOWS_S = 1800.0
"""For one model on a slow machine, its warm-up included."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command on the host; returns its exit code. Its one argument is JSON: the options of a measurement."""
    (order,) = sys.argv[1:] if arguments is None else arguments
    options = json.loads(order)
    with held(limit_of(options)):
        try:
            found = measure_eflops(**options, say=lambda line: emit("say", line=line))
        except Exception as error:  # whatever it is, the reason goes to who waits for it
            emit("failed", reason=reason_of(error))
            return 1
    emit("measured", document=found.document())
    return 0


def limit_of(options: Mapping[str, Any]) -> float:
    """Seconds after which a measurement with these options hangs, however slow the machine is."""
    # A slow step makes a window longer than it need be, and the warm-up takes as long as some windows.
    return _START_S + _WINDOWS_S + 4 * float(options.get("seconds", SECONDS)) * int(options.get("windows", WINDOWS))


def measure_eflops_on(
    host: Host, launcher: Launcher, options: Mapping[str, Any], *, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure on a host.

    Args:
        host: where.
        launcher: how commands get there.
        options: of :func:`~deepvm.profiling.eflops.measure_eflops.measure_eflops`, as JSON has them.
        say: gets lines about the progress.

    Returns:
        The document, see :meth:`deepvm.profiling.eflops.measure_eflops.Eflops.document`.

    Raises:
        MeasurementError: it failed there, or the host fell silent; says why.
    """
    command = launcher.command(host, MODULE, [json.dumps(dict(options))])
    with Coordinator([(host, command)]) as running:
        while (message := running.answer(0, limit_of(options)))["event"] == "say":
            say(str(message["line"]))
    return dict(message["document"])


if __name__ == "__main__":
    sys.exit(main())
