"""The bytes of tensors without NumPy; samples show changes that version counters miss."""

import ctypes
from collections.abc import Sequence

import torch

# Smaller storages are compared whole; of larger ones about so many bytes, spread evenly
_WHOLE_BYTES = 2**14
_SAMPLE_BYTES = 2**8


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The memory of a contiguous tensor on the CPU."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def as_tensor(data: bytes) -> torch.Tensor:
    """Bytes as a tensor."""
    if data:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return torch.empty(0, dtype=torch.uint8)


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor | None:
    """A storage as a tensor of bytes that shares its memory; None when it is empty."""
    if not storage.nbytes():
        return None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


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
        new = torch.split(now, lengths)
        old = torch.split(self._taken, lengths)
        parts = zip(self._storages, new, old, strict=True)
        return {storage._cdata for storage, a, b in parts if not torch.equal(a, b)}

    def _now(self) -> torch.Tensor:
        if self._views:
            return torch.cat(self._views)
        return torch.empty(0, dtype=torch.uint8)
