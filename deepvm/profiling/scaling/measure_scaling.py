"""Speed-up of data-parallel training on 1, 2, 4... VMs, by torchrun (DeepVM III-C1, V-B1)."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.progress import Say
from deepvm.core.training.steptime import Steps, fit_steps
from deepvm.core.units import counted, refuse_outside
from deepvm.errors import DataError, MeasurementError, RequestError, missing_extra
from deepvm.profiling.fit.scaling_document import Curve, Run, check_same, read_curve, write_curve
from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import Machine, one_machine
from deepvm.profiling.workload.spec import Workload
from deepvm.records import asdict, dataclass, field, replace

AGENT = "deepvm.profiling.scaling.scaling_host"
_REACH_S = 30.0
_SETTLE_S = 1.0
_LINGER_S = 10.0  # how long anyone who failed may take to say so, after the others have noticed
# A host ends by itself this long after its run should have ended, if it could not be ended
_SLACK_S = 60.0


class Limits(NamedTuple):
    """Seconds: until all hosts have found each other, and for one whole run."""

    start_s: float
    run_s: float


@dataclass(frozen=True)
class Ready:
    """A healthy host."""

    host: Host
    port: int  # was free a moment ago
    addresses: Sequence[str]
    boot: str
    deepvm: str
    machine: Machine
    reach: dict[str, str] = field(default_factory=dict)  # addresses of hosts that it reaches


@dataclass(frozen=True)
class Outcome:
    """One run: ``seconds`` per step by window, or ``why`` it failed (reasons, last lines)."""

    seconds: tuple[float, ...] = ()
    why: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    tails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class ScalingCoordinator:
    """Runs ``scaling_host`` on hosts; ``hear`` receives what they print for people."""

    launcher: Launcher
    limits: Limits
    hear: Say | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def probe(
        self, hosts: Sequence[Host], workload: JsonObject
    ) -> tuple[tuple[Ready, ...], dict[str, str]]:
        """The hosts that can run the workload and reach each other; the others' reasons."""
        start_s = self.limits.start_s
        commands = [
            self._command(host, start_s + _REACH_S, work="probe", rank=place, workload=workload)
            for place, host in enumerate(hosts)
        ]
        with Coordinator(commands, self.hear) as programs:
            answers, failed = programs.collect(range(len(hosts)), start_s)
            ready = {}
            for place, answer in answers.items():
                del answer["event"]
                ready[place] = Ready(hosts[place], **answer)
            if len(ready) > 1:
                missing, silent = _reach(programs, ready)
                failed |= silent
                _leave_out(ready, missing, failed)
        healthy = tuple(ready[place] for place in sorted(ready) if place not in failed)
        return healthy, {hosts[place].name: why for place, why in sorted(failed.items())}

    def run(self, hosts: Sequence[Ready], workload: JsonObject) -> Outcome:
        commands = []
        for place, one in enumerate(hosts):
            address, toward = _meeting(hosts, place)
            order = {
                "work": "run",
                "rank": place,
                "nodes": len(hosts),
                "workload": workload,
                "toward": toward,
                "master": f"{address}:{hosts[0].port}",
                "patience_s": self.limits.start_s,
            }
            commands.append(self._command(one.host, self.limits.run_s, **order))
        with Coordinator(commands, self.hear) as programs:
            return _RunListener(
                programs, [h.host for h in hosts], self.limits, int(workload["windows"])
            ).outcome()

    def _command(self, host: Host, limit_s: float, **order: Any) -> tuple[Host, list[str]]:
        order |= {"token": self.token, "limit_s": limit_s + _SLACK_S}
        return self.launcher.agent(host, AGENT, **order)


