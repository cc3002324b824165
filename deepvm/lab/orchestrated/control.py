"""The process that controls a run's job: ``python -m deepvm.lab.orchestrated.control RUN``.

At the end of its standard input, also when the lab is killed, all that the job has started is
killed. ``restart SECONDS`` there kills the controller, as a crash would, and starts another.
"""

import asyncio
import contextlib
import json
import logging
import os
import select
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import DeepVMError
from deepvm.io.processes import (
    become_subreaper,
    descendants,
    end_descendants,
    follow_parent,
    is_alive,
)
from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.controller.controller import Controller
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import EventRow, History
from deepvm.jobs.history.log_files import FOLDER as LOGS
from deepvm.jobs.jobfile import read_job_file
from deepvm.jobs.submission import cloud_of, resumed, submit
from deepvm.lab.audit.orchestrated import STATE
from deepvm.lab.running.launcher import Plan
from deepvm.records import dataclass

NAME = "lab"
_TYPE = "g4dn.xlarge"
_MEMORY_TYPE = "m7g.large"
_START_S = 180
_ORPHAN_S = 60


@dataclass(frozen=True)
class JobPlace:
    """Where the job of a run is."""

    run: Path  # its folder

    @property
    def state(self) -> Path:
        return self.run.resolve() / STATE

    @property
    def file(self) -> Path:
        return self.state / "job.yaml"

    @property
    def left(self) -> Path:
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
        return sorted((self.state / "jobs" / NAME / LOGS).glob("*"))

    def history(self) -> History:
        return History.reader(self.environ)

    def world(self) -> JobState:
        with self.history() as history:
            return history.world(NAME)

    def events(self) -> list[EventRow]:
        with self.history() as history:
            return history.events(NAME)


def job_document(place: JobPlace, plan: Plan) -> JsonDict:
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
        # The lab's own strategies save every so many steps
        "save_policy": "thesis",
        "steps": config["steps"],
        "cloud": "local",
        "orphan_after": f"{_ORPHAN_S}s",
        "start_timeout": f"{_START_S}s",
        "step_timeout": f"{plan.hang_s:g}s",
    }


def write_job(place: JobPlace, document: JsonObject) -> None:
    """Write the job file into a new state folder."""
    place.state.mkdir(mode=0o700)
    place.file.write_text(json.dumps(document, indent=1), encoding="utf-8")  # YAML, too


RESTART = "restart"

log = logging.getLogger("deepvm.lab")
_LOOK_S = 0.02
_GRACE_S = 1.0


def main() -> None:
    """Keep the job's controller running."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    place = JobPlace(Path(sys.argv[1]))
    # Machines have no parent otherwise, and outlive all that could end them
    become_subreaper()
    controller = _started(place)
    code = 1
    rest = b""
    while True:
        if select.select([0], [], [], _LOOK_S)[0]:
            data = os.read(0, 4096)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                os.kill(controller, signal.SIGKILL)
                os.waitpid(controller, 0)
                time.sleep(float(line.split()[1]))
                controller = _started(place)
        ended, status = os.waitpid(controller, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if not code:
                note_left(place)
            break
    os._exit(code if end_descendants() else 1)


def note_left(place: JobPlace) -> None:
    """Write down what lives although the job is over."""
    until = time.monotonic() + _GRACE_S
    while (left := _living()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    place.left.write_text(json.dumps(left))


def _living() -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sorted(pid for pid in descendants(os.getpid()) if is_alive(pid))


def _started(place: JobPlace) -> int:
    above = os.getpid()
    controller = os.fork()
    if controller:
        return controller
    code = 1
    try:
        follow_parent(above, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        code = _control(place)
    except BaseException as error:
        if isinstance(error, DeepVMError):
            log.error("%s", error)
        else:
            log.exception("the controller has ended")
    os._exit(code)


def _control(place: JobPlace) -> int:
    with History.open() as history:
        known = history.job(NAME)
        if known is None:
            job, world = submit(read_job_file(place.file), place.file, history)
        else:
            job, world = resumed(known, history)
        end = asyncio.run(Controller(job, world, cloud_of("local"), history).run())
    if end.job is Job.DONE:
        return 0
    return 1


if __name__ == "__main__":
    main()
