"""Whole runs of small real trainings by a supervisor, and what they have left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepvm.io.atomic_write import write_bytes
from deepvm.lab.audit.gates import verdicts
from deepvm.lab.faults.fault import FaultInjection, FaultSchedule
from deepvm.lab.records import CONFIG, Records
from deepvm.lab.registry import strike_document
from deepvm.lab.running.launcher import Launcher, Plan
from support.process_starts import leaves_ring_1


def config(
    strategy: str | None, strikes: Sequence[FaultInjection] = (), **changes: Any
) -> dict[str, Any]:
    """Of a run on one rank, 12 steps with a checkpoint at each fourth."""
    world = changes.get("world", 1)
    made: dict[str, Any] = {
        "schema_version": "deepvm.lab-run/1",
        "matrix": "tests",
        "dataset": {"name": "tokens", "path": None},
        "dataset_size": 128,
        "model": {"name": "gpt-tiny", "width": 16, "norm": "batch", "dropout": 0.1},
        "failure": "f" if strikes or changes.get("disk") else "calm",
        "variant": strategy or "none",
        "strategy": strategy,
        "seed": 0,
        "world": world,
        "worlds": [[0, world]],
        "min_world": None,
        "virtual_shards": 0,
        "global_batch": 16,
        "accumulate": 1,
        "steps": 12,
        "checkpoint_every": 4,
        "max_inflight": 2,
        "keep": 3,
        "launcher": "forkserver",
        "strikes": [strike_document(one) for one in strikes],
        "disk": {},
        "controls": [],
    }
    return {**made, **changes}


@dataclass(frozen=True)
class Ran:
    """A run: whether it has reached its end, what its supervisor wrote, its records."""

    ended: bool
    supervisor: dict[str, Any]
    records: Records

    def wrong(self, *references: Ran) -> dict[str, str]:
        """What is wrong at each gate that is not passed, beside undisturbed runs."""
        compared = replace(self.records)
        vars(compared)["references"] = {one.records.final for one in references}
        return {gate: why for gate, why in verdicts(compared).items() if why}


def ran(
    folder: Path,
    launcher: Launcher,
    strategy: str | None,
    *strikes: FaultInjection,
    disk: dict[str, FaultSchedule] | None = None,
    hang_s: float = 15.0,
    **changes: Any,
) -> Ran:
    """Run it, in a folder that is not there yet."""
    folder.mkdir(parents=True)
    known = {name: when.model_dump() for name, when in (disk or {}).items()}
    made = config(strategy, strikes, disk=known, **changes)
    write_bytes(folder / CONFIG, json.dumps(made).encode())
    leaves_ring_1("ranks of a training")
    ended = launcher.run(Plan(folder, made, hang_s))
    return Ran(ended, json.loads((folder / "supervisor.json").read_text()), Records.read(folder))
