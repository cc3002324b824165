"""Mistakes on purpose: each must fail its gate, and no other; else the gates prove nothing.

The trainings are as small as each mistake allows. Failures strike where nothing is done again,
unless the mistake needs it: else a state that is restored wrongly would be seen twice, by its
replays and by its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepvm.lab.audit.gates import verdicts
from deepvm.lab.audit.references import with_references
from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.launchers.launcher_registry import find_launcher
from deepvm.lab.matrix import CALM, NONE, Dataset, MatrixFile, Model, Run, Suite
from deepvm.lab.matrix_runner import config_of
from deepvm.lab.records import (
    CHECKPOINTS,
    CONFIG,
    Records,
    read_document,
    read_lines,
    steps_of,
    write_document,
    write_lines,
)
from deepvm.lab.running.launcher import Launcher
from deepvm.lab.running.plan import Plan

STEPS = 60
EVERY = 20


@dataclass(frozen=True)
class Control:
    """A mistake.

    Attributes:
        what: for people. gate: the one that must fail. everywhere: whether the failure-free run
            makes it, too, so that parameters do not differ. steps: that are trained. spoil: is
            done to the records of the run.
    """

    what: str
    gate: str
    strategy: str = "blocking"
    world: int = 2
    strikes: Sequence[FaultInjection] = field(default_factory=lambda: (FaultInjection("exit", 40),))
    dropout: float = 0.1
    everywhere: bool = False
    steps: int = STEPS
    spoil: Callable[[Path], None] = lambda folder: None


def _noise(folder: Path) -> None:
    """The last bit of a loss, where a step is logged for the second time."""
    rows = list(read_lines(folder / steps_of(0)))
    again = next(row for row in rows if row["attempt"] and row["global_step"] == EVERY * 2)
    again["loss"] = math.nextafter(again["loss"], math.inf)
    again["loss_hex"] = again["loss"].hex()
    write_lines(folder / steps_of(0), rows)


def _ask_for_more(folder: Path) -> None:
    """Five more steps had been asked for, of both runs."""
    for path in folder.parent.glob(f"*/{CONFIG}"):
        config = read_document(path)
        config["steps"] += 5
        write_document(path, config)


def _lose(folder: Path) -> None:
    (folder / CHECKPOINTS).unlink()


CONTROLS: Mapping[str, Control] = {
    "early-end": Control(
        "a training ends early, and says that it is complete", "steps", spoil=_ask_for_more
    ),
    "dropped-id": Control("a sampler leaves out a sample", "samples", everywhere=True),
    "duplicated-id": Control("a sampler gives a sample twice", "samples", everywhere=True),
    "noised-loss": Control(
        "a step that is done again is logged with another loss",
        "replays",
        strikes=(FaultInjection("exit", 42),),
        spoil=_noise,
    ),
    "uncloned": Control(
        # it writes a step late: the last step must have no checkpoint
        "a snapshot shares memory with the optimizer",
        "parameters",
        "overlapped",
        strikes=(FaultInjection("exit", 41),),
        steps=STEPS - 1,
    ),
    "one-rank-random": Control("only rank 0's random states are saved", "parameters"),
    "cold-ddp": Control(
        "gradients of 4 ranks are added in another order", "parameters", world=4, dropout=0.0
    ),
    "vacuous": Control(
        "a kill strikes before training has started",
        "failures",
        strikes=(FaultInjection("kill", 0),),
    ),
    "orphan": Control(
        "a process that is given up continues to write",
        "leftovers",
        world=1,
        strikes=(FaultInjection("kill", 21),),
    ),
    "early-commit": Control(
        "a checkpoint is committed before its data",
        "stories",
        strikes=(FaultInjection("kill", 39, target="write"),),
    ),
    "never-restores": Control(
        "an attempt starts from step 0, though there are checkpoints", "stories"
    ),
    "lost-record": Control("the log of checkpoints is not there", "artefacts", spoil=_lose),
}


@dataclass(frozen=True)
class TestedControl(Control):
    """A control with the reasons of the gates that it has failed."""

    name: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether its gate has failed, and no other."""
        return set(self.failed) == {self.gate}


def run_all(
    folder: Path, tell: Callable[[TestedControl], None] = lambda tested: None
) -> list[TestedControl]:
    """Make each mistake, in a folder that is empty."""
    launcher = find_launcher("forkserver")()
    results = []
    try:
        for name, control in CONTROLS.items():
            runs = folder / name / "runs"
            gates = verdicts(with_references(_run_both(runs, name, control, launcher), runs))
            failed = {gate: reason for gate, reason in gates.items() if reason}
            tested = TestedControl(**vars(control), name=name, failed=failed)
            results.append(tested)
            tell(tested)
    finally:
        launcher.close()
    return results


def _run_both(runs: Path, name: str, control: Control, launcher: Launcher) -> Records:
    """The run without failures, and the disturbed one, whose records these are."""
    for disturbed in (False, True):
        folder = runs / ("disturbed" if disturbed else "calm")
        folder.mkdir(parents=True)
        config = config_of_control(name, control, disturbed=disturbed)
        write_document(folder / CONFIG, config)
        launcher.run(Plan(folder, config))
    control.spoil(folder)
    return Records.read(folder)


def config_of_control(name: str, control: Control, *, disturbed: bool) -> dict[str, Any]:
    """The configuration of a run of a control."""
    variant = control.strategy if disturbed else NONE
    matrix = MatrixFile(
        name="selftest",
        datasets=[Dataset(name="tokens", size=1024)],
        models=[Model(name="gpt-tiny", width=16, dropout=control.dropout)],
        variants=[NONE],
        world=control.world,
        global_batch=32,
        steps=control.steps,
        checkpoint_every=EVERY,
        max_inflight=2,
    )
    suite = Suite(matrix.datasets[0], matrix.models[0], "control" if disturbed else CALM)
    strategy = control.strategy if disturbed else None
    strikes = tuple(control.strikes) if disturbed else ()
    run = Run(suite, variant, strategy, 0, tuple(matrix.worlds), strikes)
    if disturbed or control.everywhere:
        controls = [name]
    else:
        controls = []
    return {**config_of(matrix, run, 1024), "controls": controls}
