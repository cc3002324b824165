"""The audit of a script: two undisturbed runs, one killed and restarted to its end, and gates."""

import itertools
import platform
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from deepvm.core.json_types import JsonObject as Row
from deepvm.core.progress import Say
from deepvm.core.spelling import listed
from deepvm.core.units import counted, refuse_outside
from deepvm.errors import DataError, RequestError
from deepvm.lab.certify.attempt import (
    AttemptLog,
    KillPoint,
    Subject,
    Trigger,
    digest_of_file,
    guarded,
    own_files,
    run_attempt,
)
from deepvm.lab.certify.history import History, PlacedAttempt
from deepvm.lab.certify.script_gates import Evidence, Run, cures, judge
from deepvm.lab.verdict import Gate
from deepvm.records import dataclass, replace

_LIBRARIES = ("torch", "transformers", "accelerate", "lightning")
_MAX_RUNS = 3  # With kills: later ones repeat those that did not hit the training, earlier
# Kills are planned in this part of the steps: what comes after the last step proves nothing
_LAST_PART = 0.9
_DELAY_STEPS = 2  # A kill comes at most so many steps after its own
# An attempt that takes so many times as long as the undisturbed run, and so much more, hangs
_TIME_FACTOR, _TIME_MARGIN_S = 10.0, 60.0


@dataclass(frozen=True)
class PlannedKill:
    """A kill after a step of the whole training (from 1), or in a write."""

    kind: Literal["step", "write"]
    step: int
    delay_s: float
    skip: int = 0


@dataclass(frozen=True)
class Kill:
    """One that has happened."""

    run: int
    attempt: int  # that was killed
    kind: str  # ``step`` or ``write``
    file: str  # that was being written
    steps: int  # that the attempt had logged
    reached: int | None  # the last of them
    resumed: int | None  # from where the next attempt continued; None: unknown, or there is none
    total: int  # steps of the training

    @property
    def hit(self) -> bool:
        """Whether something was at stake: steps made and left, or a file being written."""
        return self.steps > 0 and (
            bool(self.file) or self.reached is None or self.reached < self.total
        )


@dataclass(frozen=True)
class Certificate:
    """The verdict."""

    subject: Subject
    gates: Sequence[Gate]
    cures: Sequence[Row]  # of the gates that failed
    compared: Literal["optimizers", "file", "both"]
    steps: int  # of the undisturbed run
    processes: int  # that train
    planned: int  # number of kills
    kills: Sequence[Kill]  # that have happened
    notes: Sequence[str]
    wall_s: float

    @property
    def certified(self) -> bool:
        return not any(gate.state == "failed" for gate in self.gates)

    @property
    def versions(self) -> Mapping[str, str]:
        versions = {"python": platform.python_version()}
        for name in _LIBRARIES:
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        return versions


def certify(
    subject: Subject,
    *,
    kills: int = 3,
    write_kills: int = 1,
    seed: int = 0,
    out: Path | None = None,
    report: Say = lambda text: None,
) -> Certificate:
    """Audit a script.

    ``kills``: after logged steps; ``write_kills``: in the middle of writes of ``torch.save`` or
    ``safetensors.torch.save_file``. ``out``: folder that keeps all runs; None: a temporary one.
    Raises RequestError; DataError: the script fails, or shows nothing; or the folder is full.
    """
    refuse_outside("kills", kills, 1)
    with _output_folder(out) as folder, own_files(folder), guarded(folder):
        return _Audit(subject, folder, random.Random(seed), report).run(kills, write_kills)


@contextmanager
def _output_folder(out: Path | None) -> Iterator[Path]:
    if out is None:
        prefix = "deepvm-audit-"
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
            yield Path(name).resolve()
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(
            "out",
            str(out),
            "a new or empty folder; an audit is never continued: to use this one, delete it first",
        )
    with own_files(out):
        out.mkdir(parents=True, exist_ok=True)
    yield out.resolve()


