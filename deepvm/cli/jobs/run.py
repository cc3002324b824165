"""``deepvm run``: train on preemptible machines."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepvm.cli.output import Output, note, print_as, say, text, warn
from deepvm.cli.parameters import CLOUDS, arg, flag, takes_flags, words_of
from deepvm.cli.questions import DECLINED, chosen, confirm, has_terminal
from deepvm.core.json_types import JsonDict
from deepvm.core.options import option
from deepvm.core.spelling import joined, one_of
from deepvm.errors import DataError, OptionMismatchError, RequestError
from deepvm.records import dataclass

if TYPE_CHECKING:
    from deepvm.jobs.cloud import HostsController
    from deepvm.jobs.controller.controller import ControlledJob, Controller
    from deepvm.jobs.decisions.world import JobState
    from deepvm.jobs.head.mirror_keeper import StateReplicator
    from deepvm.jobs.history.history import EventRow, History, JobRow
    from deepvm.services.job_start import StartRisk
    from deepvm.services.jobs import JobPlan

_POLL_S = 0.05
CONTROLLER_LOG = "controller.log"  # In a job's folder: of a controller in the background
_UNASKED = "is not given, and there is no terminal to ask"
_RESUME, _REPLACE, _NEW, _STOP = "resume", "replace", "new", "stop"
KEEP = flag("--keep", "On Ctrl-C leave the machines training; default: save, then release them.")
ALL_RANKS = flag("--all-ranks", "Show what all processes print; default: the first one.")
YES = flag("--yes", "Rent without asking; needed where there is no terminal.")
DETACH = flag("--detach", "Return at once; 'deepvm jobs' watches and stops the job.")


REHEARSAL: JsonDict = {"lives": ["8 s"], "grace": "10s", "count": 1}  # ``inject`` of a job file


@dataclass(frozen=True, kw_only=True)
class _JobFlags:
    cloud: str | None = option(
        None, f"Where machines come from: {CLOUDS}; default: the job's.", "NAME"
    )
    name: str | None = option(
        None, "Name of the job; default: the job file's, or the script's.", "NAME"
    )
    total_usd: float | None = option(
        None,
        "Save and stop before the job costs more, in dollars; default: the job file's.",
        "USD",
        kind=float,
    )
    max_price: float | None = option(
        None,
        "Most that all machines may cost when prices rise, $/h; default: no limit but the"
        " cloud's own.",
        "USD",
        kind=float,
    )
    steps: int | None = option(
        None,
        "Steps of all the work: shows how far it is, and a forecast; default: the job file's.",
        "N",
        kind=int,
    )
    outputs: str | None = option(
        None,
        "What the script writes, to keep: names and patterns such as '*.pt,logs/'; default: the"
        " job's, else outputs/.",
        "NAMES",
    )
    processes_per_machine: str | None = option(
        None,
        "Copies of the command on each machine: a number, or gpus; default: the job's.",
        "N|gpus",
    )
    rehearse: bool = option(
        False,
        "Preempt a machine after 8 s of training, at 10 s notice, to see what is lost; not on a"
        " cloud's machines.",
        None,
        "--rehearse",
    )
    independent_processes: bool = option(
        False,
        "Separate trainings: each process sees its GPU only, and forms no group.",
        None,
        "--independent-processes",
    )
    no_resume_check: bool = option(
        False,
        "Start a script on spot machines that cannot resume: it starts again when preempted.",
        None,
        "--no-resume-check",
    )


@takes_flags
def run(
    job: Path = arg("JOB", "Job file, see 'deepvm help running'. Or a plan, with a COMMAND."),
    *,
    flags: _JobFlags,
    command: list[str] | None = arg(
        "[-- COMMAND...]",
        "What trains on a plan of 'recommend -o json', in this folder; python, not torchrun.",
        None,
    ),
    detach: bool = DETACH,
    dry_run: bool = flag("--dry-run", "Show what would be rented, and rent nothing."),
    keep: bool = KEEP,
    validate: bool = flag(
        "--validate", "At the end, compare with 'deepvm simulate', given the observed lifetimes."
    ),
    all_ranks: bool = ALL_RANKS,
    replace: bool = flag(
        "--replace", "Start over in the place of an ended job of the name, whose files go."
    ),
    yes: bool = YES,
    output: Output = "table",
) -> None:
    """Train on preemptible machines: rent them, save before a preemption, replace, stop in time.

    Examples: deepvm run job.yaml

    deepvm run plan.json --total-usd 5 -- python train.py
    """
    from deepvm.documents.build import document_of
    from deepvm.jobs.history.forecast import refuse_unlike
    from deepvm.jobs.history.history import History
    from deepvm.jobs.jobfile import changed, job_of_plan, read_job_file, remarks
    from deepvm.jobs.submission import (
        about,
        free_name,
        head_cloud,
        reached_cloud,
        starts_over,
        submit,
        world_of,
    )
    from deepvm.services.job_start import job_start
    from deepvm.services.jobs import plan_job

    # Without the option the job file decides
    given = {**vars(flags), "independent_processes": flags.independent_processes or None}
    if given.pop("no_resume_check"):
        given["resume_check"] = False
    if given.pop("rehearse"):
        given["inject"] = REHEARSAL
    if command:
        job_file = changed(job_of_plan(job, command), **given)
        job = Path(job.name)  # the plan's paths are relative to this folder
        if flags.cloud is None:
            note("machines are simulated on this computer; --cloud aws rents them")
    else:
        job_file = changed(read_job_file(job), **given)
    for line in remarks(job_file):
        note(line)
    starts = "starts over"
    if not dry_run:
        with History.open() as history:
            refresh(history, [row for row in history.jobs() if row.name == job_file.name])
            known = history.job(job_file.name)
            if known is not None:
                if not replace and starts_over(known, history):
                    starts = f"had kept nothing and {starts}"
                    replace = True
                answer = _on_known_name(known, history, replaces=replace)
                replace = answer == _REPLACE
                if answer == _RESUME:
                    limits = ResumeFlags(total_usd=flags.total_usd, max_price=flags.max_price)
                    shows = {"keep": keep, "all_ranks": all_ranks, "yes": yes}
                    continue_job(known, history, limits, output, detach=detach, **shows)
                    return
                if answer == _NEW:
                    job_file = changed(job_file, name=free_name(known.name, history))
    start = job_start(job_file, job)
    job_file = start.job
    if start.note:
        note(start.note)
    for risk in start.risks:
        _accept_risk(risk, partial(reached_cloud, job_file, detach=detach), dry_run=dry_run)
    if dry_run:
        document = document_of("jobs.RunPlan", plan_job(job_file, job, detach=detach))
        print_as(output, text("run_plan", plan=document), lambda: document)
        return
    if validate:
        if detach:
            reason = "does not go with --detach: the comparison is printed at the end"
            raise OptionMismatchError("validate", True, reason)
        with about(job):
            refuse_unlike(world_of(job_file, job.parent, 0.0).terms)
    if start.costs and not yes:
        _confirm_spending(lambda: plan_job(job_file, job, detach=detach))
    with History.open() as history:
        submitted, world = submit(job_file, job, history, detach=detach, replaces=replace)
        if replace:
            where = ", ".join(submitted.spec["tiers"])
            note(f"{submitted.name} {starts}, with new checkpoints at {where}")
        if detach:
            row = known_job(history, submitted.name)
            if head := head_cloud(row):
                start_head(row, history, head)
            else:
                detached(submitted)
        else:
            with only_controller(submitted.name, submitted.folder):
                shows = {"validate": validate, "all_ranks": all_ranks, "rehearse": flags.rehearse}
                control(submitted, world, history, output, keep=keep, **shows)


def refresh(history: History, rows: Sequence[JobRow], **how: Any) -> None:
    """Bring jobs up to date: with what remote controllers and killed replacements have left."""
    from deepvm.jobs.head.remote import refresh_all
    from deepvm.jobs.submission import cloud_of, settle_replacements

    settle_replacements(rows, history)
    refresh_all(history, rows, cloud_of, note, write_page, **how)


def _on_known_name(known: JobRow, history: History, *, replaces: bool) -> str:
    """What to do about a job of the same name. Raises RequestError without a terminal."""
    from deepvm.jobs.submission import check_replaceable, free_name, name_is_taken

    if not (replaces or has_terminal()):
        raise name_is_taken(known, history)
    answer = _REPLACE
    if not replaces:
        note(f"there is a job {known.name} already, which is {known.state}")
        fresh = free_name(known.name, history)
        answers = {
            _RESUME: "resume it",
            _REPLACE: "replace it",
            _NEW: f"start a new job {fresh}",
            _STOP: "stop",
        }
        if known.result is not None and known.state == "done":
            del answers[_RESUME]
        answer = chosen(f"Do you want to {joined(answers.values(), 'or')}?", [*answers])
    if answer == _STOP:
        raise typer.Exit(DECLINED)
    if answer == _REPLACE:
        check_replaceable(known)
    return answer


def _accept_risk(risk: StartRisk, check: Callable[[], object], *, dry_run: bool) -> None:
    """Show what may be lost, and ask whether to start all the same, if a check raises nothing."""
    warn(risk.reason)
    if risk.lines:
        say("To keep its steps, add these lines, with the names of your script:")
        for line in risk.lines:
            say(f"    {line}")
    if not risk.refuses or dry_run:
        return
    if not has_terminal():
        option = risk.accepts.removeprefix("--").partition(" ")[0].replace("-", "_")
        cure = f"{risk.accepts}, to start it as it is; or {risk.instead}"
        raise OptionMismatchError(option, None, _UNASKED, cure)
    check()
    say(f"Or take {risk.instead}.")
    confirm(f"Start it as it is ({risk.accepts})?")


def _confirm_spending(plan_job: Callable[[], JobPlan]) -> None:
    """Show what would be rented, and ask. Raises RequestError where there is no terminal."""
    from deepvm.core.units import format_money
    from deepvm.documents.build import document_of
    from deepvm.reports.text import text_blocks

    if not has_terminal():
        raise OptionMismatchError(
            "yes",
            None,
            _UNASKED,
            "--yes, to spend the money; --dry-run, to see what would be rented",
        )
    plan = plan_job()
    for line in text_blocks("run_plan", ["plan"], plan=document_of("jobs.RunPlan", plan)):
        say(line)
    limit = (
        f"{format_money(plan.most_usd_per_hour)}/h, without a limit in all (--total-usd sets one)"
    )
    if plan.most_usd is not None:
        limit = format_money(plan.most_usd)
    confirm(f"Spend up to {limit}?")


def known_job(history: History, name: str) -> JobRow:
    """A job of the history. Raises RequestError: there is none of this name."""
    row = history.job(name)
    if row is None:
        known = [job.name for job in history.jobs()]
        raise RequestError("NAME", name, one_of(name, known) or "the name of a job")
    return row


def start_head(
    row: JobRow,
    history: History,
    cloud: HostsController,
    resumed: Callable[[], JobState] | None = None,
) -> None:
    """Rent a machine for the controller of a job. Raises CloudError, DataError."""
    from deepvm.jobs.cloud import RefusedError, UnknownError, head_name
    from deepvm.jobs.head.remote import RemoteController

    try:
        state = RemoteController(row, history, cloud).start(resumed)
    except (RefusedError, UnknownError) as error:
        raise type(error)(
            f"no machine for the controller of {row.name}: {error}; 'deepvm jobs resume"
            f" {row.name}' tries again, without a second one"
        ) from None
    typer.echo(row.name)
    usd = cloud.head_usd_per_hour()
    note(
        f"{head_name(state.number)} will run the controller of {row.name} in a few minutes, for"
        f" ${usd:g}/h until the job is over; 'deepvm jobs show {row.name}' shows it, 'deepvm jobs"
        " stop' ends it"
    )


@dataclass(frozen=True, kw_only=True)
class ResumeFlags:
    """Limits of a job from now on; those that are not given are as before."""

    total_usd: float | None = option(
        None, "Pay up to so much in all, what was paid included.", "USD", kind=float
    )
    max_price: float | None = option(
        None, "Most that all machines may cost when prices rise, $/h.", "USD", kind=float
    )
    deadline: str | None = option(None, "Finish within this time from now, such as 6h.", "TIME")
    start_timeout: str | None = option(
        None, "Time to the first step, or none; default: as before.", "TIME"
    )
    step_timeout: str | None = option(
        None, "Time without a step, or none; default: as before.", "TIME"
    )

    def resumed(self, row: JobRow, history: History) -> tuple[ControlledJob, JobState]:
        from deepvm.core.units import parse_seconds
        from deepvm.jobs.submission import resumed

        texts = {"start_timeout": self.start_timeout, "step_timeout": self.step_timeout}
        timeouts = {
            f"{name}_s": None if text == "none" else parse_seconds(text, name)
            for name, text in texts.items()
            if text is not None
        }
        deadline_s = None
        if self.deadline is not None:
            deadline_s = parse_seconds(self.deadline, "deadline")
        return resumed(row, history, self.total_usd, deadline_s, timeouts, self.max_price)


def continue_job(
    row: JobRow,
    history: History,
    flags: ResumeFlags,
    output: str,
    *,
    detach: bool,
    keep: bool,
    all_ranks: bool,
    yes: bool,
) -> None:
    """Continue a job from its newest checkpoint. Raises RequestError: it is done."""
    from deepvm.jobs.head.remote import has_head
    from deepvm.jobs.standing import ALIVE, controller_in
    from deepvm.jobs.static_hosts import StaticHosts
    from deepvm.jobs.submission import cloud_of, head_cloud, secret_in
    from deepvm.services.jobs import costs, plan_of

    name = row.name
    if row.result is not None and row.result["state"] == "done":
        raise RequestError("NAME", name, f"a job that has not trained to its end; {name} is done")
    head = head_cloud(row)
    in_background = detach or head is not None
    if in_background and not has_head(row) and controller_in(row.folder) == ALIVE:
        raise other_controller(name)
    if not yes and costs(row.spec["cloud"], StaticHosts.load(row.folder)):
        _, world = flags.resumed(row, history)
        cloud = cloud_of(row.spec["cloud"])
        _confirm_spending(
            lambda: plan_of(name, row.spec["cloud"], world, cloud, detach=in_background)
        )
    if head is not None:
        secret_in(row.folder)
        start_head(row, history, head, lambda: flags.resumed(row, history)[1])
    elif detach:
        # Errors are raised here: the background process would only log them
        job, _ = flags.resumed(row, history)
        detached(job, *words_of(flags))
    else:
        with only_controller(name, row.folder):
            # Read again under the lock: another controller may have written its last state.
            job, world = flags.resumed(known_job(history, name), history)
            control(job, world, history, output, keep=keep, all_ranks=all_ranks)


def detached(job: ControlledJob, *options: str) -> None:
    """Start the controller of a job in the background; ``options``: of ``deepvm jobs resume``."""
    from deepvm.jobs.history.history import PLACE, own_folder, place_of
    from deepvm.jobs.standing import ALIVE, controller_in

    # Absolute paths: the child works in another folder
    environment = {"DEEPVM_DATA_DIR": str(own_folder()), PLACE: place_of(os.environ)}
    resume = [sys.executable, "-m", "deepvm.cli.main", "jobs", "resume", job.name]
    path = job.folder / CONTROLLER_LOG
    with path.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            [*resume, "--keep", "--yes", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, **environment},
        )
    while controller_in(job.folder) != ALIVE:
        if (code := process.poll()) is not None:
            if not code:
                break  # a short job
            output = path.read_bytes()[start:].decode(errors="replace").strip()
            raise DataError(f"the controller of {job.name} has ended: {output or code}")
        time.sleep(_POLL_S)
    typer.echo(job.name)
    note(
        f"{job.name} runs in the background; 'deepvm jobs show {job.name}' shows it, 'deepvm jobs"
        " stop' ends it"
    )


def other_controller(name: str) -> DataError:
    """The error for a second controller of a job."""
    return DataError(f"another process is the controller of {name}; see 'deepvm jobs show {name}'")


@contextmanager
def only_controller(name: str, folder: Path) -> Iterator[None]:
    """Be the only controller of a job. Raises DataError: there is another."""
    from deepvm.cli.long_runs import cleaning_up
    from deepvm.io.file_lock import FileLock
    from deepvm.jobs.history.history import History
    from deepvm.jobs.standing import LOCK

    lock = FileLock(folder / LOCK)
    if not lock.take(shared=False, limit_s=1.0):  # others take it for a moment, to look
        raise other_controller(name)
    try:
        with cleaning_up():
            yield
    except (KeyboardInterrupt, SystemExit):
        with History.open() as history:
            note(_rented(name, history.world(name)))
        raise
    finally:
        lock.release()


def _rented(name: str, world: JobState) -> str:
    resume = f"'deepvm jobs resume {name}' continues the job"
    if not world.alive:
        return f"no machine of {name} is rented; {resume}"
    machines = ", ".join(machine.id for machine in world.alive)
    return (
        f"may still be rented, for {_rate(world)}: {machines}; 'deepvm jobs orphans --release"
        f" {name}' ends them, {resume}"
    )


def _rate(world: JobState) -> str:
    usd = sum(machine.pool.usd_per_hour for machine in world.alive)
    return f"${usd:.4g}/h"


def control(
    job: ControlledJob,
    world: JobState,
    history: History,
    output: str,
    *,
    keep: bool = False,
    validate: bool = False,
    all_ranks: bool = False,
    rehearse: bool = False,
) -> None:
    """Be the controller of a job to its end, show the result, and exit as its state says."""
    import asyncio

    from deepvm.jobs.cloud import HostsController
    from deepvm.jobs.controller.controller import Controller
    from deepvm.jobs.head.mirror_keeper import keeper_of
    from deepvm.jobs.submission import cloud_of
    from deepvm.reports.jobs.live import LiveView

    row = known_job(history, job.name)
    cloud = cloud_of(row.spec["cloud"])
    controller = Controller(job, world, cloud, history)
    keeper = keeper_of(row, cloud)
    if keeper is not None and isinstance(cloud, HostsController):
        controller.world = keeper.take(world, history, cloud, controller.nonce)
        controller.kept = keeper.kept
    controller.keeps = keep
    resume = f"'deepvm jobs resume {job.name}'"
    with controller.signals:
        try:
            with (
                LiveView(job.name, lambda: controller.world) as view,
                _advised(f"training keeps running; then {resume} continues it"),
            ):
                controller.on_event = view.on_event
                if not _is_log(job.folder):
                    controller.on_line = partial(view.on_line, all_ranks=all_ranks)
                end = asyncio.run(_run(controller, keeper))
        except Exception:
            note(_rented(job.name, controller.world))
            raise
        if end.over:
            _conclude(job, controller, end, history, output, validate=validate, rehearse=rehearse)
        elif keep and not end.job.over:
            note(f"{job.name} trains on, for {_rate(end)}; {resume} watches it again")
            raise typer.Exit(controller.signals.exit_code)
        else:
            note(f"{controller.signals.reason}; {_rented(job.name, end)}")
            sys.stderr.flush()
            # Not sys.exit(): threads with hanging calls to the cloud would keep the process alive
            os._exit(controller.signals.exit_code)


def _is_log(folder: Path) -> bool:
    """Whether messages go to the log of a controller in the background, not to the user."""
    try:
        return os.path.samestat(os.fstat(2), (folder / CONTROLLER_LOG).stat())
    except OSError:
        return False


def _conclude(
    job: ControlledJob,
    controller: Controller,
    end: JobState,
    history: History,
    output: str,
    *,
    validate: bool,
    rehearse: bool,
) -> None:
    from deepvm.jobs.decisions.states import Job
    from deepvm.jobs.history.forecast import forecast
    from deepvm.jobs.history.job_report import resumed_from
    from deepvm.jobs.standing import standing_of
    from deepvm.jobs.submission import free_name, starts_over
    from deepvm.reports.jobs.live import closing_lines, failure_lines, words

    name = job.name
    done = end.job is Job.DONE
    does = "continues it"
    if done:
        does = "writes down its result"
    with _advised(f"the job is over; then 'deepvm jobs resume {name}' {does}"):
        row = known_job(history, name)
        status = standing_of(history, row, time.time())
        document = {**status.document}
        earlier = [m for m in history.machines() if m["job"] != name]
        document["forecast"] = _if_possible(
            "forecast",
            lambda: forecast(
                row.spec, row.created_s, end, status.events, earlier, document, status.without
            ),
        )
        if validate and status.without:
            note(
                "nothing is compared: the job had no controller for a while, which the simulator"
                " does not model"
            )
        elif validate:
            document["validation"] = _if_possible(
                "validation", lambda: _validation(row.created_s, end, status.events)
            )
        history.finish(name, document)
    row = known_job(history, name)
    page = write_page(row, history)
    print_as(output, text("job", document=document, events=(), status=status), lambda: document)
    for line in failure_lines(document, controller.last_lines):
        say(line)
    new_name = ""
    if not starts_over(row, history):
        new_name = free_name(name, history)
    for line in closing_lines(document, end.terms, controller.last_lines, job.folder, new_name):
        note(line)
    if page is not None:
        note(f"full report: {page}")
    code = document["exit_code"]
    if controller.signals.numbers and not done:
        code = controller.signals.exit_code
    if rehearse and done:
        version = resumed_from(status.events)
        say(words().rehearsal(document, version, REHEARSAL["lives"][0]))
        code = code or int(not version)
    if code:
        raise typer.Exit(code)


@contextmanager
def _advised(advice: str) -> Iterator[None]:
    """Add advice to an error of the history, which ends the command: unrecorded is not done."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; {advice}") from None


