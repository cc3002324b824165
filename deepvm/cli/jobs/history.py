"""``deepvm history``: what was learnt from the jobs that have run."""

from __future__ import annotations

import time

from deepvm.cli.output import Output, note, print_as
from deepvm.cli.parameters import group

app = group("Show how long machines lived, by type, zone and market.")


@app.command(short_help="Show mean lives, missed notices and allocation times by pool.")
def pools(output: Output = "table") -> None:
    """Show for each type, zone and market: mean time to preemption with its 80 % interval, notices that never came."""
    from deepvm.jobs.history.history import History
    from deepvm.jobs.history.pools import pools_of
    from deepvm.reports.jobs import pools as report

    with History.open() as history:
        found = pools_of(history.machines(), time.time())
    document = report.pools_document(found)
    print_as(output, lambda: report.print_pools(found), lambda: document)
    if not found and output == "table":
        note("no machines yet; 'deepvm run job.yaml' starts some")


@app.command(short_help="Print all machines and their lives.")
def export(output: Output = "json") -> None:
    """Print all machines of all jobs: when they were asked for, launched, ready, noticed, and how they ended."""
    from deepvm.jobs.history.history import History
    from deepvm.reports.jobs import pools as report

    with History.open() as history:
        found = report.machines_document(history.machines())
    print_as("json" if output == "table" else output, lambda: None, lambda: found)
