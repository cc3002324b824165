"""What is known of a job before a cloud is asked: whether it can resume, how many copies start."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepvm.core.units import counted
from deepvm.io.user_dirs import read_data
from deepvm.jobs.clouds.registry import find_cloud
from deepvm.jobs.jobfile import JobFile, changed
from deepvm.jobs.rented import rented_of, taken_of
from deepvm.jobs.storage import job_code
from deepvm.jobs.submission import about, gpus_of, hosts_of, processes_of
from deepvm.jobs.training_script import ScriptFacts, script_facts
from deepvm.services.certificates import certified_day
from deepvm.services.jobs import costs

# The lines with which a script resumes, by a name in it; the last entry is for all others
_RESUME_LINES = "jobs/resume_lines.json"


@dataclass(frozen=True)
class ResumeRisk:
    """Why work may be lost at a preemption, and the lines that a script lacks."""

    reason: str
    lines: Sequence[str]  # empty where the script is not known
    refuses: bool  # whether only the user can decide to start it


@dataclass(frozen=True)
class JobStart:
    """A job as its file and its code have it."""

    job: JobFile  # with one process a machine, where the script asks for no more
    one_copy: bool  # whether that leaves GPUs idle
    script: ScriptFacts
    machines: int
    processes: int  # of one process group
    preemptible: bool
    simulated: bool  # on this computer
    costs: bool  # whether the machines have a price

    @property
    def group_remark(self) -> str:
        """What to know of several processes; empty: there is one, or they form a group."""
        script = self.script
        if self.processes == 1 and self.one_copy:
            return (
                f"{script.name} starts no process group that can be seen: one copy of it runs, on"
                " one GPU, and the others are idle; write it for DistributedDataParallel, or give"
                " --processes-per-machine gpus"
            )
        if self.processes == 1 or script.forms_group:
            return ""
        start = f"{self.processes} processes start on {counted(self.machines, 'machine')}, and"
        one = (
            "for a script that uses one GPU: one machine, and --processes-per-machine 1; for"
            " separate trainings: --independent-processes"
        )
        if script.unknown:
            return f"{start} must form a process group; {one}"
        return (
            f"{start} {script.name} starts no process group that can be seen, such as by"
            " torch.distributed.init_process_group(): copies of one training are stopped at their"
            f" first step; {one}"
        )

    @property
    def resume_risk(self) -> ResumeRisk | None:
        """None: the script resumes, or nothing takes its machines."""
        script = self.script
        if not self.preemptible or script.resumes:
            return None
        if day := certified_day(script):
            reason = (
                f"{script.name} was certified by 'deepvm audit' on {day}: it resumes from its own"
                " files. A machine that replaces a preempted one has them only if they are in a"
                " bucket or a shared folder"
            )
            return ResumeRisk(reason, (), refuses=False)
        lost = (
            "starts again at its beginning, on a machine without its files: the work until then is"
            " paid for and lost"
        )
        if script.unknown:
            reason = (
                f"it is unknown whether {script.name} can resume: {script.unknown}. If it saves"
                f" nothing through deepvm, at the first preemption it {lost}"
            )
            return ResumeRisk(reason, (), refuses=False)
        imported = ""
        if script.files > 1:
            imported = f", with the {script.files - 1} files of the code that it imports,"
        reason = (
            f"{script.name}{imported} saves nothing through deepvm: it uses neither"
            " deepvm.checkpoint, nor a callback of it, nor latest() of deepvm.training. At the"
            f" first preemption it {lost}"
        )
        known = read_data(_RESUME_LINES)
        lines = next(known[name] for name in known if not name or name in script.names)
        return ResumeRisk(reason, lines, refuses=not self.simulated)


def job_start(job: JobFile, file: Path) -> JobStart:
    """What the job file at ``file`` starts; no cloud is asked. Raises as ``checked`` does."""
    folder: Path | None = file.parent / (job.code or ".")
    if job.code is None:
        folder = Path("/")  # machines get no code: only absolute paths are theirs
    elif job_code.parse(job.code) is not None:
        folder = None
    script = script_facts(job.train, folder, job.env)
    simulated = find_cloud(job.cloud).near
    with about(file):
        hosts = hosts_of(job, file.parent)
        if hosts is None:
            rented = rented_of(job, file.parent)
        else:
            rented = taken_of(job, hosts)
            simulated = hosts.reach.local
        each = processes_of(job.processes_per_machine, gpus_of(rented.type, hosts))
    may_need_ranks = script.unknown or script.asks_for_ranks
    given = job.independent_processes or "processes_per_machine" in job.model_fields_set
    one_copy = each > 1 and not may_need_ranks and not given
    if one_copy:
        each = 1
        job = changed(job, processes_per_machine=each)
    processes = 1
    if not job.independent_processes:
        processes = rented.most * each
    is_spot = hosts is None and rented.steadies < rented.most
    return JobStart(
        job,
        one_copy,
        script,
        rented.most,
        processes,
        preemptible=is_spot or job.inject is not None,
        simulated=simulated,
        costs=costs(job.cloud, hosts),
    )
