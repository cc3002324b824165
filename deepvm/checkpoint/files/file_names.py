"""What files are called in a folder or bucket of checkpoints, and the default name of a job."""

import hashlib
import os
import re
import secrets
import sys
import time
from pathlib import Path

from deepvm.checkpoint.files.commit_record import UPCOMING, upcoming_of
from deepvm.checkpoint.format.manifest import SUFFIX
from deepvm.errors import RequestError

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NAME = re.compile(rf"(?P<job>{_JOB.pattern})-(?P<version>[0-9]{{12,19}})\.pt", re.ASCII)
_HIDDEN = re.compile(
    rf"\.({_NAME.pattern}({re.escape(SUFFIX)})?\.[0-9a-f]{{8}}|{_JOB.pattern}\.spare)\.tmp",
    re.ASCII,
)

_LABELLED = re.compile(r"(?P<stem>.+)\.(?P<label>g[0-9]{9,19}-[0-9a-f]{8})\.pt", re.ASCII)
_PART = re.compile(r"(?P<job>.+)\.part-(?P<number>[1-9][0-9]?)-of-(?P<of>[1-9][0-9]?)", re.ASCII)
MOST_PARTS = 64
# Characters of the script's name; memory nodes add up to 18 to the job's, and 64 is the limit
_STEM_LENGTH = 40


def check_job(name: str) -> str:
    """Return the name of a job if it can be part of file names. Raises RequestError."""
    if not _JOB.fullmatch(name):
        allowed = (
            "1 to 64 letters, digits, dots, hyphens and underscores, starting with a letter or"
            " digit"
        )
        raise RequestError("job", name, allowed)
    return name


def file_name(job: str, version: int) -> str:
    """Name of a checkpoint's file."""
    return f"{check_job(job)}-{version:012d}.pt"


def parse_name(name: str) -> tuple[str, int] | None:
    """Job and version in the name of a checkpoint's file, else None."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    found = match["job"], int(match["version"])
    # 0000000000001 would be a second file of version 1.
    if file_name(*found) == name:
        return found
    return None


def new_label(epoch: int) -> str:
    """A unique label for what a generation writes to a bucket."""
    return f"g{epoch:09d}-{secrets.token_hex(4)}"


def epoch_of(label: str) -> int:
    """The generation in a label; 0 for the empty one of runs without a number."""
    if label:
        return int(label[1:].partition("-")[0])
    return 0


def labeled_name(job: str, version: int, label: str) -> str:
    """Name of a checkpoint's object; without a label that of its file."""
    name = file_name(job, version)
    if label:
        return f"{name[:-3]}.{label}.pt"
    return name


def parse_labeled(name: str) -> tuple[str, int, str] | None:
    """Job, version and label in a name of :func:`labeled_name`, else None."""
    label = ""
    match = _LABELLED.fullmatch(name)
    if match is not None:
        name = f"{match['stem']}.pt"
        label = match["label"]
    found = parse_name(name)
    return found and (*found, label)


def replaced(name: str) -> str:
    """The checkpoint's file if this is the name of its upcoming record, else empty."""
    file = name.removeprefix(".").removesuffix(SUFFIX + UPCOMING)
    if parse_name(file) is not None and upcoming_of(Path(file)).name == name:
        return file
    return ""


def is_leftover(name: str) -> bool:
    """Whether this is the name of an unfinished version or of a spare."""
    return bool(_HIDDEN.fullmatch(name) or replaced(name))


def aside_suffix() -> str:
    """A unique suffix for what is quarantined."""
    return f".{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}.aside"


def part_job(job: str, number: int, of: int) -> str:
    """The job of part ``number`` (from 1) of ``of`` on a node. Raises RequestError."""
    suffix = f".part-{number}-of-{of}"
    room = 64 - len(suffix)
    if len(check_job(job)) > room:
        allowed = f"at most {room} characters: {suffix} is added on {of} memory nodes"
        raise RequestError("job", job, allowed)
    return job + suffix


def part_of(name: str) -> tuple[str, int, int]:
    """Job, number and count of parts that a name of a job means."""
    return whole_job(name) or (name, 1, 1)


def whole_job(name: str) -> tuple[str, int, int] | None:
    """Job, number and count in a name of :func:`part_job`, None for others."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["of"]) <= MOST_PARTS:
        return None  # a job that happens to be called so
    return match["job"], int(match["number"]), int(match["of"])


def derived_name() -> str:
    """The default name of a job: its script's name and a digest of its path, without arguments."""
    main = sys.modules.get("__main__")
    notebook = getattr(main, "__vsc_ipynb_file__", None) or os.environ.get("JPY_SESSION_NAME")
    # Python makes __file__ absolute, so that it does not depend on the working directory.
    path = os.path.abspath(getattr(main, "__file__", None) or notebook or os.getcwd())
    stem = re.sub(r"[^A-Za-z0-9]+", "-", os.path.splitext(os.path.basename(path))[0])[
        :_STEM_LENGTH
    ].strip("-")
    return f"{stem or 'training'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