@dataclass
class _RunListener:
    programs: Coordinator
    hosts: Sequence[Host]
    limits: Limits
    windows: int
    seconds: dict[int, float] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        begin = time.monotonic()
        deadline = begin + self.limits.start_s
        joined = False
        while (found := self.programs.next_message(deadline)) is not None:
            place, message = found
            event = message["event"]
            if event == "arrived":
                self.arrived.add(place)
            elif event == "joined":
                joined = True
                deadline = begin + self.limits.run_s
            elif event == "window":
                self.seconds[message["number"]] = message["seconds"]
            elif event == "done":
                if (heard := len(self.seconds)) != self.windows:
                    return self._failure(f"{heard} of {self.windows} windows were received")
                return Outcome(tuple(self.seconds[i] for i in sorted(self.seconds)))
            elif event == "lost" and place not in self.lost:
                self.lost[place] = message["reason"]
                deadline = min(deadline, time.monotonic() + _LINGER_S)
            elif event == "failed" or event == "ended" and place not in self.lost:
                self._blame(place, message["reason"])
                deadline = min(deadline, time.monotonic() + _SETTLE_S)
        return self._undone(joined)

    def _blame(self, place: int, reason: str) -> None:
        """Record the first failure, and others only of the same cause: the rest follows."""
        if all(
            reason.partition(":")[0] == other.partition(":")[0] for other in self.failed.values()
        ):
            self.failed.setdefault(place, reason)

    def _undone(self, joined: bool) -> Outcome:
        start_s, run_s = self.limits
        if self.arrived and not (self.failed or self.lost or joined):
            absent = set(range(len(self.hosts))) - self.arrived
            self.failed = {p: self.programs.silence(p, start_s) for p in absent}
        if self.failed:
            return self._failure(
                "; ".join(f"{self.hosts[p].name}: {w}" for p, w in sorted(self.failed.items()))
            )
        if self.lost:
            names = ", ".join(self.hosts[p].name for p in sorted(self.lost))
            return self._failure(
                f"{names} lost contact with another host: {next(iter(self.lost.values()))}"
            )
        if joined:
            return self._failure(f"it took longer than {run_s:g} s (--timeout)")
        return self._failure(
            f"the hosts did not find each other within {start_s:g} s (--start-timeout)"
        )

    def _failure(self, why: str) -> Outcome:
        places = self.failed or range(len(self.hosts))
        tails = {self.hosts[p].name: tail for p in places if (tail := self.programs.tail(p))}
        failed = {self.hosts[p].name: reason for p, reason in sorted(self.failed.items())}
        return Outcome(why=why, failed=failed, tails=tails)


def _reach(
    programs: Coordinator, ready: Mapping[int, Ready]
) -> tuple[dict[tuple[int, int], str], dict[int, str]]:
    """Have all connect to all: why one place does not reach another, and why hosts are silent."""
    for place in ready:
        others = [
            {"rank": r, "addresses": _candidates(o), "port": o.port}
            for r, o in ready.items()
            if r != place
        ]
        programs.send(place, others)
    answers, failed = programs.collect(ready, _REACH_S)
    missing = {}
    for place, answer in answers.items():
        for peer in answer["peers"]:
            if peer["address"]:
                ready[place].reach[ready[peer["rank"]].host.name] = peer["address"]
            else:
                missing[place, peer["rank"]] = peer["why"]
    return missing, failed


def _candidates(ready: Ready) -> list[str]:
    if ready.host.address:
        return [ready.host.address]
    # 127.0.0.1: hosts may be processes of one machine
    return list(dict.fromkeys([*ready.addresses, ready.host.plain, "127.0.0.1"]))


def _leave_out(
    ready: Mapping[int, Ready], missing: Mapping[tuple[int, int], str], failed: dict[int, str]
) -> None:
    """Leave out the host with most failed connections until all that remain reach each other."""
    while True:
        left = [p for p in sorted(ready) if p not in failed]
        cut = {p: [q for q in left if (p, q) in missing or (q, p) in missing] for p in left}
        worst = max(left, key=lambda p: (len(cut[p]), p), default=-1)
        if worst < 0 or not cut[worst]:
            return
        other = cut[worst][0]
        why = missing.get((worst, other)) or missing[other, worst]
        names = ", ".join(ready[p].host.name for p in cut[worst])
        failed[worst] = (
            f"no connection between it and {names} ({why}); TCP must be open on all ports among the"
            " hosts"
        )


def _meeting(hosts: Sequence[Ready], place: int) -> tuple[str, str]:
    """The first host's address as seen by one host, and an address of the interface to use."""
    first = hosts[0]
    if len(hosts) == 1:
        return "127.0.0.1", "127.0.0.1"
    if place == 0:
        return hosts[1].reach[first.host.name], first.reach[hosts[1].host.name]
    return (hosts[place].reach[first.host.name],) * 2


