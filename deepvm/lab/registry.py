"""Faults and strategies by their names: a new one is a class in their package and a line here."""

import pkgutil
from dataclasses import asdict
from typing import cast

from deepvm.core.json_types import JsonDict
from deepvm.lab.faults.fault import Fault, FaultInjection
from deepvm.lab.strategies.strategy import Strategy

# Name -> ``module:class``, imported when first used
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
    "loss": "deepvm.lab.faults.process_faults:LostMachine",
    "notice": "deepvm.lab.faults.process_faults:Notice",
    "rebalance": "deepvm.lab.faults.process_faults:Rebalance",
    "controller": "deepvm.lab.faults.process_faults:LostController",
}
STRATEGIES = {
    "blocking": "deepvm.lab.strategies.blocking:BlockingStrategy",
    "overlapped": "deepvm.lab.strategies.overlapped:OverlappedStrategy",
    "deepvm": "deepvm.lab.strategies.checkpointer:Deepvm",
    "deepvm-tcp": "deepvm.lab.strategies.checkpointer:DeepvmTcp",
    "dcp": "deepvm.lab.strategies.dcp:Dcp",
    "dcp-async": "deepvm.lab.strategies.dcp:DcpAsync",
    "torch-save": "deepvm.lab.strategies.plain_save:PlainSave",
}
SHORT = {"blk": "blocking", "ovl": "overlapped"}  # ECRL's names


def find_fault(name: str) -> Fault:
    """A fault by its name."""
    return cast("type[Fault]", pkgutil.resolve_name(FAULTS[name]))()


def strike_document(strike: FaultInjection) -> JsonDict:
    """For ``config.json``."""
    return {**asdict(strike), "key": strike.key, "ends": find_fault(strike.fault).ends}


def obeys_orchestrator(name: str | None) -> bool:
    """Whether the agent of ``deepvm run`` can ask a strategy, if there is one, for a checkpoint."""
    return name is not None and find_strategy(name).obeys_orchestrator


def find_strategy(name: str) -> type[Strategy]:
    """The class of a strategy."""
    return cast("type[Strategy]", pkgutil.resolve_name(STRATEGIES[name]))
