"""Where a layout is not understood, or could not be tested: ``torch.save`` into memory, anew for each version.

Slower, and training stands still meanwhile; but the file is whole, verified and restored like any other.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any

import torch

from deepvm.checkpoint.format.flatten import Parts
from deepvm.checkpoint.format.layout import Segment
from deepvm.checkpoint.format.torch_zip import Image, plan_image
from deepvm.errors import CheckpointError

log = logging.getLogger("deepvm.checkpoint")
_told: set[str] = set()


class SavedImage(Image):
    """The file of one version, complete: nothing is left to be copied, patched or filled in."""

    def write_numbers(self, image: memoryview, numbers: Sequence[int | float]) -> None:
        """They are in it."""


def lay_out(tree: Any, parts: Parts, world: int) -> Image:
    """:func:`plan_image`, or the saved file where that is not possible; the log says so once.

    Args:
        tree: the state.
        parts: the same taken apart.
        world: ranks that share the file; the files that several of them save are not the same.

    Raises:
        CheckpointError: it is not possible, and there are several ranks.
    """
    try:
        return plan_image(tree, parts)
    except CheckpointError as error:
        if world > 1:
            raise CheckpointError(f"{error}; several ranks need a release of torch that is known here") from error
        if str(error) not in _told:
            _told.add(str(error))
            log.warning("%s; each version is saved by torch.save while training stands still", error)
    stream = io.BytesIO()
    torch.save(tree, stream)
    data = stream.getvalue()
    return SavedImage(
        size=len(data),
        pieces=((0, data),),
        storages=(),
        sizes=(),
        numbers=(),
        floats=(),
        pickle=Segment(0, 0),
        fields=(),
        lasting=False,
    )
