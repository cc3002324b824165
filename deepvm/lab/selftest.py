"""Mistakes on purpose: each must fail its gate, and no other; else the gates prove nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.io.user_dirs import read_data
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
from deepvm.records import dataclass, field

STEPS = 60
EVERY = 20


@dataclass(frozen=True)
class Control:
    """A mistake."""

    what: str
    gate: str  # the one that must fail
    strategy: str = "blocking"
    world: int = 2
    strikes: Sequence[FaultInjection] = ()
    dropout: float = 0.1
    everywhere: bool = False  # in the failure-free run, too, so that parameters do not differ
    steps: int = STEPS  # one less where the last step must have no checkpoint
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


_SPOIL = {"early-end": _ask_for_more, "noised-loss": _noise, "lost-record": _lose}


def _control(name: str, row: JsonDict) -> Control:
    strike = FaultInjection(**row.pop("strike", {"fault": "exit", "step": 40}))
    return Control(**row, strikes=[strike], spoil=_SPOIL.get(name, lambda folder: None))


CONTROLS = {name: _control(name, row) for name, row in read_data("lab/controls.json").items()}


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
