"""``deepvm run``: train on machines that vanish."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from deepvm.cli.output import Output
from deepvm.cli.parameters import arg, opt
from deepvm.errors import DataError


def run(
    job: Annotated[Path, arg("JOB", "Job file; docs/reference/run-file.md shows one.")],
    cloud: Annotated[str | None, opt("Where machines come from: local, ssh or aws; default: the job's.", "NAME")] = None,
    name: Annotated[str | None, opt("Name of the job; default: the job file's.", "NAME")] = None,
    output: Output = "table",
) -> None:
    """Train on machines that vanish: ask for them, save before they go, replace them, stop in time.

    Examples: deepvm run job.yaml

    deepvm run job.yaml --cloud local -o json
    """
    from deepvm.jobs.history import History
    from deepvm.jobs.jobfile import read_job_file
    from deepvm.jobs.submission import submit

    found = read_job_file(job)
    changed = {key: value for key, value in (("cloud", cloud), ("name", name)) if value is not None}
    if changed:
        found = found.model_copy(update=changed)
    with History.open() as history:
        submitted, world = submit(found, job.parent, history)
        control(submitted, world, history, output)


def control(submitted, world, history, output: str) -> None:  # type: ignore[no-untyped-def]
    """Be the controller of a job to its end, show the result, and exit as its state says."""
    import asyncio

    from deepvm.io.file_lock import FileLock
    from deepvm.jobs.controller.controller import Controller
    from deepvm.jobs.final import final_document
    from deepvm.jobs.submission import cloud_of, on_demand_price

    row = history.job(submitted.name)
    assert row is not None
    lock = FileLock(submitted.folder / "controller.lock")
    if not lock.take(shared=False):
        raise DataError(f"another process is the controller of {submitted.name}; see 'deepvm jobs show {submitted.name}'")
    try:

        def told(event) -> None:  # type: ignore[no-untyped-def]
            print(f"{event.kind} {event.state} {event.facts}", file=sys.stderr)

        controller = Controller(submitted, world, cloud_of(row.spec["cloud"]), history, told)
        end = asyncio.run(controller.run())
        price = on_demand_price(row.spec)
        events = history.events(submitted.name)
        document = final_document(submitted.name, row.created_s, end, events, None if price is None else float(price))
        history.finish(submitted.name, document)
    finally:
        lock.release()
    if output == "json":
        print(json.dumps(document, indent=2))
    if document["state"] == "failed":
        print("\n".join(controller.last_lines), file=sys.stderr)
        raise typer.Exit(1)
    if document["state"] == "stopped":
        raise typer.Exit(3)
