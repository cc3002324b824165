"""The process that controls a run's job, and its parent, with which the whole job ends.

    python -m deepvm.lab.orchestrated.control RUN

Whoever started it holds the other end of its standard input: at the end of that, also when the lab
is killed, all that the job has started is killed. ``restart SECONDS`` there kills the controller,
as a crash would, and starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path

from deepvm.errors import DeepVMError
from deepvm.io.process_tree import (
    become_subreaper,
    descendants,
    end_descendants,
    follow_parent,
    is_alive,
)
from deepvm.jobs.controller.controller import Controller
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.history.history import History
from deepvm.jobs.jobfile import read_job_file
from deepvm.jobs.submission import cloud_of, resumed, submit
from deepvm.lab.orchestrated.job import NAME, JobPlace

RESTART = "restart"

log = logging.getLogger("deepvm.lab")
_LOOK_S = 0.02
_GRACE_S = 1.0


def main() -> None:
    """Keep the job's controller, until the job is over or it is not wanted any more."""
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
                controller = _restarted(place, controller, float(line.split()[1]))
        ended, status = os.waitpid(controller, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if not code:
                note_left(place)
            break
    os._exit(code if end_descendants() else 1)


def note_left(place: JobPlace) -> None:
    """Write down what lives although the job is over: its controller was to end all of it."""
    until = time.monotonic() + _GRACE_S
    while (left := _living()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    place.left.write_text(json.dumps(left))


def _living() -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sorted(pid for pid in descendants(os.getpid()) if is_alive(pid))


def _restarted(place: JobPlace, controller: int, down_s: float) -> int:
    os.kill(controller, signal.SIGKILL)
    os.waitpid(controller, 0)
    time.sleep(down_s)
    return _started(place)


def _started(place: JobPlace) -> int:
    """Fork a controller, which ends with this process."""
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
    """Be the controller of the job, new or known, to its end; 0 if it has trained to its end."""
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
