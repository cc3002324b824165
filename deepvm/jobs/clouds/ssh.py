"""Machines the user owns: an agent on each host of a file, started by ssh or another command.

A host that does not answer is unknown: what ran there counts as alive, until it was released in
vain for a while; its agent ends it when it loses the controller.
"""

import hashlib
import json
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
from functools import cache
from pathlib import Path
from typing import Any

import deepvm
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import RequestError
from deepvm.io.atomic_write import write_json
from deepvm.io.own_package import package_archive
from deepvm.jobs.cloud import Cloud, Listing, RefusedError, Start, UnknownError
from deepvm.jobs.decisions.world import MachineRecord
from deepvm.jobs.loggers import jobs_log as log
from deepvm.jobs.static_hosts import StaticHosts
from deepvm.jobs.steady_clock import job_time_s
from deepvm.profiling.hosts.launcher import Host
from deepvm.profiling.hosts.machine import address_toward
from deepvm.profiling.hosts.watchdog import MARK
from deepvm.records import asdict, dataclass, replace

# Environment variable: the address of this computer that hosts reach
CONTROLLER_HOST = "DEEPVM_CONTROLLER_HOST"
_LIMIT_S = 40.0
_LET_GO_S = 30.0
_DEAF_S = 20.0
_AT_ONCE = 32
_OVER = "over"  # In the folder of places: nothing is left on any host
# Smaller differences between the clocks of hosts do not count: to ask one may take as long
_MIN_CLOCK_DIFFERENCE_S = 60.0


@dataclass(frozen=True)
class _Placed:
    host: str
    launched_s: float | None = None
    ended_s: float | None = None
    released_s: float | None = None
    taken: bool = False

    def is_let_go(self, now_s: float) -> bool:
        return self.released_s is not None and now_s - self.released_s >= _LET_GO_S


