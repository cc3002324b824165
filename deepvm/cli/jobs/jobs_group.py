"""``deepvm jobs``, ``inject`` and ``history``: jobs that run, and those that have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from deepvm.cli.jobs import run
from deepvm.cli.jobs.serve import serve
from deepvm.cli.output import Output, OutputOrJobPage, note, print_as, print_named, text
from deepvm.cli.parameters import arg, flag, group, opt, takes_flags
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.options import option
from deepvm.core.spelling import one_of
from deepvm.errors import CheckpointError, DataError, RequestError
from deepvm.records import dataclass

if TYPE_CHECKING:
    from deepvm.jobs.history.history import History, JobRow


app = group("List, watch, save, stop and resume jobs of deepvm run.")
app.command("serve", short_help="Show jobs in a browser, live.")(serve)
_POLL_S = 0.3
_REMOTE_POLL_S = 3.0  # a request to the cloud each time
_ENDED = {"done": "is done", "failed": "has failed", "stopped": "has stopped"}
NAME = arg("NAME", "Name of a job; 'deepvm jobs ls' lists them.")


@app.command("ls", short_help="List jobs.")
def list_jobs(output: Output = "table") -> None:
    """List the jobs of the history, the newest first."""
    from deepvm.jobs.history.history import History
    from deepvm.jobs.standing import job_lines

    with History.open() as history:
        run.refresh(history, history.jobs())
        jobs = job_lines(history, time.time())
    print_named(output, text("jobs_ls", also="-o csv", jobs=jobs), "jobs", {"jobs": jobs})
    if not jobs and output == "table":
        note("no jobs yet; 'deepvm run job.yaml' starts one")


@app.command(short_help="Show a job: machines, checkpoints, money, the last events.")
def show(name: str = NAME, output: OutputOrJobPage = "table") -> None:
    """Show a job: its machines, checkpoints, money and last events.

    For a job that has ended, the final document.

    Example: deepvm jobs show resnet-7 -o html > run.html
    """
    from deepvm.jobs.standing import standing_of

    with _open_job(name) as (history, row):
        job = standing_of(history, row, time.time())
    if output == "html":
        from deepvm.reports.jobs.run_page import RunPage

        typer.echo(RunPage(job).render(), nl=False)
        return
    shown = text("job", document=job.document, events=job.events, status=job)
    print_as(output, shown, lambda: job.document)


@app.command(short_help="Print what the trainers of a job have printed.")
def logs(
    name: str = NAME,
    follow: bool = flag("--follow", "Continue until the job has ended.", "-f"),
    machine: str = opt("", "Only this machine, such as m2.", "NAME"),
    tail: int | None = opt(
        None, "Start with the last so many lines; default: with the first.", "N", min=0
    ),
    timestamps: bool = flag("--timestamps", "With the time of each line, UTC.", "-t"),
) -> None:
    """Print what the trainers of a job have printed, all machines in the order of time.

    Each line names machine and process, as m2/0, the first process of m2.

    Example: deepvm jobs logs resnet-7 -f --machine m2 --tail 20
    """
    from collections import deque

    from deepvm.jobs.head.remote import has_head
    from deepvm.jobs.history.log_files import LogReader
    from deepvm.jobs.standing import GONE, OVER, controller_of
    from deepvm.reports.terminal import without_controls

    with _open_job(name, logs=True) as (history, row):
        known = list(history.world(name).machines)
        if machine and machine not in known:
            raise RequestError("machine", machine, one_of(machine, known) or "a machine of the job")
        reader = LogReader(row.folder, machine)
        before = ""
        while True:
            controller = controller_of(row)
            is_last = controller == OVER or not follow
            for line in deque(reader.more(last=is_last), tail):
                printed = without_controls(line.shown)
                if timestamps:
                    printed = f"{line.stamp} {printed}"
                typer.echo(printed)
            if is_last:
                return
            if controller == GONE and before != GONE:
                cure = f"'deepvm jobs resume {name}'"
                note(f"{name} has no controller: nothing new comes until {cure}")
            before = controller
            tail = None
            time.sleep(_REMOTE_POLL_S if has_head(row) else _POLL_S)
            run.refresh(history, [row], logs=True)
            row = run.known_job(history, name)


@app.command(short_help="Bring a job's outputs and its newest checkpoint.")
def fetch(
    name: str = NAME,
    to: str = opt("", "Folder for them; default: NAME-results, in this folder.", "DIR"),
    all_files: bool = flag(
        "--all", "Also files that a later machine has written again, below machines/MACHINE."
    ),
    output: Output = "table",
) -> None:
    """Bring what a job has written: its outputs, and its newest checkpoint as checkpoint.pt.

    Works while a job runs, and after its end. Files in the folder that no earlier fetch of the job
    has brought stay, as do newer ones. Exit code 1: something could not be brought; 4: there is
    nothing yet.

    Example: deepvm jobs fetch resnet-7 --to results
    """
    from pathlib import Path

    from deepvm.services.job_results import fetch_results

    with _open_job(name) as (history, row):
        target = Path(to or f"{name}-results")
        results = fetch_results(row, history.world(name), target, all_files=all_files)
    if results.files or output != "table":
        print_named(output, text("jobs_fetch", results=results), "fetch", results)
    if results.problems:
        raise CheckpointError("\n".join(results.problems))


@app.command(short_help="Have a job save a checkpoint now.")
def save(name: str = NAME) -> None:
    """Have a job save a checkpoint after its next step; training continues."""
    _command(name, "save")


@app.command(short_help="End a job after a checkpoint.")
def stop(name: str = NAME) -> None:
    """End a job: it saves a checkpoint, then its machines are released.

    'deepvm jobs resume' continues it.
    """
    _command(name, "stop")


@app.command(short_help="Continue a job that is not done.")
@takes_flags
def resume(
    name: str = NAME,
    *,
    flags: run.ResumeFlags,
    detach: bool = run.DETACH,
    keep: bool = run.KEEP,
    all_ranks: bool = run.ALL_RANKS,
    yes: bool = run.YES,
    output: Output = "table",
) -> None:
    """Continue a job from its newest checkpoint.

    For a job that was stopped, has failed, or has lost its controller. Live machines are adopted,
    others replaced. They train the code that was submitted: for other code, start a new job.

    Example: deepvm jobs resume resnet-7 --total-usd 80
    """
    with _open_job(name) as (history, row):
        shows = {"keep": keep, "all_ranks": all_ranks, "yes": yes}
        run.continue_job(row, history, flags, output, detach=detach, **shows)


@app.command(short_help="List and release machines that no job needs.")
def orphans(
    names: list[str] = arg("[NAME]...", "Only of these jobs.", []),
    release: bool = flag("--release", "Release them."),
    output: Output = "table",
) -> None:
    """List live machines without a controller; --release terminates them.

    Machines of jobs that are not in this history are released only if their job is named.

    Example: deepvm jobs orphans --release resnet-7
    """
    from deepvm.jobs.cloud import UnknownError
    from deepvm.jobs.clouds.registry import clouds_of_owner
    from deepvm.jobs.history.history import History
    from deepvm.jobs.orphans import search
    from deepvm.jobs.submission import cloud_of, jobs_folder

    folder = jobs_folder()
    with History.open() as history:
        run.refresh(history, history.jobs())
        owned = clouds_of_owner(folder)
        result = search(history, cloud_of, release=release, named=names, folder=folder, owned=owned)
    print_named(output, text("jobs_orphans", orphans=result.orphans), "orphans", result)
    foreign = [*dict.fromkeys(o.job for o in result.orphans if not o.known and o.job not in names)]
    if output == "table" and len(foreign) < len({o.job for o in result.orphans}):
        note("released" if release else "deepvm jobs orphans --release ends them")
    if output == "table" and foreign:
        note(
            "these jobs may be of another history, whose controller needs the machines; if not:"
            f" deepvm jobs orphans --release {' '.join(foreign)}"
        )
    if result.problems:
        advice = "machines may still be running there; try again"
        raise UnknownError("\n".join([*result.problems, advice]))


@dataclass(frozen=True, kw_only=True)
class _InjectFlags:
    mttp: str | None = option(None, "Mean time to preemption of a machine, such as 30s.", "TIME")
    lives: str | None = option(
        None, "Instead: lifetimes of the machines in turn, or the file of a trace.", "LIST"
    )
    scale: float = option(1.0, "Multiplies those lifetimes.", "X", kind=float)
    seed: int = option(0, "Random seed; the same seed gives the same lifetimes.", "N", kind=int)
    grace: str = option("120s", "From the notice to the end.", "TIME")
    missed: float = option(0.0, "Share of preemptions without a notice.", "X", kind=float)
    late: float = option(
        0.0, "Share whose notice comes at any moment of the grace period.", "X", kind=float
    )
    silent: float = option(
        0.0, "Share that loses its link but keeps running (netns).", "X", kind=float
    )
    rebalance: float = option(
        0.0, "Share to which a rebalance is recommended before.", "X", kind=float
    )
    count: int | None = option(None, "At most so many; default: until the job ends.", "N", kind=int)


@takes_flags
def inject(name: str = NAME, *, flags: _InjectFlags) -> None:
    """Inject preemptions into a running job, on the clouds local, netns and ssh.

    Example: deepvm inject resnet-7 --mttp 30s --grace 5s --missed 0.1
    """
    _command(name, "inject", vars(flags))


def _command(name: str, command: str, inject: JsonObject | None = None) -> None:
    from deepvm.jobs.head.remote import RemoteController, has_head
    from deepvm.jobs.jobfile import checked_injection
    from deepvm.jobs.standing import current
    from deepvm.jobs.submission import head_cloud, secret_in
    from deepvm.reports.jobs.live import words

    with _open_job(name) as (history, row):
        message: JsonDict = {"command": command}
        if inject is not None:
            message["inject"] = checked_injection(inject, row.spec["cloud"])
        if row.result is not None:
            ending = _ENDED[row.result["state"]]
            raise RequestError("NAME", name, f"a job that has not ended; {name} {ending}")
        secret = secret_in(row.folder)
        if has_head(row) and (head := head_cloud(row)):
            answer = RemoteController(row, history, head, run.write_page).send(secret, message)
        else:
            answer = _send(row, secret, message)
        if "error" in answer:
            raise DataError(f"{name}: {answer['error']}")
        world = current(history.world(name), history.samples(name), 0.0)
        note(words().accepted(command, name, world.has_reported))


def _send(row: JobRow, secret: str, message: JsonObject) -> JsonDict:
    from deepvm.jobs.agent.controller_client import ControllerClient, ControllerUnreachable
    from deepvm.jobs.wire import USER, secret_of
    from deepvm.reports.jobs.live import words

    address = row.folder / "controller"
    client = ControllerClient(lambda: address.read_text().strip(), USER, secret_of(secret, USER))
    try:
        return client.ask("/command", message, 10.0)
    except ControllerUnreachable as error:
        raise DataError(words().unanswered(message["command"], row.name, error)) from None


@contextmanager
def _open_job(name: str, *, logs: bool = False) -> Iterator[tuple[History, JobRow]]:
    from deepvm.jobs.cloud import RefusedError, UnknownError
    from deepvm.jobs.history.history import History

    with History.open() as history:
        # An unreachable cloud leaves the last known state; for one job, other errors are raised
        tolerated = (RefusedError, UnknownError)
        run.refresh(history, [run.known_job(history, name)], logs=logs, tolerated=tolerated)
        yield history, run.known_job(history, name)


history_group = group("Show how long machines lived, by type, zone and market.")


@history_group.command(
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
    table = text("history_pools", also="-o csv", pools=pools)
    print_named(output, table, "pools", {"pools": pools})
    if not pools and output == "table":
        note("no machines yet; 'deepvm run job.yaml' starts some")


@history_group.command(short_help="Print all machines and their lifetimes.")
def export(output: Output = "json") -> None:
    """Print all machines of all jobs.

    Their request, launch, readiness and notice times, and how they ended.
    """
    from deepvm.jobs.history.history import History

    with History.open() as history:
        machines = history.machines()
    if output == "table":
        output = "json"
    print_named(output, lambda: None, "history", {"machines": machines})
