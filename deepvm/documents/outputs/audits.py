"""The document of ``deepvm audit``."""

from __future__ import annotations

from typing import Literal

from deepvm.documents.document import Document, at


class AuditGate(Document):
    """What was asked of a script."""

    gate: Literal["repeats", "ends", "kills", "resumed", "parameters", "samples", "replays"] = at(
        "name"
    )
    """what was asked"""
    state: Literal["passed", "failed", "skipped"]
    """the answer; skipped: it could not be judged"""
    reason: str
    """why, empty if passed"""


class AuditKill(Document):
    """A kill that has happened."""

    run: int
    """number of the run, from 1; later ones repeat kills that hit nothing, earlier"""
    attempt: int
    """start of the script in its run that was killed, from 0"""
    kind: Literal["step", "write"]
    """after a logged step, or in the middle of a write"""
    file: str
    """that was being written, below the folder of the run; empty after a step"""
    logged_steps: int = at("steps")
    """steps that the attempt had made"""
    reached_step: int | None = at("reached")
    """the last of them, counted from the start of training, null if unknown"""
    resumed_step: int | None = at("resumed")
    """step after which the next attempt has gone on, null if unknown"""
    hit: bool
    """whether steps were made and some were left, or a file was being written: else it proves
    nothing"""


class Audit(Document, schema_version="deepvm.audit/1"):
    """Whether a training script resumes correctly when it is killed."""

    certified: bool
    """whether no gate has failed"""
    script: str = at("subject.script")
    """its path"""
    arguments: list[str] = at("subject.arguments")
    """of the script"""
    resume_arguments: list[str] = at("subject.resume_arguments")
    """added when it was started again"""
    compared: Literal["optimizers", "file", "both"]
    """which final parameters: those that the optimizers hold, those in --final, or both"""
    steps: int
    """of the undisturbed run"""
    processes: int
    """that train"""
    gates: list[AuditGate]
    """in the order in which they were judged"""
    planned_kills: int = at("planned")
    """that were to happen; none if two undisturbed runs differ"""
    kills: list[AuditKill]
    """that have happened"""
    notes: list[str]
    """what a reader should know besides"""
    wall_s: float = at(digits=3)
    """of all runs together, s"""
    versions: dict[str, str]
    """of Python and of libraries that are installed, by name"""