class SshCloud(Cloud):
    """Machines on the hosts of a job's file."""

    can_preempt = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._choosing = threading.Lock()
        self._writing = threading.Lock()
        self._deaf: dict[str, float] = {}
        self._starting: dict[tuple[str, str], str] = {}

    def _hosts(self, job: str) -> StaticHosts:
        return StaticHosts.load(self._folder / job) or StaticHosts("", "local", "", ())

    def host(self, job: str) -> str:
        if found := os.environ.get(CONTROLLER_HOST):
            return found
        own = self._hosts(job)
        if own.reach.local:
            return "127.0.0.1"
        reasons = {}
        for host in own.hosts:
            name = host.address or _resolved(host)
            try:
                return address_toward(name)
            except OSError as error:
                reasons[name] = error.strerror or str(error)
        hosts = "; ".join(f"{name} cannot be resolved ({why})" for name, why in reasons.items())
        raise RefusedError(
            f"{hosts}; correct the file of hosts, or set {CONTROLLER_HOST} to the address of this"
            " computer for them"
        )

    def request(self, record: MachineRecord, start: Start) -> float:
        own = self._hosts(start.job)
        places = self._places(start.job)
        (places / _OVER).unlink(missing_ok=True)
        order = {
            "do": "start",
            "machine": start.machine,
            "secret": start.secret.hex(),
            "controller": start.controller,
            "pool": asdict(record.pool),
            "role": record.role.value,
        }
        refused: dict[str, str] = {}
        while True:
            host = self._chosen(own, record, start.job, refused)
            try:
                answer = self._ask(own, host, order)
                launched_s = float(answer["launched_s"]) + self._behind_s(start.job, answer)
            except RefusedError as error:
                refused[host.name] = str(error)
                (places / f"{start.machine}.json").unlink(missing_ok=True)
                continue
            finally:
                self._starting.pop((start.job, start.machine), None)
            self._place(start.job, start.machine, _Placed(host.name, launched_s))
            return launched_s

    def _chosen(
        self, own: StaticHosts, record: MachineRecord, job: str, refused: dict[str, str]
    ) -> Host:
        """A host, written down; ``refused`` gets those that are no choice. Raises RefusedError."""
        with self._choosing:
            placed = self._placed(job)
            if record.id in placed:
                return own.host(placed[record.id].host)
            taken = {
                p.host for p in placed.values() if p.launched_s is not None and p.ended_s is None
            }
            taken |= {host for (one, _), host in self._starting.items() if one == job}
            before = Counter(p.host for p in placed.values())
            able = sorted(own.of(record.pool), key=lambda h: (self._is_deaf(h), before[h.name]))
            for host in able:
                if host.name in taken:
                    refused.setdefault(host.name, f"{host.name} has a machine of this job")
                if host.name in refused:
                    continue
                try:
                    busy = self._ask(own, host, {"do": "look"})["busy"]
                except (UnknownError, RefusedError) as error:
                    refused[host.name] = str(error)
                    continue
                if not busy:
                    self._place(job, record.id, _Placed(host.name))
                    self._starting[job, record.id] = host.name
                    return host
                refused[host.name] = f"{host.name}: {busy} is there"
        raise RefusedError("no host is free: " + ("; ".join(refused.values()) or "there is none"))

    def listing(self, job: str) -> Listing:
        own = self._hosts(job)
        now_s = self._now_s(job)
        if not (self._places(job) / _OVER).exists():
            order = {"do": "look"}
            with suppress(FileNotFoundError):
                order["controller"] = (self._folder / job / "controller").read_text().strip()
            asked = [h for h in own.hosts if not self._is_deaf(h)]
            for host, answer in self._ask_all(own, asked, order):
                self._note(job, host, answer)
        alive = {}
        ended = {}
        taken = set()
        for name, placed in self._placed(job).items():
            if placed.launched_s is None:
                continue
            if placed.ended_s is not None:
                ended[name] = placed.launched_s, placed.ended_s
                if placed.taken:
                    taken.add(name)
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
        now_s = self._now_s(job)
        behind_s = round(now_s - answer.get("now_s", now_s))
        if abs(behind_s) < _MIN_CLOCK_DIFFERENCE_S:
            return 0.0
        return float(behind_s)

    def release(self, job: str, machine: str) -> None:
        placed = self._placed(job).get(machine)
        if placed is not None and placed.ended_s is None and placed.released_s is None:
            self._change(job, machine, placed.host, released_s=self._now_s(job))
        self._order(job, machine, {"do": "release"})

    def last_lines(self, job: str, machine: str) -> list[str]:
        placed = self._placed(job).get(machine)
        if placed is None:
            return []
        own = self._hosts(job)
        answer = self._ask(own, own.host(placed.host), {"do": "read", "machine": machine})
        return [str(line) for line in answer["lines"]]

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        self._order(job, machine, {"do": "preempt", "grace_s": grace_s})

    def recommend(self, job: str, machine: str) -> None:
        self._order(job, machine, {"do": "recommend"})

    def _order(self, job: str, machine: str, order: JsonObject) -> None:
        placed = self._placed(job).get(machine)
        if placed is not None and placed.ended_s is None:
            own = self._hosts(job)
            host = own.host(placed.host)
            self._note(job, host, self._ask(own, host, {**order, "machine": machine}))

    def finish(self, job: str) -> None:
        own = self._hosts(job)
        if not own.hosts or (self._places(job) / _OVER).exists():
            return
        used = {p.host for p in self._placed(job).values()}
        hosts = [h for h in own.hosts if h.name in used]
        answered = {
            host.name
            for host, answer in self._ask_all(own, hosts, {"do": "finish"})
            if not answer["alive"]
        }
        if answered == used:
            self._places(job).mkdir(parents=True, exist_ok=True)
            (self._places(job) / _OVER).touch()

    def _places(self, job: str) -> Path:
        return self._folder / job / "placed"

    def _placed(self, job: str) -> dict[str, _Placed]:
        files = self._places(job).glob("*.json")
        return {
            f.stem: _Placed(**json.loads(f.read_bytes()))
            for f in sorted(files, key=lambda f: (len(f.stem), f))
        }

    def _place(self, job: str, machine: str, placed: _Placed) -> None:
        places = self._places(job)
        places.mkdir(parents=True, exist_ok=True)
        write_json(places / f"{machine}.json", asdict(placed))

    def _change(self, job: str, machine: str, host: str, **facts: Any) -> None:
        with self._writing:
            before = self._placed(job).get(machine, _Placed(host))
            after = replace(before, **facts)
            if before.host == host and before != after:
                self._place(job, machine, after)

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
        whole = {**order, "job": own.tag, "place": host.plain, "address": host.address}
        whole |= {"version": deepvm.__version__, "digest": _digest(), "bytes": 0}
        answer = self._exchange(own, host, whole, b"")
        if answer["event"] == "needs-code":
            code = package_archive(libraries=False)
            answer = self._exchange(own, host, {**whole, "bytes": len(code)}, code)
        if answer["event"] == "refused":
            raise RefusedError(f"{host.name}: {answer['why']}")
        if answer["event"] != "done":
            raise UnknownError(f"{host.name}: {answer.get('why', answer['event'])}")
        return answer

    def _exchange(self, own: StaticHosts, host: Host, order: JsonObject, behind: bytes) -> JsonDict:
        try:
            reach = own.reach
            # Standard input, as a command's words can be seen by everybody there.
            words = reach.reach(host, [reach.python, "-c", _bootstrap()])
            line = json.dumps(order).encode() + b"\n"
            out, err = _run(words, line + behind)
        except (OSError, subprocess.SubprocessError, RequestError) as error:
            self._deaf[host.name] = time.monotonic()
            late = isinstance(error, subprocess.TimeoutExpired)
            reason = f"no answer within {_LIMIT_S:.0f} s" if late else error
            raise UnknownError(f"{host.name}: {reason}") from None
        lines = out.decode("utf-8", "replace").splitlines()
        answers = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
        with suppress(ValueError, LookupError):
            found = json.loads(answers[-1])
            if isinstance(found, dict) and "event" in found:
                self._deaf.pop(host.name, None)
                return found
        self._deaf[host.name] = time.monotonic()
        printed = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        last = "".join(printed[-1:])[:300] or "it printed nothing"
        raise UnknownError(f"{host.name} does not answer: {last}")


def _run(words: list[str], data: bytes) -> tuple[bytes, bytes]:
    """A command's output and errors; it is killed with its group after ``_LIMIT_S``."""
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
        return host.plain
    except OSError:
        words = ["ssh", "-G", host.name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S)
        found = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        return found.get("hostname", host.plain)


@cache
def _digest() -> str:
    """Of this deepvm: differs where any of its files does."""
    return hashlib.sha256(package_archive(libraries=False)).hexdigest()[:32]


@cache
def _bootstrap() -> str:
    return (Path(__file__).parent / "ssh_bootstrap.py").read_text(encoding="utf-8")
