"""Speed-up of data-parallel training on 1, 2, 4... VMs, measured with torchrun.

As in the paper (DeepVM III-C1, V-B1), the batch of each VM is fixed and each size is measured
several times. The largest cluster comes first; a host that fails is left out of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from deepvm.core.training.steptime import Steps, fit_steps
from deepvm.core.units import counted, refuse_outside
from deepvm.errors import DataError, MeasurementError, RequestError, missing_extra
from deepvm.profiling.fit.scaling_document import (
    Curve,
    Run,
    check_same,
    read_curve,
    write_curve,
)
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import one_machine
from deepvm.profiling.scaling.scaling_coordinator import Limits, Outcome, Ready, ScalingCoordinator
from deepvm.profiling.workload.spec import Workload

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
    """What to measure.

    Attributes:
        model: as in :func:`deepvm.profiling.workload.models.build`; the hosts must be able to
            import it.
        batch: samples of a step in each process, one for each GPU. batches: others that are
            measured, too.
        resolution: pixels of height and width. dtype: as in
            :class:`deepvm.profiling.workload.spec.Workload`.
        trains: what ``recommend --model`` calls a user's own model; empty for its own name.
        sequence: tokens of a sample, where samples are texts.
        method: of a language model of :mod:`deepvm.profiling.workload.language`, ``ddp`` or
            ``fsdp``; empty for images.
        checkpointing: whether it computes activations again.
        device: ``cpu``, ``cuda``, or ``auto``: GPUs if all hosts have some.
        sizes: numbers of VMs, 1 among them; powers of two and all hosts when empty.
        repeats: runs of each size. warmup: steps before the first window. steps: in each window.
    """

    model: str
    batch: int = 128
    resolution: int = 32
    device: str = "auto"
    sizes: tuple[int, ...] = ()
    repeats: int = 3
    warmup: int = 10
    windows: int = 5
    steps: int = 20
    batches: tuple[int, ...] = ()
    dtype: str = "float32"
    trains: str = ""
    sequence: int | None = None
    method: str = ""
    checkpointing: bool = False

    def sizes_for(self, hosts: int) -> tuple[int, ...]:
        """The sizes, each once, ascending.

        Raises a RequestError for any number beyond its limits.
        """
        numbers = [("batch", batch) for batch in self.all_batches]
        numbers += [(name, getattr(self, name)) for name in _LIMITS if name != "batch"]
        for option, value in numbers:
            refuse_outside(option, value, *_LIMITS[option])
        powers = [2**i for i in range(hosts.bit_length()) if 2**i <= hosts]
        sizes = tuple(sorted(set(self.sizes or (*powers, hosts))))
        if not 1 <= sizes[0] <= sizes[-1] <= hosts or sizes[0] != 1:
            allowed = (
                "1, which speed-ups are relative to, and others up to the number of hosts"
                f" ({hosts})"
            )
            raise RequestError("sizes", ",".join(map(str, sizes)), allowed)
        return sizes

    def workload(self, device: str, processes: int) -> dict[str, Any]:
        """All that changes what is measured, as the document has it."""
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
        """Each once, that of the speed-up curve first."""
        return tuple(dict.fromkeys((self.batch, *self.batches)))


def measure_scaling(
    task: Task,
    hosts: Sequence[Host],
    launcher: Launcher,
    *,
    limits: Limits,
    out: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    hear: Callable[[str], None] | None = None,
    allow_one_machine: bool = True,
) -> Curve:
    """Measure a curve; it lacks sizes for which too few hosts were healthy.

    Smaller sizes use the first hosts. The file ``out`` grows with each run, and runs that it holds
    are not repeated. ``hear`` receives each line that hosts print for people; ``allow_one_machine``
    allows hosts that are one machine.

    Raises:
        RequestError: an argument cannot be used, the file was measured with others, or hosts are
            one machine.
        DataError: the file cannot be read or, before anything was measured, written.
        MeasurementError: nothing at all could be measured.
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
    """The state of one measurement: which hosts are healthy, what was measured."""

    task: Task
    coordinator: ScalingCoordinator
    hosts: Sequence[Host]
    out: Path | None
    say: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict)
    too_much: dict[int, str] = field(default_factory=dict)
    unwritten: str = ""

    def begin(self, sizes: tuple[int, ...], old: Curve | None, *, allow_one_machine: bool) -> None:
        """Probe the hosts, settle the workload, and resume from the file."""
        hosts = self.hosts
        task = self.task
        self.say(f"looking at {counted(len(hosts), 'host')}: torch, the model, connections")
        self.healthy, failed = self.coordinator.probe(hosts, task.workload("cpu", 1))
        local = one_machine((r.boot for r in self.healthy), allowed=allow_one_machine)
        self._leave_out(failed)
        if not self.healthy:
            raise MeasurementError(f"no host can be used:\n{self._reasons()}")
        plan: dict[str, Any] = {"sizes": list(sizes), "repeats": task.repeats}
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
            self.say(f"{self.out}: goes on after {len(self.curve.runs)} finished runs")
        write_curve(self.out, self.curve)  # an unwritable file is found before anything is measured

    def measure(self, n: int, batch: int) -> None:
        """All repeats of one size and batch, while enough hosts are healthy."""
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
                    # Too much for the GPUs, for example. Alone, a host would be blamed for it, and
                    # be missing for the other batches.
                    self.too_much[batch] = (
                        f"a batch of {batch} failed on all of {counted(n, 'host')}"
                    )
                    return
                if not self._blame(outcome, hosts):
                    return  # no single host is at fault: do not wait for the time-out again
                if len(self.healthy) >= n:
                    self.say(f"n = {n}, repeat {repeat}: once more with other hosts")

    def finish(self) -> Curve:
        """The curve with its fit and warnings."""
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
                self.say(f"{error}; the measurement goes on")
            self.unwritten = str(error)

    def _blame(self, outcome: Outcome, hosts: Sequence[Ready]) -> bool:
        """Leave out the hosts that failed; False when it is unknown which those are."""
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
    """The device, and processes on each host."""
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
    """What differs between hosts that ought to be alike."""
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


def _law(curve: Curve) -> dict[str, Any] | None:
    steps = Steps(*np.array(curve.steps, dtype=np.float64).reshape(-1, 4).T)
    return _fitted(lambda: fit_steps(steps).as_document())[0]


def _fit(curve: Curve) -> tuple[dict[str, Any] | None, str]:
    if not curve.samples:
        return None, "no speed-ups and no fit: n = 1 was not measured"

    def fit() -> dict[str, Any]:
        from deepvm.profiling.fit.speedup_fit import fit_curve

        return fit_curve(curve.samples).document()

    return _fitted(fit)


def _fitted(fit: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
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