WIDE_SPREAD = 0.25  # between the runs of one size; above it there is a warning
_LIMITS = {
    "batch": (1, 65536),
    "resolution": (1, 2048),
    "repeats": (1, 1000),
    "warmup": (0, 100_000),
    "windows": (1, 1000),
    "steps": (1, 100_000),
}
_LOCAL = "all hosts are one machine: this shows that the parts work together, not how VMs scale"


@dataclass(frozen=True)
class Task:
    """What to measure."""

    model: str  # as in :func:`deepvm.profiling.workload.models.build`
    batch: int = 128  # samples of a step in each process, one for each GPU
    resolution: int = 32  # pixels of height and width
    device: str = "auto"  # ``auto``: GPUs if all hosts have some
    sizes: tuple[int, ...] = ()  # numbers of VMs, 1 among them; empty: powers of two and all
    repeats: int = 3  # of each size
    warmup: int = 10  # steps before the first window
    windows: int = 5
    steps: int = 20  # in each window
    batches: tuple[int, ...] = ()  # others that are measured, too
    dtype: str = "float32"
    trains: str = ""  # what ``recommend --model`` calls a user's own model
    sequence: int | None = None  # tokens of a sample
    method: str = ""  # of a language model, ``ddp`` or ``fsdp``; empty for images
    checkpointing: bool = False  # whether it computes activations again

    def sizes_for(self, hosts: int) -> tuple[int, ...]:
        """The sizes, ascending. Raises RequestError for any number beyond its limits."""
        numbers = [("batch", batch) for batch in self.all_batches]
        numbers += [(name, getattr(self, name)) for name in _LIMITS if name != "batch"]
        for option, value in numbers:
            refuse_outside(option, value, *_LIMITS[option])
        powers = [2**i for i in range(hosts.bit_length()) if 2**i <= hosts]
        sizes = tuple(sorted(set(self.sizes or (*powers, hosts))))
        if not 1 <= sizes[0] <= sizes[-1] <= hosts or sizes[0] != 1:
            raise RequestError(
                "sizes",
                ",".join(map(str, sizes)),
                "1, which speed-ups are relative to, and others up to the number of hosts"
                f" ({hosts})",
            )
        return sizes

    def workload(self, device: str, processes: int) -> JsonDict:
        own = asdict(Workload(self.model, self.resolution, self.batch, self.dtype))
        own |= {"device": device, "processes": processes}
        own |= {name: getattr(self, name) for name in ("warmup", "windows", "steps")}
        named = {name: getattr(self, name) for name in ("trains", "sequence", "method")}
        own |= {name: value for name, value in named.items() if value}
        if self.method:
            own |= {"resolution": None, "activation_checkpointing": self.checkpointing}
        return own

    @property
    def all_batches(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.batch, *self.batches)))


def measure_scaling(
    task: Task,
    hosts: Sequence[Host],
    launcher: Launcher,
    *,
    limits: Limits,
    out: Path | None = None,
    say: Say = lambda line: None,
    hear: Say | None = None,
    allow_one_machine: bool = True,
) -> Curve:
    """Measure a curve, the largest cluster first; failed hosts are left out of the rest.

    The file ``out`` grows with each run, and runs that it holds are not repeated. Raises
    RequestError, DataError; MeasurementError: nothing at all could be measured.
    """
    sizes = task.sizes_for(len(hosts))
    old = read_curve(out) if out is not None else None
    session = _Session(task, ScalingCoordinator(launcher, limits, hear), hosts, out, say)
    session.begin(sizes, old, allow_one_machine=allow_one_machine)
    for n in reversed(sizes):
        for batch in task.all_batches:
            session.measure(n, batch)
    return session.finish()


