"""What is known of a job before a cloud is asked: whether it can resume, how many copies start."""

from collections.abc import Sequence
from pathlib import Path

from deepvm.core.units import counted
from deepvm.errors import OptionMismatchError
from deepvm.io.user_dirs import read_data
from deepvm.jobs.clouds.registry import find_cloud
from deepvm.jobs.jobfile import JobFile, changed
from deepvm.jobs.python_sources import Launcher, PythonSources
from deepvm.jobs.rented import rented_of, taken_of
from deepvm.jobs.storage import job_code
from deepvm.jobs.submission import about, gpus_of, hosts_of, processes_of
from deepvm.jobs.training_script import script_facts
from deepvm.records import dataclass
from deepvm.services.certificates import certified_day
from deepvm.services.jobs import costs

# The lines with which a script resumes, by a name in it; the last entry is for all others
_RESUME_LINES = "jobs/resume_lines.json"


@dataclass(frozen=True)
class StartRisk:
    """Why a job may lose its work or its money, and what to do about that."""

    reason: str
    lines: Sequence[str] = ()  # to add to the script, where they are known
    refuses: bool = False  # whether only the user can decide to start it
    accepts: str = ""  # the option that does
    instead: str = ""  # what else to take


@dataclass(frozen=True)
class JobStart:
    """A job as its file and its code have it."""

    job: JobFile  # with one process a machine, where the script asks for no more
    risks: Sequence[StartRisk]  # to know, and maybe to decide, before the start
    costs: bool  # whether the machines have a price
    note: str = ""  # how often the command starts, where that may surprise


def job_start(job: JobFile, file: Path) -> JobStart:
    """What the job file at ``file`` starts; no cloud is asked. Raises as ``checked`` does."""
    folder: Path | None = file.parent / (job.code or ".")
    if job.code is None:
        folder = Path("/")  # machines get no code: only absolute paths are theirs
    elif job_code.parse(job.code) is not None:
        folder = None
    script = script_facts(job.train, folder, job.env)
    with about(file):
        hosts = hosts_of(job, file.parent)
        if hosts is None:
            rented = rented_of(job, file.parent)
            simulated = find_cloud(job.cloud).near
        else:
            rented = taken_of(job, hosts)
            simulated = hosts.reach.local
        each = processes_of(job.processes_per_machine, gpus_of(rented.type, hosts))
    layout_given = job.independent_processes or "processes_per_machine" in job.model_fields_set
    launcher = None if job.independent_processes else script.launcher
    if launcher and rented.most > 1 and not launcher.several:
        raise _copies(launcher, rented.most)
    ready = script.unknown or script.asks_for_ranks
    one_copy = each > 1 and not (layout_given or (ready and launcher is None))
    if one_copy:
        each = 1
        job = changed(job, processes_per_machine=each)
    note = ""
    risks = []
    if rented.most * each > 1:
        if not (script.forms_group or job.independent_processes):
            asks = not (simulated or layout_given)
            risks.append(_group_risk(script, rented.most, each, asks=asks))
    elif launcher:
        if not script.forms_group:
            reason = (
                f"{script.name} starts no process group that can be seen: each process that"
                f" {launcher.name} starts would train a copy of its own"
            )
            risks.append(StartRisk(reason))
    elif one_copy:
        reason = (
            f"{script.name} starts no process group that can be seen: one copy of it runs, on one"
            " GPU, and the others are idle; write it for DistributedDataParallel, or plan for one"
            " GPU: 'deepvm recommend --gpus-max 1'"
        )
        risks.append(StartRisk(reason))
    if one_copy and launcher:
        note = (
            f"{launcher.name} starts the processes of a machine itself: it runs once on each;"
            f" '{launcher.direct}' lets deepvm start one per GPU"
        )
    preemptible = job.inject is not None or hosts is None and rented.steadies < rented.most
    if preemptible and job.resume_check and not script.resumes:
        risks.append(_resume_risk(script, asks=not simulated))
    return JobStart(job, risks, costs(job.cloud, hosts), note)


def _copies(launcher: Launcher, machines: int) -> OptionMismatchError:
    return OptionMismatchError(
        f"the command {launcher.name}",
        None,
        f"starts the processes of one machine: each of {machines} would train its own copy, and"
        " all write the same files",
        f"'{launcher.direct}' with the same arguments, as deepvm starts one process per GPU and"
        " sets RANK, WORLD_SIZE and MASTER_ADDR; or with launcher: torchrun in the job file; or"
        " --independent-processes for separate trainings",
    )


def _group_risk(script: PythonSources, machines: int, each: int, *, asks: bool) -> StartRisk:
    """Of several processes that form no group; ``each``: on each machine."""
    start = f"{machines * each} processes start on {counted(machines, 'machine')}, and"
    one = (
        "for a script that uses one GPU: one machine, and --processes-per-machine 1; for separate"
        " trainings: --independent-processes"
    )
    if script.unknown:
        return StartRisk(f"{start} must form a process group; {one}")
    return StartRisk(
        f"{start} {script.name} starts no process group that can be seen, such as by"
        " torch.distributed.init_process_group(): copies of one training are stopped at their"
        f" first step; {one}",
        refuses=machines > 1 and asks,
        accepts=f"--processes-per-machine {each}",
        instead="one machine; for separate trainings, --independent-processes",
    )


def _resume_risk(script: PythonSources, *, asks: bool) -> StartRisk:
    """Of a script that saves nothing through deepvm, as far as is seen."""
    if day := certified_day(script):
        return StartRisk(
            f"{script.name} was certified by 'deepvm audit' on {day}: it resumes from its own"
            " files. A machine that replaces a preempted one has them only if they are in a bucket"
            " or a shared folder"
        )
    lost = (
        "starts again at its beginning, on a machine without its files: the work until then is"
        " paid for and lost"
    )
    lines: Sequence[str] = ()
    if script.unknown:
        reason = (
            f"it is unknown whether {script.name} can resume: {script.unknown}. If it saves"
            f" nothing through deepvm, at the first preemption it {lost}. 'deepvm audit' tries"
            " whether a script resumes"
        )
    else:
        imported = ""
        if len(script.files) > 1:
            imported = f" (with what it uses: {len(script.files)} files)"
        reason = (
            f"{script.name}{imported} saves nothing through deepvm: it uses neither"
            " deepvm.checkpoint, nor a callback of it, nor latest() of deepvm.training. At the"
            f" first preemption it {lost}"
        )
        known = read_data(_RESUME_LINES)
        lines = next(known[name] for name in known if not name or name in script.names)
    instead = (
        "machines that are not preempted (machines: {market: on-demand}, or a plan of 'deepvm"
        " recommend --architecture on-demand')"
    )
    return StartRisk(reason, lines, asks, "--no-resume-check", instead)
