"""The faults by the names of matrix files: a new one is a file next to this one and a line here."""

from __future__ import annotations

import pkgutil
from dataclasses import asdict
from typing import Any, cast

from deepvm.lab.faults.fault import Fault, Strike

FAULTS = {
    "exit": "deepvm.lab.faults.exit:Exit",
    "kill": "deepvm.lab.faults.kill:Kill",
    "stop": "deepvm.lab.faults.stop:Stop",
    "segfault": "deepvm.lab.faults.segfault:Segfault",
    "held-gil": "deepvm.lab.faults.held_gil:HeldGil",
    "loader": "deepvm.lab.faults.loader_error:LoaderError",
    "hang": "deepvm.lab.faults.hung_collective:HungCollective",
    "torn": "deepvm.lab.faults.damaged_files:Truncation",
    "flip": "deepvm.lab.faults.damaged_files:BitFlip",
    "eio": "deepvm.lab.faults.disk_faults:FailingDisk",
    "enospc": "deepvm.lab.faults.disk_faults:FullDisk",
    "slow": "deepvm.lab.faults.disk_faults:SlowDisk",
    "node": "deepvm.lab.faults.lost_node:LostNode",
    "loss": "deepvm.lab.faults.machine_faults:LostMachine",
    "notice": "deepvm.lab.faults.machine_faults:Notice",
    "rebalance": "deepvm.lab.faults.machine_faults:Rebalance",
    "controller": "deepvm.lab.faults.machine_faults:LostController",
}
"""Name -> ``module:class``, imported when first used."""


def find_fault(name: str) -> Fault:
    """A fault."""
    return cast("type[Fault]", pkgutil.resolve_name(FAULTS[name]))()


def strike_document(strike: Strike) -> dict[str, Any]:
    """For ``config.json``."""
    about = {"target": strike.target.value, "key": strike.key}
    return {**asdict(strike), **about, "ends": find_fault(strike.fault).ends}
