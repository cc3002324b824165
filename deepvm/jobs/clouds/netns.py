"""Local machines, each in a network namespace, on a switch per job. Needs root."""

import hashlib
import os
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.jobs.cloud import RefusedError, UnknownError
from deepvm.jobs.clouds.local import LocalCloud, jail
from deepvm.jobs.decisions.world import MachineRecord

_METADATA = "169.254.169.254"
_FIRST = 10
_MOST = 240
_LIMIT_S = 30.0
_MAKING = threading.Lock()  # of a job's switch


class NetnsCloud(LocalCloud):
    """Machines of a computer whose processes may make network namespaces."""

    def __init__(self, folder: Path, allocation_s: float = 0.5) -> None:
        """Raises RefusedError: there can be no namespaces here."""
        super().__init__(folder, allocation_s)
        missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
        if os.geteuid() != 0 or missing:
            needs = f"the programs {' and '.join(missing)}" if missing else "root"
            raise RefusedError(f"the cloud netns needs {needs}; the cloud local does without")

    def host(self, job: str) -> str:
        bridge = _bridge(job)
        address = f"{_net(job)}.1"
        with _MAKING:
            if not Path(f"/sys/class/net/{bridge}").exists():
                _ip("link", "add", bridge, "type", "bridge")
            # A killed controller may have left it without
            _ip("addr", "replace", f"{address}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
        return address

    def settings(self, record: MachineRecord, job: str) -> JsonDict:
        number = int(record.id.removeprefix("m"))
        return {
            **super().settings(record, job),
            "address": f"{_net(job)}.{_FIRST + number % _MOST}",
            "interface": "eth0",
            "metadata_host": _METADATA,
            "metadata_port": 80,
        }

    def words(self, record: MachineRecord, job: str) -> list[str]:
        space = _space(job, record.id)
        self.host(job)
        address = self.settings(record, job)["address"]
        outer = _outer(space)
        inner = f"{space}i"[-15:]
        try:
            _remove(space)
            _ip("netns", "add", space)
            lines = (
                f"link add {outer} type veth peer name {inner}\n"
                f"link set {inner} netns {space}\n"
                f"link set {outer} master {_bridge(job)}\n"
                f"link set {outer} up\n"
            )
            _ip("-batch", "-", text=lines)
            lines = (
                f"link set {inner} name eth0\n"
                f"addr add {address}/24 dev eth0\n"
                f"addr add {_METADATA}/32 dev lo\n"
                "link set lo up\n"
                "link set eth0 up\n"
            )
            _ip("-n", space, "-batch", "-", text=lines)
        except subprocess.SubprocessError as error:
            _remove(space)
            output = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()
            raise RefusedError(f"no network namespace could be made: {output or error}") from None
        return ["ip", "netns", "exec", space, *jail()]

    def release(self, job: str, machine: str) -> None:
        super().release(job, machine)
        _remove(_space(job, machine))

    def finish(self, job: str) -> None:
        super().finish(job)
        for place in sorted((self._folder / job / "machines").glob("*")):
            _remove(_space(job, place.name))
        with suppress(subprocess.SubprocessError):
            _ip("link", "del", _bridge(job))

    def cut(self, job: str, machine: str, *, down: bool = True) -> None:
        try:
            _ip("-n", _space(job, machine), "link", "set", "eth0", "down" if down else "up")
        except subprocess.SubprocessError as error:
            raise UnknownError(f"the link of {machine} is as it was: {error}") from None


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _bridge(job: str) -> str:
    return f"dvmj{_hash(job, 8)}"


def _space(job: str, machine: str) -> str:
    return f"dvmj{_hash(job, 6)}{machine}"


def _net(job: str) -> str:
    """Of the addresses 10.64.0.0 to 10.127.255.255, which few networks use."""
    number = int(_hash(job, 4), 16) % (64 * 256)
    return f"10.{64 + number // 256}.{number % 256}"


def _outer(space: str) -> str:
    return f"{space}o"[-15:]


def _remove(space: str) -> None:
    # A connection that was never closed keeps the namespace, and with it the cable, for minutes.
    for words in (("link", "del", _outer(space)), ("netns", "del", space)):
        with suppress(subprocess.SubprocessError):
            _ip(*words)


def _ip(*words: str, text: str = "") -> None:
    given = text.encode()
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=_LIMIT_S, input=given)