@dataclass
class _Session:
    task: Task
    coordinator: ScalingCoordinator
    hosts: Sequence[Host]
    out: Path | None
    say: Say
    failed: dict[str, str] = field(default_factory=dict)
    too_much: dict[int, str] = field(default_factory=dict)
    unwritten: str = ""

    def begin(self, sizes: tuple[int, ...], old: Curve | None, *, allow_one_machine: bool) -> None:
        hosts = self.hosts
        task = self.task
        self.say(f"looking at {counted(len(hosts), 'host')}: torch, the model, connections")
        self.healthy, failed = self.coordinator.probe(hosts, task.workload("cpu", 1))
        local = one_machine((r.boot for r in self.healthy), allowed=allow_one_machine)
        self._leave_out(failed)
        if not self.healthy:
            raise MeasurementError(f"no host can be used:\n{self._reasons()}")
        plan: JsonDict = {"sizes": list(sizes), "repeats": task.repeats}
        if task.batches:
            plan["batches"] = list(task.all_batches)
        self.curve = Curve(
            workload=task.workload(*_device(task.device, hosts, self.healthy)),
            hosts=tuple(h.name for h in hosts),
            plan=plan,
            local=local,
            machine=self.healthy[0].machine,
            warnings=_doubts(self.healthy),
        )
        if self.out is None:
            return
        if old is not None:
            check_same(self.out, old, self.curve)
            self.curve = replace(self.curve, runs=old.good)  # failed ones are tried once more
            self.say(f"{self.out}: continues after {len(self.curve.runs)} finished runs")
        write_curve(self.out, self.curve)  # an unwritable file is found before anything is measured

    def measure(self, n: int, batch: int) -> None:
        done = {r.repeat for r in self.curve.good if r.n == n and self.curve.batch_of(r) == batch}
        own = batch if self.task.batches else None
        for repeat in [r for r in range(1, self.task.repeats + 1) if r not in done]:
            while True:
                reason = self.too_much.get(batch)
                if reason is None and len(self.healthy) < n:
                    reason = f"{len(self.healthy)} of {n} hosts are healthy; {self._reasons('; ')}"
                if reason is not None:
                    self._add(Run(n, repeat, failed=reason, batch=own))
                    return
                hosts = self.healthy[:n]
                outcome = self.coordinator.run(hosts, {**self.curve.workload, "batch": batch})
                if not outcome.why:
                    images = n * self.curve.workload["processes"] * batch
                    self._add(
                        Run(n, repeat, outcome.seconds, images / median(outcome.seconds), batch=own)
                    )
                    break
                self._add(Run(n, repeat, failed=outcome.why, batch=own))
                for name, lines in outcome.tails.items():
                    self.say(f"the last lines of {name}:")
                    for line in lines:
                        self.say(f"  {line[:500]}")
                if own and len(outcome.failed) == len(hosts) and (n > 1 or len(self.healthy) == 1):
                    # Too much for the GPUs, for example: no host is to blame
                    self.too_much[batch] = (
                        f"a batch of {batch} failed on all of {counted(n, 'host')}"
                    )
                    return
                if not self._blame(outcome, hosts):
                    return  # no single host is at fault: do not wait for the time-out again
                if len(self.healthy) >= n:
                    self.say(f"n = {n}, repeat {repeat}: once more with other hosts")

    def finish(self) -> Curve:
        curve = self.curve
        if not curve.points:
            whys = dict.fromkeys(r.failed for r in curve.runs if r.failed)
            raise MeasurementError(
                "nothing could be measured:\n" + "\n".join(f"  {w}" for w in whys)
            )
        warnings = [_LOCAL] if curve.local else []
        if curve.missing:
            sizes = ", ".join(map(str, curve.missing))
            warnings.append(f"no time for n = {sizes}: see the reasons of the failed runs")
        fit, doubt = _fit(curve)
        warnings += [*curve.warnings, *_spreads(curve), *([doubt] if doubt else [])]
        self.curve = replace(
            curve, fit=fit, step_time=_law(curve), warnings=tuple(dict.fromkeys(warnings))
        )
        self._write()
        return replace(self.curve, unwritten=self.unwritten)

    def _add(self, run: Run) -> None:
        self.curve = replace(self.curve, runs=(*self.curve.runs, run))
        self._write()  # before it is reported: what was reported as done is never lost
        of = f"{_named(run.n, run.batch)}, repeat {run.repeat}"
        if run.failed is not None:
            self.say(f"{of}: failed: {run.failed}")
            return
        middle = median(run.seconds_per_step)
        speed = run.images_per_s
        what = "samples" if self.task.method else "images"
        self.say(f"{of} of {self.task.repeats}: {middle:.4g} s a step, {speed:.5g} {what}/s")

    def _write(self) -> None:
        """Write the file; a full disk must not throw away hours of measuring."""
        if self.out is None:
            return
        try:
            write_curve(self.out, self.curve)
            self.unwritten = ""
        except DataError as error:
            if not self.unwritten:
                self.say(f"{error}; the measurement continues")
            self.unwritten = str(error)

    def _blame(self, outcome: Outcome, hosts: Sequence[Ready]) -> bool:
        failed = dict(outcome.failed)
        if len(failed) == len(hosts) > 1:
            # The same cause on all hosts: too little memory for this batch, for example
            return False
        if not failed:
            self.say("the failing host is unknown: probing all")
            failed = self.coordinator.probe([r.host for r in self.healthy], self.curve.workload)[1]
        self._leave_out(failed)
        return bool(failed)

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        for name, why in failed.items():
            self.failed[name] = why
            self.say(f"{name} is left out: {why}")
        self.healthy = tuple(r for r in self.healthy if r.host.name not in failed)

    def _reasons(self, between: str = "\n") -> str:
        return between.join(f"{name}: {why}" for name, why in self.failed.items())


