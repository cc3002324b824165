"""The job of one run: its file, its own state folder, and what stands in its history."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import EventRow, History
from deepvm.jobs.history.log_files import FOLDER as LOGS
from deepvm.lab.audit.orchestrated import STATE
from deepvm.lab.running.plan import Plan

NAME = "lab"
_TYPE = "g4dn.xlarge"
_MEMORY_TYPE = "m7g.large"
_START_S = 180
_ORPHAN_S = 60


@dataclass(frozen=True)
class JobPlace:
    """Where the job of a run is; ``run``: the run's folder."""

    run: Path

    @property
    def state(self) -> Path:
        return self.run.resolve() / STATE

    @property
    def file(self) -> Path:
        return self.state / "job.yaml"

    @property
    def left(self) -> Path:
        """Where the processes are written down that lived when the job was over."""
        return self.state / "left.json"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its processes: without the user's jobs, catalogs and settings."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_")}
        kinds = ("CACHE", "CONFIG", "DATA", "STATE")
        variables |= {f"XDG_{kind}_HOME": str(self.state / kind.lower()) for kind in kinds}
        return variables | {"DEEPVM_DATA_DIR": str(self.state)}

    @property
    def cloud(self) -> LocalCloud:
        return LocalCloud(self.state / "jobs")

    @property
    def logs(self) -> list[Path]:
        """What its machines' trainers have printed."""
        return sorted((self.state / "jobs" / NAME / LOGS).glob("*"))

    def history(self) -> History:
        """Its history, to read. Raises DataError: there is none yet."""
        return History.reader(self.environ)

    def world(self) -> JobState:
        """What its controller knows now. Raises DataError."""
        with self.history() as history:
            return history.world(NAME)

    def events(self) -> list[EventRow]:
        """What has happened to it. Raises DataError."""
        with self.history() as history:
            return history.events(NAME)


def job_document(place: JobPlace, plan: Plan) -> dict[str, Any]:
    """The job file of a run: a rank per machine, checkpoints in its folder, saves at notices."""
    config = plan.config
    count: Any = config["world"]
    if config["min_world"] not in (None, count):
        count = {"min": config["min_world"], "max": count}
    anchor = {"type": _MEMORY_TYPE, "memory": "256MiB"}
    return {
        "name": NAME,
        "train": shlex.join(
            ["python", "-m", "deepvm.lab.orchestrated.rank", str(place.run.absolute())]
        ),
        "env": {"OMP_NUM_THREADS": "1"},
        "machines": {"type": _TYPE, "count": count},
        "anchor": anchor if plan.in_memory else "none",
        "tiers": [(place.run / "checkpoints").absolute().as_uri()],
        "keep": config["keep"],
        # The lab's own strategies save every so many steps; of the orchestrator only what it asks
        # for is wanted.
        "save_policy": "thesis",
        "steps": config["steps"],
        "cloud": "local",
        "orphan_after": f"{_ORPHAN_S}s",
        "start_timeout": f"{_START_S}s",
        "step_timeout": f"{plan.hang_s:g}s",
    }


def write_job(place: JobPlace, document: Mapping[str, Any]) -> None:
    """Write the job file into a state folder of its own, for this user alone."""
    place.state.mkdir(mode=0o700)
    place.file.write_text(json.dumps(document, indent=1), encoding="utf-8")  # YAML, too
