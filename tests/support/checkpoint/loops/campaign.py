"""Kill a training loop at random places, resume it until it is done, and compare it with an
undisturbed run.

In tests/, ``python -m support.checkpoint.loops.campaign steps|hooks [NAME...]`` prints a line for
each shape. KILLS and TOTAL in the environment set how often each is killed, and its length; another
SALT chooses other places.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch

from support.checkpoint.loops.run import Kill, Mode, Run, contradictions, records
from support.checkpoint.loops.shape import Shape

KILLS = int(os.environ.get("KILLS", "4"))
TOTAL = int(os.environ.get("TOTAL", "40"))
SALT = os.environ.get("SALT", "")
MOST_PLACES = 9
LONGEST_DELAY_S = 0.03
EXPECTED = ("it has no manifest", "call save(block=True) at the end")
"""In warnings about files of killed attempts, and about versions for which tiny iterations leave no
time.
"""
LIMIT_S = 120.0
"""An attempt that takes longer hangs."""


@dataclass
class Outcome:
    """What a campaign has shown.

    Attributes:
        different: what differs from the undisturbed run; empty if nothing does.
        warnings: of deepvm, from all attempts. starts: the versions that attempts resumed from.
        error: why the campaign could not be finished.
    """

    name: str
    mode: Mode
    different: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    error: str = ""

    @property
    def equal(self) -> bool:
        return not self.different and not self.error

    @property
    def warned(self) -> bool:
        """A warning names what changed between the step and the next forward, and the cure."""
        return any("changed" in text and "ck.steps" in text for text in self.warnings)

    def __str__(self) -> str:
        result = (
            self.error
            and f"ERROR {self.error}"
            or (self.different and f"DIFFERENT {self.different}")
            or "EQUAL"
        )
        warned = "".join(f"\n      warning: {text[:200]}" for text in self.warnings)
        return f"{self.mode} {self.name:32} starts {self.starts} {result}{warned}"


class AttemptFailure(Exception):
    """An attempt ended in another way than planned."""


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def start(work: Callable[[], None], log: Path) -> int:
    """The process id of a forked child that does this; what it prints is in the log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks where other threads run
        pid = os.fork()
    if not pid:
        status = 1
        try:
            output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = sys.stderr = os.fdopen(1, "w", 1, closefd=False)
            warnings.simplefilter("default")
            torch.set_num_threads(1)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def wait_for(pid: int, log: Path) -> int:
    """The child's wait status. Raises AttemptFailure if it hangs."""
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AttemptFailure(f"an attempt hangs: {_end_of(log)}")


def _end_of(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])[-600:]


