"""Certificates of ``deepvm audit`` for ``deepvm run``, by what the script's files contain."""

import os
import shlex
from contextlib import suppress
from pathlib import Path

from deepvm.core.units import utc_text
from deepvm.io.user_dirs import own_data_folder
from deepvm.jobs.python_sources import PythonSources
from deepvm.jobs.training_script import script_facts

_FOLDER = "audits"  # In the user's data folder


def keep_certificate(script: Path, now_s: float) -> None:
    """Record that a script is certified; without a data folder nothing is recorded."""
    with suppress(OSError):
        path = _path(
            script_facts(shlex.join(["python", script.name]), script.absolute().parent, {})
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(utc_text(now_s))


def certified_day(facts: PythonSources) -> str:
    """The day of the newest certificate of a script; empty without one."""
    with suppress(OSError, ValueError):
        return _path(facts).read_text()[:10]
    return ""


def _path(facts: PythonSources) -> Path:
    folder = own_data_folder(os.environ)
    if folder is None:
        raise FileNotFoundError
    return folder / _FOLDER / facts.digest
