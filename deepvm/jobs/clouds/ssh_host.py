"""What the cloud ssh has done on a host: there, machines are local ones, one at a time."""

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.atomic_write import write_bytes
from deepvm.io.file_lock import FileLock
from deepvm.io.user_dirs import user_folder
from deepvm.jobs.cloud import RefusedError, Start, UnknownError
from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.decisions.world import MachineRecord, Pool, Role
from deepvm.jobs.steady_clock import job_time_s
from deepvm.jobs.wire import FAR_BEAT_S
from deepvm.profiling.hosts.machine import address_toward, own_addresses

_LIMIT_S = 20.0
_LOGS = "logs"
_CODE = ".code"


class HostCloud(LocalCloud):
    """The machines of one host."""

    def __init__(self, folder: Path, address: str = "") -> None:
        super().__init__(folder, allocation_s=0.0)
        self._address = address  # Where the others reach this host

    def settings(self, record: MachineRecord, job: str) -> JsonDict:
        cards = {address: name for name, address in own_addresses().items()}
        return {
            **super().settings(record, job),
            # A host may be an instance itself, whose role only its own service knows.
            "metadata_named": False,
            "beat_s": FAR_BEAT_S,
            "address": self._address,
            "interface": cards.get(self._address, ""),
        }

    def occupant(self, job: str, machine: str) -> str:
        for place in _jobs(self._folder):
            for name in self.listing(place.name).alive:
                if (place.name, name) != (job, machine):
                    return f"{name} of {place.name}"
        return ""


def obey(order: JsonObject) -> JsonDict:
    """Do what an order says, and return the answer."""
    data = user_folder("data", os.environ)
    if data is None:
        return {"event": "refused", "why": "it has no home folder"}
    root = data / "hosts"
    job = str(order["job"])
    folder = root / str(order["place"])
    cloud = HostCloud(folder, str(order.get("address", "")))
    answer: JsonDict = {"event": "done"}
    try:
        machine = str(order.get("machine", ""))
        match order["do"]:
            case "start":
                answer["launched_s"] = _start(cloud, folder, order)
            case "look":
                _tell(folder / job, str(order.get("controller", "")))
            case "release":
                cloud.release(job, machine)
            case "read":
                answer["lines"] = cloud.last_lines(job, machine)
            case "preempt":
                cloud.preempt(job, machine, order["grace_s"])
            case "recommend":
                cloud.recommend(job, machine)
            case "finish":
                _finish(cloud, root, folder, job, int(order["lock"]))
        found = cloud.listing(job)
        answer |= {"alive": dict(found.alive), "ended": dict(found.ended)}
        answer |= {"taken": [*found.taken], "busy": cloud.occupant("", "")}
    except RefusedError as error:
        return {"event": "refused", "why": str(error)}
    except (UnknownError, OSError) as error:
        return {"event": "unknown", "why": str(error)}
    return {**answer, "now_s": job_time_s(folder / job, time.time())}


def _start(cloud: HostCloud, folder: Path, order: JsonObject) -> float:
    job = str(order["job"])
    name = str(order["machine"])
    controller = str(order["controller"])
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    lock = FileLock(folder / "lock")
    if not lock.take(shared=False, limit_s=_LIMIT_S):
        raise UnknownError(f"{folder}: another process starts a machine")
    try:
        busy = cloud.occupant(job, name)
        if busy:
            raise RefusedError(f"{busy} is there")
        if not order["address"]:
            # The others reach this host at its address on the way to the controller
            parts = urlsplit(controller)
            cloud = HostCloud(folder, address_toward(parts.hostname or "", parts.port or 80))
        role = Role(order["role"])
        record = MachineRecord(name, Pool(**order["pool"]), time.time(), role=role)
        (folder / job).mkdir(parents=True, exist_ok=True)
        _tell(folder / job, controller)
        start = Start(
            job, name, bytes.fromhex(order["secret"]), controller, str(folder / job / "controller")
        )
        return cloud.request(record, start)
    finally:
        lock.release()


def _tell(job: Path, controller: str) -> None:
    """Tell agents where the controller is: one that was killed continues at another port."""
    file = job / "controller"
    if controller and job.is_dir():
        with suppress(FileNotFoundError):
            if file.read_text() == controller:
                return
        write_bytes(file, controller.encode())


def _finish(cloud: HostCloud, root: Path, folder: Path, job: str, lock: int) -> None:
    """Remove a job's files but for the machines' logs; ``lock``: the bootstrap's, on the code."""
    place = folder / job
    if not place.is_dir() or cloud.listing(job).alive:
        return
    logs = folder / _LOGS
    logs.mkdir(exist_ok=True)
    for log in place.glob("machines/*/machine.log"):
        # Logs outlive the job: they say why its machines ended.
        log.replace(logs / f"{job}-{log.parent.name}.log")
    shutil.rmtree(place)
    # An order under way may need the code: the next end of a job removes it
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not any(_jobs(host) for host in root.iterdir() if host.name != _CODE):
            shutil.rmtree(root / _CODE, ignore_errors=True)


def _jobs(host: Path) -> list[Path]:
    return [place for place in host.glob("*") if (place / "machines").is_dir()]
