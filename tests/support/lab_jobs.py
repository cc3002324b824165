"""Runs of the lab that are jobs of ``deepvm run``, each beside an undisturbed run, which a
forkserver makes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from deepvm.lab.audit.gates import verdicts
from deepvm.lab.launchers.deepvm_run import DeepvmRun
from deepvm.lab.launchers.forkserver import Forkserver
from deepvm.lab.matrix import FORMAT, MatrixFile, Run, runs_of
from deepvm.lab.matrix_runner import config_of
from deepvm.lab.records import CONFIG, Records
from deepvm.lab.running.launcher import Plan

SAMPLES = 4096
"""Of the data set ``tokens``."""


def matrix_of(failures: Mapping[str, Any], variant: str = "deepvm", **more: Any) -> MatrixFile:
    """A matrix of one failure and one variant; small enough for a step of a few milliseconds."""
    document = {
        "name": "orchestrated",
        "datasets": ["tokens"],
        "models": [{"name": "gpt-tiny", "width": 16, "dropout": 0.1}],
        "failures": {"planned": dict(failures)},
        "variants": [variant],
        "world": 2,
        "global_batch": 32,
        "steps": 300,
        "checkpoint_every": 20,
        "launcher": "deepvm-run",
        **more,
    }
    return FORMAT.parse(yaml.safe_dump(document), "matrix.yaml")


@dataclass(frozen=True)
class JobRun:
    """A run that was a job: its folder, and what is wrong at each gate that it does not pass."""

    folder: Path
    failed: Mapping[str, str]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """As its supervisor has recorded them."""
        found: list[dict[str, Any]] = json.loads((self.folder / "supervisor.json").read_bytes())[
            "attempts"
        ]
        return found


def plan_of(matrix: MatrixFile, folder: Path, run: Run) -> Plan:
    """A run's plan, in an empty folder."""
    config = config_of(matrix, run, SAMPLES)
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(config))
    return Plan(folder, config)


def run_job(matrix: MatrixFile, out: Path) -> JobRun:
    """Run the only run of a matrix as a job, and audit it."""
    (run,) = runs_of(matrix)
    if not (out / "calm").exists():
        undisturbed = replace(run, variant="none", strategy=None, strikes=(), disk={})
        forked = matrix.model_copy(update={"launcher": "forkserver"})
        launcher = Forkserver()
        try:
            assert launcher.run(plan_of(forked, out / "calm", undisturbed))
        finally:
            launcher.close()
    plan = plan_of(matrix, out / "planned", run)
    DeepvmRun().run(plan)
    gates = verdicts(Records.read(plan.folder))
    return JobRun(plan.folder, {gate: why for gate, why in gates.items() if why})