class _Audit:
    def __init__(self, subject: Subject, folder: Path, chance: random.Random, report: Say) -> None:
        self._subject = subject
        self._folder = folder
        self._chance = chance
        self._report = report
        self._earlier: list[Path] = []

    def run(self, kills: int, write_kills: int) -> Certificate:
        first = self._undisturbed(1)
        second = self._undisturbed(2)
        reference = first.attempts[0].logged
        notes = list(_notes(self._subject, reference, self._earlier))
        plan = []
        runs: list[Run] = []
        happened: list[Kill] = []
        if judge(Evidence(first, second))[0].state == "passed":
            plan = plan_of(reference, kills, write_kills, self._chance)
            if write_kills and not any(kill.kind == "write" for kill in plan):
                notes.append(
                    "the script writes nothing with torch.save or safetensors: none was killed in a"
                    " write"
                )
            limit_s = (len(plan) + 1) * second.attempts[0].wall_s
            self._report(f"next: {counted(len(plan), 'kill')}, in about {limit_s:.0f} s at most")
            runs, happened = self._all_killed(first, second, plan)
        hits = sum(kill.hit for kill in happened)
        compared: Literal["optimizers", "file", "both"] = "optimizers"
        if self._subject.final:
            compared = "both" if reference.steps else "file"
        evidence = Evidence(first, second, runs, len(plan), hits)
        gates = judge(evidence)
        return Certificate(
            self._subject,
            gates,
            cures(gates, evidence),
            compared,
            len(reference.progress),
            max(len(reference.steps), len(reference.samples)),
            len(plan),
            happened,
            notes,
            sum(attempt.wall_s for run in (first, second, *runs) for attempt in run.attempts),
        )

    def _all_killed(
        self, first: Run, second: Run, plan: Sequence[PlannedKill]
    ) -> tuple[list[Run], list[Kill]]:
        runs: list[Run] = []
        happened = []
        pending = plan
        while pending and len(runs) < _MAX_RUNS and sum(not run.ended for run in runs) < 2:
            run, kills, missed = self._killed(len(runs) + 1, first, second, pending)
            runs.append(run)
            happened += kills
            # Without the kill that it did not survive the other gates are judged
            pending = [kill for kill in plan if kill.kind == "step"]
            if run.ended:  # again, earlier
                pending = [
                    replace(kill, step=max(1, kill.step // 2), delay_s=0.0, skip=0)
                    for kill in missed
                ]
            if run.ended and pending and len(runs) < _MAX_RUNS:
                self._report(
                    f"{len(pending)} of {len(plan)} kills did not hit the training: again, earlier"
                )
        return runs, happened

    def _undisturbed(self, number: int) -> Run:
        folder = self._folder / f"undisturbed-{number}"
        self._subject.prepare(folder)
        self._earlier = self._subject.earlier_checkpoints(folder)
        attempt = run_attempt(self._subject, folder, 0, None, self._subject.timeout_s)
        self._report(f"undisturbed run {number}: {attempt.state} after {attempt.wall_s:.0f} s")
        logged = attempt.logged
        problem = ""
        hint = ""
        if attempt.state == "hung":
            problem = (
                f"the script has not ended after {self._subject.timeout_s:.0f} s; see --timeout"
            )
        elif attempt.state == "failed":
            problem = f"the script fails without a kill, with exit code {attempt.code}:"
            problem += f"\n{attempt.last_lines}"
            hint = failure_hint(attempt.last_lines, self._earlier, logged)
        elif not logged.progress:
            error = "".join(f" ({error})" for error in logged.errors[:1])
            problem = (
                f"no step of a torch optimizer was seen{error}: let the script log its steps, with"
                " deepvm.lab.SampleLog, and name the file that it writes its final parameters to:"
                " --final PATH"
            )
            hint = earlier_checkpoints(self._earlier, logged)
        elif not logged.steps and not self._subject.final:
            problem = (
                "no step of a torch optimizer was seen, so there are no parameters to compare: name"
                " the file that the script writes them to: --final PATH"
            )
        if problem:
            raise DataError("\n".join(filter(None, (problem, hint))))
        return Run([attempt], self._final(folder))

    def _final(self, folder: Path) -> str:
        if not self._subject.final:
            return ""
        return digest_of_file(self._subject.final_file(folder), folder / "out")

    def _killed(
        self, number: int, reference: Run, again: Run, plan: Sequence[PlannedKill]
    ) -> tuple[Run, list[Kill], list[PlannedKill]]:
        """A run with as many of these kills as happen, and the kills that missed training."""
        folder = self._folder / f"killed-{number}"
        first = reference.attempts[0]
        self._subject.prepare(folder)
        history = History(first.logged, again.attempts[0].logged)
        limit_s = min(self._subject.timeout_s, _TIME_FACTOR * first.wall_s + _TIME_MARGIN_S)
        left = list(plan)
        before = 0
        state = "killed"
        counts: Literal["step", "samples"] = "samples"
        if first.logged.steps:
            counts = "step"
        while state == "killed":
            trigger = None
            if left:
                trigger = trigger_of(left[0], before, history, counts)
            attempt = run_attempt(self._subject, folder, len(history.placed), trigger, limit_s)
            summary = _summary(history.add(attempt), history.steps)
            self._report(f"run {number}, attempt {attempt.number}: {summary}")
            state = attempt.state
            if state == "killed":
                before = left.pop(0).step
        final = ""
        if state == "ended":
            try:
                final = self._final(folder)
            except DataError as error:
                final = str(error)
        kills = [
            _kill(number, one, following, history.steps)
            for one, following in itertools.zip_longest(history.placed, history.placed[1:])
            if one.attempt.state == "killed"
        ]
        missed = [planned for planned, kill in zip(plan, kills, strict=False) if not kill.hit]
        return Run([one.attempt for one in history.placed], final, history), kills, [*missed, *left]


def plan_of(
    reference: AttemptLog, kills: int, write_kills: int, chance: random.Random
) -> list[PlannedKill]:
    """One kill in each of equal parts of the steps, one of them halfway between two saves."""
    bursts = Counter(row["n"] for row in reference.writes)
    last = int(_LAST_PART * len(reference.progress))
    in_time = [n for n in bursts if 0 < n <= len(reference.progress)]
    kinds: list[Literal["step", "write"]] = ["step"] * (kills - 1)
    if in_time:
        kinds += ["write"] * write_kills
    chance.shuffle(kinds)
    kinds.insert(0, "step")  # so that a write is killed when there may be an older checkpoint
    times = [row["time"] for row in reference.progress]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    saves = itertools.pairwise(sorted(in_time))
    # With at least one fully logged step in between
    halves = [a + (b - a + 1) // 2 for a, b in saves if b - a > 2]
    pace_s = statistics.median(gaps or [0.1])
    planned = []
    halfway = []
    for number, kind in enumerate(kinds):
        low, high = (1 + (last - 1) * part / len(kinds) for part in (number, number + 1))
        if kind == "step":
            halfway += [(number, n) for n in halves if low <= n <= high]
        delay_s = chance.uniform(0, _DELAY_STEPS) * min(pace_s, 5.0)
        skip = 0
        if kind == "write":
            skip = chance.randrange(max(bursts.values()))
        planned.append(PlannedKill(kind, max(1, int(chance.uniform(low, high))), delay_s, skip))
    if halfway:  # else all may fall right after a save, where no step is done again
        number, step = chance.choice(halfway)
        planned[number] = PlannedKill("step", step, 0.0)
    return planned


def trigger_of(
    kill: PlannedKill, before: int, history: History, counts: Literal["step", "samples"]
) -> Trigger:
    """As an attempt receives a planned kill; ``before``: the step of the last kill."""

    def point(first: Row) -> KillPoint:
        resumed = history.place_of(first)
        # An attempt that cannot be placed has continued from the last kill, or earlier
        after = max(1, kill.step - (before if resumed is None else resumed))
        if kill.kind == "write":
            return KillPoint(after, 0.0, after, kill.skip)
        limit = after + _DELAY_STEPS
        if resumed is not None:  # not with the last step
            limit = max(after, min(limit, history.steps - 1 - resumed))
        return KillPoint(after, kill.delay_s, limit)

    return Trigger("write" if kill.kind == "write" else counts, point)


def _summary(placed: PlacedAttempt, total: int) -> str:
    attempt = placed.attempt
    state = str(placed.attempt.state)
    origin = "unknown parameters"
    if placed.resumed is not None:
        origin = f"step {placed.resumed}"
    if state == "killed":
        if attempt.torn_file:
            state += f" while {Path(attempt.torn_file).name} was written"
        if placed.reached is not None:
            state += f" at step {placed.reached} of {total}"
        if not _kill(0, placed, None, total).hit:
            state += ", which proves nothing"
    return f"from {origin}, {len(attempt.logged.progress)} steps, {state}"


def _kill(number: int, one: PlacedAttempt, following: PlacedAttempt | None, total: int) -> Kill:
    attempt = one.attempt
    kind = "write" if attempt.torn_file else "step"
    steps = len(attempt.logged.progress)
    resumed = None
    if following is not None:
        resumed = following.resumed
    return Kill(number, attempt.number, kind, attempt.torn_file, steps, one.reached, resumed, total)


def _notes(subject: Subject, reference: AttemptLog, earlier: Sequence[Path]) -> Iterator[str]:
    if not subject.in_place:
        yield (
            "each run had a copy of the current folder; with {out} in its arguments a script says"
            " where it writes"
        )
    if hint := earlier_checkpoints(earlier, reference):
        yield hint
    for reason in dict.fromkeys(reference.errors):
        yield f"some steps could not be read: {reason}"


_NO_MODULE = re.compile(r"No module named '(torch|lightning|transformers|accelerate)\b")


def earlier_checkpoints(files: Sequence[Path], logged: AttemptLog) -> str:
    """Warn of files copied with the script; empty if its samples show a fresh start."""
    if not files:
        return ""
    names = listed([str(file) for file in files], 3)
    samples = [row for rows in logged.samples.values() for row in rows]
    first = min((row["global_step"] for row in samples), default=None)
    if first is None:
        return (
            "files that lay in the current folder may be checkpoints of an earlier training:"
            f" {names}. If so, all runs started there: move them away, or let the script write to"
            " {out}"
        )
    if first <= 1:  # some count from 1
        return ""
    return (
        f"the undisturbed run found files of earlier trainings and started at step {first}: {names}"
    )


def failure_hint(lines: str, files: Sequence[Path], logged: AttemptLog) -> str:
    """Why an undisturbed script may have failed, by its last lines and the files it found."""
    if match := _NO_MODULE.search(lines):
        return (
            f"the script runs in deepvm's own Python; install {match[1]} there: {sys.executable} -m"
            f" pip install {match[1]}"
        )
    # Gloo threads outlive their group and may abort an exiting interpreter (torch 2.13)
    if "SIGABRT" in lines or "terminate called without an active exception" in lines:
        return (
            "if training was over, the process aborted as it ended, as torch's gloo does now and"
            " then on a busy machine: end the script with ck.close(), or what else waits for its"
            " saves, destroy_process_group() and os._exit(0)"
        )
    return earlier_checkpoints(files, logged)
