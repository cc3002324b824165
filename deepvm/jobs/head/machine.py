"""On a remote controller: fetch the job, keep a controller running, and report to the user."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deepvm.errors import DataError, DeepVMError
from deepvm.jobs.cloud import HostsController, RefusedError, UnknownError
from deepvm.jobs.head.head_state import HeadState
from deepvm.jobs.head.log_pieces import LogPieces
from deepvm.jobs.head.mirror import LOGS, MIRROR, FencedError, decoded, get_folder
from deepvm.jobs.head.mirror_keeper import PULSE, StateReplicator
from deepvm.jobs.history.history import History

CRASHES = "controller.log"
"""The controller's output, if it has ended with an error: an object for the user to read."""
_PAUSE_S = 2.0
_MOST_PAUSE_S = 15.0
_STEADY_S, _GIVE_UP_S = 60.0, 1800.0
"""A controller that runs so long is healthy; if none does for the other time, none will."""
_TAIL = 20_000
_LOOK_S, HUNG_S = 5.0, 300.0
"""A controller whose loop has not turned for the second time hangs; the first is between looks."""

log = logging.getLogger("deepvm.jobs")


class HeadMachine:
    """The machine of one head."""

    def __init__(self, job: str, number: int, jobs: Path, cloud: HostsController) -> None:
        """``jobs``: the folder of jobs on this machine."""
        self._job = job
        self._number = number
        self._folder = jobs / job
        self._cloud = cloud
        self._objects = cloud.objects(job)

    def run(self) -> None:
        try:
            self._patiently(self._fetch)
            since_s = time.monotonic()
            pause_s = _PAUSE_S
            while not self._over():
                began_s = time.monotonic()
                self._control()
                if self._over():
                    break
                if self._is_fenced():
                    return
                self._tell()
                now_s = time.monotonic()
                if now_s - began_s > _STEADY_S:
                    since_s = now_s
                    pause_s = _PAUSE_S
                if now_s - since_s > _GIVE_UP_S:
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            self._patiently(self._finish)
        except FencedError as error:
            log.warning("%s", error)

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do what may fail while the network or the role of a new machine is not there yet."""
        end_s = time.monotonic() + _GIVE_UP_S
        while True:
            try:
                return work()
            except FencedError:
                raise
            except (DeepVMError, OSError) as error:
                log.warning("%s", error)
                if time.monotonic() > end_s:
                    raise
                time.sleep(_PAUSE_S)

    def _fetch(self) -> None:
        """The job as the mirror has it, unless it is here already."""
        with History.open() as history:
            if history.job(self._job) is not None:
                return
            mirror = self._objects.get(MIRROR)
            copy = {} if mirror is None else decoded(mirror.data)
            if copy.get("head") != self._number or not get_folder(self._objects, self._folder):
                raise FencedError(f"{self._job} is over, or another head has it")
            HeadState(self._number, time.time(), here=True).save(self._folder)
            history.put_copy(copy, self._folder)

    def _over(self) -> bool:
        try:
            with History.open() as history:
                row = history.job(self._job)
                return row is not None and row.result is not None
        except DataError as error:
            log.warning("%s", error)
            return False

    def _is_fenced(self) -> bool:
        """Whether another head is known to have the job."""
        try:
            found = self._objects.get(MIRROR)
            return found is None or int(decoded(found.data)["head"]) > self._number
        except (RefusedError, UnknownError) as error:
            log.warning("%s", error)
            return False

    def _control(self) -> None:
        """Run a controller until it ends or hangs; one that cannot start has ended at once."""
        words = [sys.executable, "-m", "deepvm.cli.main", "jobs", "resume", self._job, "--keep"]
        try:
            (self._folder / PULSE).unlink(missing_ok=True)
            with (self._folder / CRASHES).open("ab") as file:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
                if not self._ends(process):
                    process.kill()
                    process.wait()
                    file.write(
                        f"the controller hangs: it was ended after {HUNG_S:.0f} s\n".encode()
                    )
        except OSError as error:  # no memory, or no place on the disk
            log.warning("%s", error)

    def _ends(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until a controller has ended; False: its loop has stopped turning first."""
        seen = self._pulse()
        seen_s = time.monotonic()
        while True:
            try:
                process.wait(_LOOK_S)
                return True
            except subprocess.TimeoutExpired:
                now = self._pulse()
                now_s = time.monotonic()
            # Before its loop and after it the controller works without a pulse
            if now is None or now != seen:
                seen = now
                seen_s = now_s
            elif now_s - seen_s > HUNG_S:
                return False

    def _pulse(self) -> int | None:
        """When the controller's loop has turned last; None: it has not started, or is over."""
        try:
            return (self._folder / PULSE).stat().st_mtime_ns
        except OSError:
            return None

    def _tell(self) -> None:
        """Why the controller has ended: where its user can read it."""
        try:
            with (self._folder / CRASHES).open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
                output = file.read()
            log.warning("the controller has ended: %s", output[-300:].decode("utf-8", "replace"))
            self._objects.put(CRASHES, output)
        except (RefusedError, UnknownError, OSError) as error:
            log.warning("%s", error)

    def _finish(self) -> None:
        """Have nothing of the job's secrets in the bucket, then the final document.

        In this order: once the end is known its user may have the job continue, with new objects of
        the same names.
        """
        with History.open() as history:
            logs = LogPieces(self._folder, self._objects, self._number)
            keeper = StateReplicator(self._job, self._number, self._objects, logs)
            keeper.go_on()
            kept = (MIRROR, CRASHES, LOGS)
            self._objects.remove(
                [key for key in self._objects.keys("") if not key.startswith(kept)]
            )
            keeper.finish(history)
