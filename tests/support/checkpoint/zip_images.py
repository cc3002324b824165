"""Shared by the tests of the file format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from deepvm.checkpoint.format.checksums import finish  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.format.tensor_bytes import as_bytes  # noqa: E402
from deepvm.checkpoint.format.torch_zip import plan_image  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402


def write(tree: Any, path: Path, template: Any = None) -> None:
    """The file of a state, laid out for another one of equal structure if there is one."""
    parts = flatten(tree)
    image = plan_image(tree if template is None else template)
    slot = Slot(image)
    slot.image.write_numbers(slot.view, parts.numbers)
    slot.copy([as_bytes(s) for s in parts.storages], range(len(slot.pieces)))
    finish(slot.view, image.layout())
    path.write_bytes(slot.view)