async def _run(controller: Controller, keeper: StateReplicator | None) -> JobState:
    import asyncio

    if keeper is None:
        return await controller.run()
    keeper.attend(controller, asyncio.get_running_loop())
    try:
        return await controller.run()
    finally:
        await asyncio.to_thread(keeper.leave)


def _if_possible(part: str, build: Callable[[], JsonDict | None]) -> JsonDict | None:
    """An optional part of the final document; an error in it must not keep the job from its end."""
    try:
        return build()
    except Exception:
        logging.getLogger("deepvm.jobs").warning("the job has no %s", part, exc_info=True)
        return None


def _validation(created_s: float, world: JobState, events: Sequence[EventRow]) -> JsonDict | None:
    from deepvm.jobs.decisions.states import Job
    from deepvm.jobs.history.forecast import observed, validation

    reason = "the job has not trained to its end"
    if world.job is Job.DONE:
        if seen := observed(created_s, world, events):
            return validation(seen, world.terms, world.terms.policy, world.pools[0].usd_per_hour)
        reason = world.progress_unknown or "too little was measured"
    note(f"nothing is compared: {reason}")
    return None


def write_page(row: JobRow, history: History) -> Path | None:
    """Write the page of a job that is over."""
    from deepvm.io.atomic_write import write_bytes
    from deepvm.jobs.standing import standing_of
    from deepvm.reports.jobs.run_page import RunPage

    path = row.folder / "run.html"
    page = RunPage(standing_of(history, row, time.time()))
    try:
        write_bytes(path, page.render().encode())
    except DataError as error:
        note(str(error))
        return None
    return path
