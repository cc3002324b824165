"""What a checkpoint file holds: the state of a Checkpointer, or a DCP checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepvm.errors import CheckpointError


def check_contents(tree: Any) -> None:
    """Refuse a loaded file that is no state of a Checkpointer. Raises CheckpointError."""
    keys = tree.keys() if isinstance(tree, Mapping) else set()
    if {"ranks", "metadata"} <= keys:
        raise CheckpointError(
            "it was saved by DeepVMWriter: load it with DeepVMReader; a Checkpointer at the same"
            " place needs another name, in job= or DEEPVM_JOB"
        )
    if not {"version", "model"} <= keys:
        raise CheckpointError("it is no state of a Checkpointer: it lacks a version or a model")
