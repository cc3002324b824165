"""Memory that is the image of a file: page-aligned, filled in the background, one slot for each version under way."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from deepvm.checkpoint.format import Image

GROUP_BYTES = 8 * 2**20
"""Bytes that one call copies: few enough that a waiting trainer is let go soon, many enough to hide the call."""


class Slot:
    """Memory for one version."""

    def __init__(self, image: Image) -> None:
        """Take memory and write everything but tensors and numbers into it."""
        self.image = image
        # Whole pages, so that the file can be written past the page cache.
        self._memory = mmap.mmap(-1, -(-image.size // mmap.PAGESIZE) * mmap.PAGESIZE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._memory)[: image.size]
        image.write_pieces(self.view)
        self._targets = [
            torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=offset) if size else None
            for offset, size in zip(image.storages, image.sizes, strict=True)
        ]

    def copy(self, sources: Sequence[torch.Tensor | None], which: Sequence[int]) -> None:
        """Copy storages into their places; releases the interpreter's lock while it copies.

        Args:
            sources: each storage as bytes, None where it has none.
            which: the numbers of those to copy.
        """
        into: list[torch.Tensor] = []
        out: list[torch.Tensor] = []
        size = 0
        for number in which:
            source, target = sources[number], self._targets[number]
            if source is None or target is None:
                continue
            into.append(target)
            out.append(source)
            size += source.numel()
            if size >= GROUP_BYTES:
                torch._foreach_copy_(into, out)
                into, out, size = [], [], 0
        if into:
            torch._foreach_copy_(into, out)


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor | None:
    """A storage as a tensor of bytes that shares its memory; None when it is empty."""
    if not storage.nbytes():
        return None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