class Campaign:
    """Attempts at one shape in one mode, in a separate folder."""

    def __init__(self, shape: Shape, mode: Mode, folder: Path, total: int = TOTAL) -> None:
        self.shape, self.mode, self.folder, self.total = shape, mode, folder, total

    def attempt(self, name: str, checkpoints: Path | None, kill: Kill | None) -> int:
        """The wait status of an attempt."""

        def work() -> None:
            seed(1)
            run = Run(self.mode, self.total, self.folder / name, checkpoints, kill)
            self.shape.loop(run)
            run.finish()

        log = self.folder / f"{name}.log"
        return wait_for(start(work, log), log)

    def undisturbed(self, name: str = "undisturbed") -> dict[str, str]:
        """The digests of a run without checkpoints."""
        if self.attempt(name, None, None):
            raise AttemptFailure(
                f"the undisturbed run fails: {_end_of(self.folder / f'{name}.log')}"
            )
        digests: dict[str, str] = json.loads((self.folder / f"{name}.digests").read_text())
        return digests

    def kills(self, count: int, chance: random.Random) -> list[Kill]:
        """One in each part of the training, at random places."""
        chosen = []
        for part in range(count):
            first, last = self.total * part // count, self.total * (part + 1) // count
            delay_s = chance.choice([0.0, chance.uniform(0, LONGEST_DELAY_S)])
            chosen.append(
                Kill(
                    chance.randrange(max(first, 4), max(last, 5)),
                    chance.randrange(MOST_PLACES),
                    delay_s,
                )
            )
        return chosen

    def run(self, kills: int = KILLS, *, repeat: bool = True) -> Outcome:
        """Kill it so often, then let it finish.

        ``repeat``: prove first that the undisturbed run can be repeated.
        """
        outcome = Outcome(self.shape.name, self.mode)
        try:
            self._run(
                outcome, kills, repeat, random.Random(f"{self.shape.name} {self.mode} {SALT}")
            )
        except AttemptFailure as problem:
            outcome.error = str(problem)
        return outcome

    def _run(self, outcome: Outcome, kills: int, repeat: bool, chance: random.Random) -> None:
        expected = self.undisturbed()
        whole = records(self.folder / "undisturbed.record")
        if repeat and (
            self.undisturbed("repeated") != expected
            or records(self.folder / "repeated.record") != whole
        ):
            raise AttemptFailure("the undisturbed run cannot be repeated")
        digests: dict[str, str] = {}
        wrong: set[int] = set()
        for number, kill in enumerate([*self.kills(kills, chance), None]):
            name = f"attempt-{number}"
            status = self.attempt(name, self.folder / "checkpoints", kill)
            ended = os.WIFEXITED(status) and not os.WEXITSTATUS(status)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            version = self.folder / f"{name}.start"
            if version.exists():
                outcome.starts.append(int(version.read_text()))
            if not (ended or (killed and kill is not None)):
                raise AttemptFailure(
                    f"attempt {number} ({kill}) fails: {_end_of(self.folder / f'{name}.log')}"
                )
            text = (self.folder / f"{name}.warnings").read_text()
            lines = [
                line for line in text.splitlines() if not any(text in line for text in EXPECTED)
            ]
            outcome.warnings += [line for line in lines if line not in outcome.warnings]
            wrong.update(contradictions(whole, records(self.folder / f"{name}.record")))
            if ended:
                digests = json.loads((self.folder / f"{name}.digests").read_text())
                break
        outcome.different = [name for name, value in expected.items() if digests.get(name) != value]
        if wrong:
            outcome.different.append(f"what was recorded in steps {sorted(wrong)[:5]}")


def warm_up() -> None:
    """Load what attempts need, so that forked children have it."""
    import torch._dynamo  # noqa: F401
    import torch.optim.swa_utils  # noqa: F401

    from deepvm.checkpoint import Checkpointer

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpointer(model=model, optimizer=optimizer, tiers=Path(folder)) as saver,
    ):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        saver.save(block=True)


def main(mode: Mode, names: list[str]) -> int:
    """Print what each campaign shows; the exit status is 1 if any is not as expected."""
    from support.checkpoint.loops.all_shapes import SHAPES, verdict

    torch.set_num_threads(1)
    warm_up()
    bad = 0
    place = Path(tempfile.mkdtemp(prefix="loops-"))
    for name in names or SHAPES:
        start_s = time.monotonic()
        folder = place / name
        folder.mkdir()
        outcome = Campaign(SHAPES[name], mode, folder).run()
        problem = verdict(SHAPES[name], outcome)
        bad += bool(problem)
        mark = "SHORT" if problem else "ok   "
        sys.stdout.write(f"{mark} {outcome} ({time.monotonic() - start_s:.1f} s) {problem}\n")
        sys.stdout.flush()
        if not problem:
            shutil.rmtree(folder)
    sys.stdout.write(f"{bad} of {len(names or SHAPES)} are not as expected; {place}\n")
    return int(bad > 0)


if __name__ == "__main__":
    chosen = sys.argv[1]
    assert chosen in ("steps", "hooks")
    sys.exit(main(chosen, sys.argv[2:]))  # type: ignore[arg-type]
