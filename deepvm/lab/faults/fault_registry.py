"""The faults by the names of matrix files: a new one is a class here and a line below."""

from __future__ import annotations

import pkgutil
from typing import Any, cast

from deepvm.lab.faults.fault import Fault, FaultInjection

FAULTS = {
    "exit": "deepvm.lab.faults.rank_faults:Exit",
    "kill": "deepvm.lab.faults.process_faults:Kill",
    "stop": "deepvm.lab.faults.process_faults:Stop",
    "segfault": "deepvm.lab.faults.rank_faults:Segfault",
    "held-gil": "deepvm.lab.faults.rank_faults:HeldGil",
    "loader": "deepvm.lab.faults.rank_faults:LoaderError",
    "hang": "deepvm.lab.faults.rank_faults:HungCollective",
    "torn": "deepvm.lab.faults.damaged_files:Truncation",
    "flip": "deepvm.lab.faults.damaged_files:BitFlip",
    "eio": "deepvm.lab.faults.disk:FailingDisk",
    "enospc": "deepvm.lab.faults.disk:FullDisk",
    "slow": "deepvm.lab.faults.disk:SlowDisk",
    "node": "deepvm.lab.faults.process_faults:LostNode",
    "loss": "deepvm.lab.faults.machine_faults:LostMachine",
    "notice": "deepvm.lab.faults.machine_faults:Notice",
    "rebalance": "deepvm.lab.faults.machine_faults:Rebalance",
    "controller": "deepvm.lab.faults.machine_faults:LostController",
}
"""Name -> ``module:class``, imported when first used."""


def find_fault(name: str) -> Fault:
    """A fault."""
    return cast("type[Fault]", pkgutil.resolve_name(FAULTS[name]))()


def strike_document(strike: FaultInjection) -> dict[str, Any]:
    """For ``config.json``."""
    return strike.document(ends=find_fault(strike.fault).ends)
