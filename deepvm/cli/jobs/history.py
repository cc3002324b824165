"""``deepvm history``: lifetimes and notices of the machines of past jobs."""

from __future__ import annotations

import time

from deepvm.cli.output import Output, note, print_named, text
from deepvm.cli.parameters import group

app = group("Show how long machines lived, by type, zone and market.")


@app.command(
    "pools", short_help="Show mean lifetimes, missed notices and allocation times by pool."
)
def list_pools(output: Output = "table") -> None:
    """Show mean lifetimes, missed notices and allocation times for each type, zone and market.

    The mean time to preemption comes with its 80 % interval.
    """
    from deepvm.jobs.history.history import History
    from deepvm.jobs.history.pools import pools_of

    with History.open() as history:
        pools = pools_of(history.machines(), time.time())
    print_named(
        output, text("history_pools", also="-o csv", pools=pools), "pools", {"pools": pools}
    )
    if not pools and output == "table":
        note("no machines yet; 'deepvm run job.yaml' starts some")


@app.command(short_help="Print all machines and their lifetimes.")
def export(output: Output = "json") -> None:
    """Print all machines of all jobs.

    Their request, launch, readiness and notice times, and how they ended.
    """
    from deepvm.jobs.history.history import History

    with History.open() as history:
        machines = history.machines()
    form = "json" if output == "table" else output
    print_named(form, lambda: None, "history", {"machines": machines})
