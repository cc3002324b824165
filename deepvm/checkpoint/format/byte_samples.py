"""Samples of memory that detect changes which version counters miss (``.data``, fused steps)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_WHOLE_BYTES = 2**14
"""Smaller storages are compared whole; of larger ones about so many bytes, spread evenly."""
_SAMPLE_BYTES = 2**8


def sample(source: torch.Tensor) -> torch.Tensor:
    """A view of some bytes of a storage, itself a tensor of bytes."""
    if len(source) <= _WHOLE_BYTES:
        return source
    # An odd distance: of numbers of any width, all bytes are sampled in turn.
    return source[:: len(source) // _SAMPLE_BYTES | 1]


class ByteSamples:
    """Samples of storages in host memory, as they were when this was made."""

    def __init__(
        self, storages: Sequence[torch.UntypedStorage], sources: Sequence[torch.Tensor | None]
    ) -> None:
        """``sources``: storages as byte tensors; those on devices and empty ones are skipped."""
        pairs = [
            (s, b)
            for s, b in zip(storages, sources, strict=True)
            if b is not None and b.device.type == "cpu"
        ]
        self._storages = [storage for storage, _ in pairs]
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._views = [sample(source) for _, source in pairs]
        self._taken = self._now()

    def changed(self) -> set[int]:
        """The storages, by ``_cdata``, whose samples differ now; resized ones are skipped."""
        if not self._views or [storage.nbytes() for storage in self._storages] != self._sizes:
            return set()
        now = self._now()
        if torch.equal(now, self._taken):
            return set()
        lengths = [len(view) for view in self._views]
        parts = zip(
            self._storages,
            torch.split(now, lengths),
            torch.split(self._taken, lengths),
            strict=True,
        )
        return {storage._cdata for storage, new, old in parts if not torch.equal(new, old)}

    def _now(self) -> torch.Tensor:
        if self._views:
            return torch.cat(self._views)
        return torch.empty(0, dtype=torch.uint8)
