"""Checkpoints that survive the loss of a spot VM: a snapshot in the background, memory nodes, files that torch reads.

Needs torch and the standard library alone, so that a training job can import it with nothing else installed. The method
is that of ACUTE (remote memory, Check-Mem, Check-Trans, Check-Pack) and LightCheck (asynchronous copies, two slots).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Checkpointer"]

if TYPE_CHECKING:
    from deepvm.checkpoint.checkpointer import Checkpointer


def __getattr__(name: str) -> Any:
    """Load torch with the first use of a public name: the memory node does without."""
    if name == "Checkpointer":
        from deepvm.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
