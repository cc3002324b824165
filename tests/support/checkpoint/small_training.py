"""Shared by the tests of snapshot strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from deepvm.checkpoint import Checkpointer  # noqa: E402
from support.checkpoint.trainings import Fill, model_of  # noqa: E402


def small(folder: Path, **options: Any) -> tuple[Fill, Checkpointer]:
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())
    return optimizer, Checkpointer(
        model=model, optimizer=optimizer, tiers=[folder.as_uri()], **options
    )
