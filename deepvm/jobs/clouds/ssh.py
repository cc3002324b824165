"""Machines the user owns: an agent on each host of a file, started by ssh or another command.

Nothing waits on a host for orders: each is a command of its own
(:mod:`deepvm.jobs.clouds.ssh_host`), and a machine runs on when the connection is closed. Which
machine is on which host is written down before it is started there. A host that does not answer is
unknown: what ran there may run on, and counts as alive, until it was released in vain for a while;
its agent ends it when it loses the controller.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import deepvm
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import RequestError
from deepvm.io.atomic_write import write_json
from deepvm.io.own_package import package_archive
from deepvm.jobs.cloud import Listing, RefusedError, Start, UnknownError
from deepvm.jobs.decisions.world import MachineRecord
from deepvm.jobs.static_hosts import StaticHosts
from deepvm.jobs.steady_clock import job_time_s
from deepvm.profiling.hosts.launcher import Host
from deepvm.profiling.hosts.machine import address_toward
from deepvm.profiling.hosts.watchdog import MARK

CONTROLLER_HOST = "DEEPVM_CONTROLLER_HOST"
"""Environment variable: the address of this computer that hosts reach."""
_LIMIT_S = 40.0
_LET_GO_S = 30.0
_DEAF_S = 20.0
_AT_ONCE = 32
_MIN_CLOCK_DIFFERENCE_S = 60.0
"""Smaller differences between the clocks of hosts do not count: to ask one may take as long."""

log = logging.getLogger("deepvm.jobs")


@dataclass(frozen=True)
class _Placed:
    """A machine and its host; times in seconds since the epoch, None until they are known."""

    host: str
    launched_s: float | None = None
    ended_s: float | None = None
    released_s: float | None = None
    taken: bool = False

    def is_let_go(self, now_s: float) -> bool:
        """Whether its host did not answer for so long that its end is not awaited any more."""
        return self.released_s is not None and now_s - self.released_s >= _LET_GO_S


class SshCloud:
    """See :class:`deepvm.jobs.cloud.Cloud`."""

    can_preempt: ClassVar = True
    near: ClassVar = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._choosing = threading.Lock()
        self._writing = threading.Lock()
        self._deaf: dict[str, float] = {}
        self._starting: dict[tuple[str, str], str] = {}

    @classmethod
    def open(cls, folder: Path) -> SshCloud:
        return cls(folder)

    def _hosts(self, job: str) -> StaticHosts | None:
        return StaticHosts.load(self._folder / job)

    def host(self, job: str) -> str:
        """See :class:`Cloud`: of this computer's addresses the one from which hosts are reached."""
        own = self._hosts(job)
        if found := os.environ.get(CONTROLLER_HOST):
            return found
        if own is None or own.reach.local:
            return "127.0.0.1"
        for host in own.hosts:
            with suppress(OSError):
                return address_toward(host.address or _resolved(host))
        raise RefusedError(
            f"no host of {job} has an address that is known here; set {CONTROLLER_HOST} to this"
            " one's"
        )

    # --- machines ---------------------------------------------------------------------------------

    def request(self, record: MachineRecord, start: Start) -> float:
        own = self._hosts(start.job)
        if own is None:
            raise RefusedError(f"{start.job} has no hosts")
        (self._places(start.job) / _OVER).unlink(missing_ok=True)
        refused: dict[str, str] = {}
        while True:
            host = self._chosen(own, record, start.job, refused)
            order = {
                "do": "start",
                "machine": start.machine,
                "secret": start.secret.hex(),
                "controller": start.controller,
                "pool": asdict(record.pool),
                "role": record.role.value,
            }
            try:
                answer = self._ask(own, host, order)
                launched_s = float(answer["launched_s"]) + self._behind_s(start.job, answer)
            except RefusedError as error:
                refused[host.name] = str(error)
                (self._places(start.job) / f"{start.machine}.json").unlink(missing_ok=True)
                continue
            finally:
                self._starting.pop((start.job, start.machine), None)
            self._place(start.job, start.machine, _Placed(host.name, launched_s))
            return launched_s

    def _chosen(
        self, own: StaticHosts, record: MachineRecord, job: str, refused: dict[str, str]
    ) -> Host:
        """A host for a machine, written down: where it was asked for before, or one that is free.

        Raises RefusedError.

        ``refused``: hosts that are no choice, and why; more are added.
        """
        with self._choosing:
            placed = self._placed(job)
            if record.id in placed:
                return own.host(placed[record.id].host)
            taken = {
                p.host for p in placed.values() if p.launched_s is not None and p.ended_s is None
            }
            taken |= {host for (one, _), host in self._starting.items() if one == job}
            # A host that has lost machines may be ill.
            before = Counter(p.host for p in placed.values())
            for host in sorted(
                own.of(record.pool), key=lambda h: (self._is_deaf(h), before[h.name])
            ):
                if host.name in refused or host.name in taken:
                    refused.setdefault(host.name, f"{host.name} has a machine of this job")
                    continue
                try:
                    busy = self._ask(own, host, {"do": "look"})["busy"]
                except (UnknownError, RefusedError) as error:
                    refused[host.name] = str(error)
                    continue
                if busy:
                    refused[host.name] = f"{host.name}: {busy} is there"
                    continue
                self._place(job, record.id, _Placed(host.name))
                self._starting[job, record.id] = host.name
                return host
        raise RefusedError("no host is free: " + "; ".join(refused.values()))

    def listing(self, job: str) -> Listing:
        own = self._hosts(job)
        now_s = self._now_s(job)
        if own is None:
            return Listing({})
        if not (self._places(job) / _OVER).exists():
            controller = self._folder / job / "controller"
            url = ""
            if controller.exists():
                url = controller.read_text().strip()
            asked = [h for h in own.hosts if not self._is_deaf(h)]
            for host, answer in self._ask_all(own, asked, {"do": "look", "controller": url}):
                self._note(job, host, answer)
        alive = dict[str, float]()
        ended = dict[str, tuple[float, float]]()
        taken = set[str]()
        for name, placed in self._placed(job).items():
            if placed.launched_s is None:
                continue
            if placed.ended_s is not None:
                ended[name] = placed.launched_s, placed.ended_s
                taken |= {name} if placed.taken else set()
            elif not (placed.is_let_go(now_s) and placed.host in self._deaf):
                alive[name] = placed.launched_s
        return Listing(alive, ended, taken=frozenset(taken))

    def _note(self, job: str, host: Host, answer: JsonObject) -> None:
        behind_s = self._behind_s(job, answer)
        for name, launched_s in answer["alive"].items():
            self._change(job, name, host.name, launched_s=launched_s + behind_s, ended_s=None)
        for name, (launched_s, ended_s) in answer["ended"].items():
            times = {"launched_s": launched_s + behind_s, "ended_s": ended_s + behind_s}
            self._change(job, name, host.name, taken=name in answer["taken"], **times)

    def _now_s(self, job: str) -> float:
        return job_time_s(self._folder / job, time.time())

    def _behind_s(self, job: str, answer: JsonObject) -> float:
        """Seconds a host's clock is behind the job's; 0 if the round trip takes as long."""
        behind_s = 0
        if "now_s" in answer:
            behind_s = round(self._now_s(job) - answer["now_s"])
        if abs(behind_s) >= _MIN_CLOCK_DIFFERENCE_S:
            return float(behind_s)
        return 0.0

    def release(self, job: str, machine: str) -> None:
        self._order(
            job, machine, {"do": "release", "machine": machine}, released_s=self._now_s(job)
        )

    def last_lines(self, job: str, machine: str) -> list[str]:
        own = self._hosts(job)
        placed = self._placed(job).get(machine)
        if own is None or placed is None:
            return []
        host = own.host(placed.host)
        return [
            str(line) for line in self._ask(own, host, {"do": "read", "machine": machine})["lines"]
        ]

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        self._order(job, machine, {"do": "preempt", "machine": machine, "grace_s": grace_s})

    def recommend(self, job: str, machine: str) -> None:
        self._order(job, machine, {"do": "recommend", "machine": machine})

    def _order(
        self, job: str, machine: str, order: JsonObject, released_s: float | None = None
    ) -> None:
        own = self._hosts(job)
        placed = self._placed(job).get(machine)
        if own is None or placed is None or placed.ended_s is not None:
            return
        if released_s is not None and placed.released_s is None:
            self._change(job, machine, placed.host, released_s=released_s)
        host = own.host(placed.host)
        self._note(job, host, self._ask(own, host, order))

    def finish(self, job: str) -> None:
        own = self._hosts(job)
        if own is None or (self._places(job) / _OVER).exists():
            return
        used = {p.host for p in self._placed(job).values()}
        hosts = [h for h in own.hosts if h.name in used]
        answered = {
            host.name
            for host, answer in self._ask_all(own, hosts, {"do": "finish"})
            if not answer["alive"]
        }
        if answered == used:
            self._places(job).mkdir(exist_ok=True)
            (self._places(job) / _OVER).touch()

    # --- which machine is where -------------------------------------------------------------------

    def _places(self, job: str) -> Path:
        return self._folder / job / "placed"

    def _placed(self, job: str) -> dict[str, _Placed]:
        files = self._places(job).glob("*.json")
        return {
            f.stem: _Placed(**json.loads(f.read_bytes()))
            for f in sorted(files, key=lambda f: (len(f.stem), f))
        }

    def _place(self, job: str, machine: str, placed: _Placed) -> None:
        self._places(job).mkdir(parents=True, exist_ok=True)
        write_json(self._places(job) / f"{machine}.json", asdict(placed))

    def _change(self, job: str, machine: str, host: str, **facts: float | bool | None) -> None:
        with self._writing:
            before = self._placed(job).get(machine, _Placed(host))
            if before.host == host and before != replace(before, **facts):  # type: ignore[arg-type]
                self._place(job, machine, replace(before, **facts))  # type: ignore[arg-type]

    # --- hosts ------------------------------------------------------------------------------------

    def _is_deaf(self, host: Host) -> bool:
        return time.monotonic() - self._deaf.get(host.name, -_DEAF_S) < _DEAF_S

    def _ask_all(
        self, own: StaticHosts, hosts: Iterable[Host], order: JsonObject
    ) -> list[tuple[Host, JsonDict]]:

        def ask(host: Host) -> tuple[Host, JsonDict] | None:
            try:
                return host, self._ask(own, host, order)
            except (UnknownError, RefusedError) as error:
                log.warning("%s", error)
                return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [answer for answer in pool.map(ask, hosts) if answer is not None]

    def _ask(self, own: StaticHosts, host: Host, order: JsonObject) -> JsonDict:
        """Have a host obey an order. Raises RefusedError, UnknownError."""
        digest = _digest()
        whole = {**order, "job": own.tag, "place": host.plain, "address": host.address}
        whole |= {"version": deepvm.__version__, "digest": digest, "bytes": 0}
        answer = self._exchange(own, host, whole, b"")
        if answer["event"] == "needs-code":
            code = _package()
            answer = self._exchange(own, host, {**whole, "bytes": len(code)}, code)
        if answer["event"] == "refused":
            raise RefusedError(f"{host.name}: {answer['why']}")
        if answer["event"] != "done":
            raise UnknownError(f"{host.name}: {answer.get('why', answer['event'])}")
        return answer

    def _exchange(self, own: StaticHosts, host: Host, order: JsonObject, behind: bytes) -> JsonDict:
        """What the host's interpreter says. Raises UnknownError."""
        try:
            reach = own.reach
            # Standard input, as a command's words can be seen by everybody there.
            words = reach.reach(host, [reach.python, "-c", _bootstrap()])
            line = json.dumps(order).encode() + b"\n"
            out, err = _run(words, line + behind)
        except (OSError, subprocess.SubprocessError, RequestError) as error:
            self._deaf[host.name] = time.monotonic()
            why = (
                f"no answer within {_LIMIT_S:.0f} s"
                if isinstance(error, subprocess.TimeoutExpired)
                else error
            )
            raise UnknownError(f"{host.name}: {why}") from None
        answers = [
            line.removeprefix(MARK)
            for line in out.decode("utf-8", "replace").splitlines()
            if line.startswith(MARK)
        ]
        with suppress(ValueError):
            found = json.loads(answers[-1] if answers else "")
            if isinstance(found, dict) and "event" in found:
                self._deaf.pop(host.name, None)
                return found
        self._deaf[host.name] = time.monotonic()
        last = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()][-1:]
        raise UnknownError(
            f"{host.name} does not answer: {last[0][:300] if last else 'it printed nothing'}"
        )


_OVER = "over"
"""In the folder of places: nothing is left on any host."""


def _run(words: list[str], data: bytes) -> tuple[bytes, bytes]:
    """A command's output and errors; it is ended, with what it has started, after a while."""
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(data, _LIMIT_S)
        except BaseException:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _resolved(host: Host) -> str:
    """The name that DNS knows, where it is an alias of ssh's."""
    try:
        socket.getaddrinfo(host.plain, None, socket.AF_INET)
    except OSError:
        done = subprocess.run(
            ["ssh", "-G", host.name], capture_output=True, text=True, timeout=_LIMIT_S
        )
        found = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        return found.get("hostname", host.plain)
    return host.plain


def _package() -> bytes:
    return package_archive(libraries=False)


@cache
def _digest() -> str:
    """Of this deepvm: differs where any of its files does."""
    return hashlib.sha256(_package()).hexdigest()[:32]


@cache
def _bootstrap() -> str:
    return (Path(__file__).parent / "ssh_bootstrap.py").read_text(encoding="utf-8")
