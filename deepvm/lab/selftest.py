"""Mistakes on purpose: each must fail its gate, and no other; else the gates prove nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.lab.audit.gates import verdicts
from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.launchers.launcher_registry import find_launcher
from deepvm.lab.matrix import CALM, NONE, MatrixFile, Run, Suite
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
from deepvm.lab.running.launcher import Launcher, Plan

STEPS = 60
EVERY = 20


@dataclass(frozen=True)
class Control:
    """A mistake."""

    what: str
    gate: str  # the one that must fail
    strategy: str = "blocking"
    world: int = 2
    strikes: Sequence[FaultInjection] = field(default_factory=lambda: (FaultInjection("exit", 40),))
    dropout: float = 0.1
    everywhere: bool = False  # in the failure-free run, too, so that parameters do not differ
    steps: int = STEPS
    spoil: Callable[[Path], None] = lambda folder: None  # done to the records of the run


def _noise(folder: Path) -> None:
    """The last bit of a loss, where a step is logged for the second time."""
    rows = list(read_lines(folder / steps_of(0)))
    again = next(row for row in rows if row["attempt"] and row["global_step"] == EVERY * 2)
    again["loss"] = math.nextafter(again["loss"], math.inf)
    again["loss_hex"] = again["loss"].hex()
    write_lines(folder / steps_of(0), rows)


def _ask_for_more(folder: Path) -> None:
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
    """A control that has been run."""

    name: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)  # gates, with reasons

    @property
    def right(self) -> bool:
        return set(self.failed) == {self.gate}


def run_all(
    folder: Path, tell: Callable[[TestedControl], None] = lambda tested: None
) -> list[TestedControl]:
    """Make each mistake, in a folder that is empty."""
    launcher = find_launcher("forkserver")()
    results = []
    try:
        for name, control in CONTROLS.items():
            gates = verdicts(_run_both(folder / name / "runs", name, control, launcher))
            failed = {gate: reason for gate, reason in gates.items() if reason}
            tested = TestedControl(**vars(control), name=name, failed=failed)
            results.append(tested)
            tell(tested)
    finally:
        launcher.close()
    return results


def _run_both(runs: Path, name: str, control: Control, launcher: Launcher) -> Records:
    for disturbed in (False, True):
        folder = runs / ("disturbed" if disturbed else "calm")
        folder.mkdir(parents=True)
        config = config_of_control(name, control, disturbed=disturbed)
        write_document(folder / CONFIG, config)
        launcher.run(Plan(folder, config))
    control.spoil(folder)
    return Records.read(folder)


def config_of_control(name: str, control: Control, *, disturbed: bool) -> JsonDict:
    """The configuration of a run of a control."""
    variant = control.strategy if disturbed else NONE
    matrix = MatrixFile(
        name="selftest",
        datasets=[{"name": "tokens", "size": 1024}],
        models=[{"name": "gpt-tiny", "width": 16, "dropout": control.dropout}],
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
    config = config_of(matrix, run, 1024)
    if disturbed or control.everywhere:
        config["controls"] = [name]
    return config
