"""The bytes of tensors, without NumPy: torch works without it."""

from __future__ import annotations

import ctypes

import torch


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
