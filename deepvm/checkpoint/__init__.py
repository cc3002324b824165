"""Checkpoints that survive the loss of a spot VM: background snapshots, memory nodes, torch files.

Needs torch and the standard library alone, so that a training job can import it with nothing else
installed. The method is that of ACUTE (remote memory, Check-Mem, Check-Trans, Check-Pack) and
LightCheck (asynchronous copies, two slots).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Checkpointer", "ResumableLoader", "TrainingRun", "inspect_latest", "training_run"]

_HOMES = {
    "Checkpointer": "deepvm.checkpoint.checkpointer",
    "ResumableLoader": "deepvm.checkpoint.loading.resumable_loader",
    "inspect_latest": "deepvm.checkpoint.restore",
    "TrainingRun": "deepvm.checkpoint.integrations.session",
    "training_run": "deepvm.checkpoint.integrations.session",
}

if TYPE_CHECKING:
    from deepvm.checkpoint.checkpointer import Checkpointer
    from deepvm.checkpoint.integrations.session import TrainingRun, training_run
    from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
    from deepvm.checkpoint.restore import inspect_latest


def __getattr__(name: str) -> Any:
    """Load torch with the first use of a public name: the memory node does without."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
