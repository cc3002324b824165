"""The registry of architectures: add a file beside this one and a line here."""

from __future__ import annotations

from deepvm.planner.architectures.base import Architecture
from deepvm.planner.architectures.single_anchor import SingleAnchor
from deepvm.planner.architectures.tiering import Tiering

REGISTRY: dict[str, Architecture] = {a.name: a for a in (SingleAnchor(), Tiering())}

__all__ = ["REGISTRY", "Architecture"]
