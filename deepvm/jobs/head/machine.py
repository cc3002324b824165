"""On a remote controller: fetch the job, keep a controller running, and report to the user."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deepvm.errors import DataError, DeepVMError
from deepvm.io.threads import start_thread
from deepvm.jobs.cloud import HostsController, RefusedError, UnknownError
from deepvm.jobs.clouds.aws.ec2_machine import PUT_OFF_S, put_off_shutdown
from deepvm.jobs.clouds.aws.s3_read import metadata, read_patiently
from deepvm.jobs.head import mirror
from deepvm.jobs.head.mirror import MIRROR, FencedError, HeadState, LogPieces
from deepvm.jobs.head.mirror_keeper import PULSE, StateReplicator
from deepvm.jobs.history.history import History
from deepvm.jobs.loggers import jobs_log as log

# The controller's output, if it has ended with an error: an object for the user to read
CRASHES = "controller.log"
_PAUSE_S = 2.0
_MOST_PAUSE_S = 15.0
# A controller that runs so long is healthy; if none does for the other time, none will
_STEADY_S, _GIVE_UP_S = 60.0, 1800.0
_TAIL = 20_000
# A controller whose loop has not turned for the second time hangs; the first is between looks
_LOOK_S, HUNG_S = 5.0, 300.0


class HeadMachine:
    """The machine of one head."""

    def __init__(self, job: str, number: int, jobs: Path, cloud: HostsController) -> None:
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
        with History.open() as history:
            if history.job(self._job) is not None:
                return
            found = self._objects.get(MIRROR)
            copy = {} if found is None else mirror.decoded(found.data)
            has_this = copy.get("head") == self._number
            if not has_this or not mirror.get_folder(self._objects, self._folder):
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
        try:
            found = self._objects.get(MIRROR)
            return found is None or int(mirror.decoded(found.data)["head"]) > self._number
        except (RefusedError, UnknownError) as error:
            log.warning("%s", error)
            return False

    def _control(self) -> None:
        command = [sys.executable, "-m", "deepvm.cli.main", "jobs", "resume", self._job]
        try:
            (self._folder / PULSE).unlink(missing_ok=True)
            with (self._folder / CRASHES).open("ab") as file:
                process = subprocess.Popen(
                    [*command, "--keep", "--yes"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
                if not self._ends(process):
                    process.kill()
                    process.wait()
                    text = f"the controller hangs: it was ended after {HUNG_S:.0f} s\n"
                    file.write(text.encode())
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
        try:
            return (self._folder / PULSE).stat().st_mtime_ns
        except OSError:
            return None

    def _tell(self) -> None:
        try:
            with (self._folder / CRASHES).open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
                output = file.read()
            log.warning("the controller has ended: %s", output[-300:].decode("utf-8", "replace"))
            self._objects.put(CRASHES, output)
        except (RefusedError, UnknownError, OSError) as error:
            log.warning("%s", error)

    def _finish(self) -> None:
        """Remove secrets from the bucket, then write the end, after which a job may continue."""
        with History.open() as history:
            logs = LogPieces(self._folder, self._objects, self._number)
            keeper = StateReplicator(self._job, self._number, self._objects, logs)
            keeper.go_on()
            kept = (MIRROR, CRASHES, mirror.LOGS)
            self._objects.remove(
                [key for key in self._objects.keys("") if not key.startswith(kept)]
            )
            keeper.finish(history)


def _put_off(over: threading.Event) -> None:
    while not over.is_set():
        put_off_shutdown()
        over.wait(PUT_OFF_S)


def main() -> None:
    """Run the controller of a job until that is over, or until nothing can be done about it."""
    region, bucket, prefix = sys.argv[1:]
    logging.basicConfig(format="deepvm head: %(message)s", level=logging.WARNING)
    number = int(metadata("tags/instance/deepvm:machine").rpartition("-")[2])
    known = json.loads(read_patiently(region, bucket, f"{prefix}/settings.json"))
    data = Path.cwd() / "data"
    os.environ.update(known["environ"], DEEPVM_DATA_DIR=str(data))
    from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud

    (data / "jobs").mkdir(parents=True, exist_ok=True)
    (data / "jobs" / ".aws-owner").write_text(known["owner"])
    cloud = Ec2Cloud(data / "jobs")
    over = threading.Event()
    start_thread(_put_off, over)
    try:
        HeadMachine(known["job"], number, data / "jobs", cloud).run()
    finally:
        over.set()


if __name__ == "__main__":
    main()