def _device(wanted: str, hosts: Sequence[Host], healthy: Sequence[Ready]) -> tuple[str, int]:
    gpus = min(len(r.machine["gpus"]) for r in healthy)
    slots = hosts[0].slots
    if wanted == "cuda" and not gpus:
        poor = next(r.host.name for r in healthy if not r.machine["gpus"])
        raise RequestError("device", wanted, f"cpu: torch finds no GPU on {poor}")
    if wanted == "cpu" or not gpus:
        return "cpu", slots or 1
    if slots > gpus:
        raise RequestError(
            "hosts_file", f"slots={slots}", f"up to {gpus}, the GPUs that each host has"
        )
    return "cuda", slots or gpus


def _doubts(healthy: Sequence[Ready]) -> tuple[str, ...]:
    found = []
    for what, values in {
        "torch": [r.machine["torch"] for r in healthy],
        "deepvm": [r.deepvm for r in healthy],
        "processor": [r.machine["processor"] for r in healthy],
        "GPUs": [", ".join(r.machine["gpus"]) or "none" for r in healthy],
    }.items():
        if len(set(values)) > 1:
            shown = "; ".join(
                f"{r.host.name}: {value}" for r, value in zip(healthy, values, strict=True)
            )
            found.append(
                f"hosts differ in {what} ({shown}): the curve is that of no one type of VM"
            )
    return tuple(found)


def _named(n: int, batch: int | None) -> str:
    return f"n = {n}, batch {batch}" if batch else f"n = {n}"


def _spreads(curve: Curve) -> list[str]:
    found = []
    for cell in curve.cells:
        runs = [r for r in curve.good if r.n == cell.n and curve.batch_of(r) == cell.batch]
        times = [median(r.seconds_per_step) for r in runs]
        spread = (max(times) - min(times)) / median(times)
        if spread > WIDE_SPREAD:
            of = _named(cell.n, cell.batch if len(curve.batches) > 1 else None)
            found.append(
                f"{of}: the runs differ by {spread:.0%}; more repeats, or less else on the hosts"
            )
    return found


def _law(curve: Curve) -> JsonDict | None:
    steps = Steps(*np.array(curve.steps, dtype=np.float64).reshape(-1, 4).T)
    return _fitted(lambda: fit_steps(steps).as_document())[0]


def _fit(curve: Curve) -> tuple[JsonDict | None, str]:
    if not curve.samples:
        return None, "no speed-ups and no fit: n = 1 was not measured"

    def fit() -> JsonDict:
        from deepvm.profiling.fit.speedup_fit import fit_curve

        return fit_curve(curve.samples).document()

    return _fitted(fit)


def _fitted(fit: Callable[[], JsonDict]) -> tuple[JsonDict | None, str]:
    """What was fitted, or None and why there is nothing; it can be fitted later."""
    try:
        return fit(), ""
    except ModuleNotFoundError as error:
        # No reason to lose hours of measurements
        if (missing := missing_extra(error)) is None:
            raise
        return None, f"no fit: {missing}"
    except RequestError as error:
        return None, f"no fit: {error.shown}; it takes {error.allowed}"
