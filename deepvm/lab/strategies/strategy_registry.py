"""The strategies by their names: a new one is a file next to this one and a line here."""

from __future__ import annotations

import pkgutil
from typing import cast

from deepvm.lab.strategies.strategy import Strategy

STRATEGIES = {
    "blocking": "deepvm.lab.strategies.blocking:BlockingStrategy",
    "overlapped": "deepvm.lab.strategies.overlapped:OverlappedStrategy",
    "deepvm": "deepvm.lab.strategies.checkpointer:Deepvm",
    "deepvm-tcp": "deepvm.lab.strategies.checkpointer:DeepvmTcp",
    "dcp": "deepvm.lab.strategies.dcp:Dcp",
    "dcp-async": "deepvm.lab.strategies.dcp:DcpAsync",
    "torch-save": "deepvm.lab.strategies.plain_save:PlainSave",
}
"""Name -> ``module:class``, imported when first used."""
SHORT = {"blk": "blocking", "ovl": "overlapped"}
"""ECRL's names."""


def obeys_orchestrator(name: str | None) -> bool:
    """Whether the agent of ``deepvm run`` can ask a strategy, if there is one, for a version."""
    return name is not None and find_strategy(name).obeys_orchestrator


def find_strategy(name: str) -> type[Strategy]:
    """The class of a strategy."""
    return cast("type[Strategy]", pkgutil.resolve_name(STRATEGIES[name]))
