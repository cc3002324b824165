"""Random states of a process, in a few kilobytes: read before each batch, in workers too, so they have to be cheap."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

_WORDS = 625  # of Python's Mersenne Twister, its position included
_PYTHON = struct.Struct(f"<qd{_WORDS}I")
_NUMPY = struct.Struct("<624Iqqd")
_DEEPEST = 6


def packed() -> bytes:
    """The states of Python's, torch's (CPU) and, if it is loaded, NumPy's global generator."""
    version, words, gauss = random.getstate()
    own = _PYTHON.pack(version, float("nan") if gauss is None else gauss, *words)
    state = torch.get_rng_state()
    size = state.numel()
    drawn = ctypes.string_at(state.data_ptr(), size)
    numpy = sys.modules.get("numpy")
    more = b""
    if numpy is not None:
        _, keys, position, has_gauss, cached = numpy.random.get_state()
        more = _NUMPY.pack(*keys.tolist(), position, has_gauss, cached)
    return own + struct.pack("<q", size) + drawn + more


def restore(data: bytes) -> None:
    """Set the generators to what :func:`packed` has returned."""
    version, gauss, *words = _PYTHON.unpack_from(data)
    (size,) = struct.unpack_from("<q", data, _PYTHON.size)
    at = _PYTHON.size + 8
    random.setstate((version, tuple(words), None if gauss != gauss else gauss))
    torch.set_rng_state(torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8))
    numpy, more = sys.modules.get("numpy"), data[at + size :]
    if numpy is not None and more:
        *keys, position, has_gauss, cached = _NUMPY.unpack(more)
        numpy.random.set_state(("MT19937", numpy.array(keys, dtype="uint32"), position, has_gauss, cached))


class Draws(NamedTuple):
    """Random states at a moment: the global ones, and those of the loader's own generators."""

    shared: bytes
    own: tuple[bytes, ...]

    @classmethod
    def now(cls, generators: Sequence[torch.Generator]) -> Draws:
        """As they are."""
        return cls(packed(), tuple(bytes_of(g.get_state()) for g in generators))

    def put_back(self, generators: Sequence[torch.Generator]) -> None:
        """Set them; a loader with other generators keeps its own."""
        restore(self.shared)
        if len(generators) == len(self.own):
            for generator, state in zip(generators, self.own, strict=True):
                generator.set_state(as_tensor(state))


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The generators that the loader and its samplers, in whatever they are wrapped, draw from."""
    found: list[torch.Generator] = []

    def look(at: Any, depth: int) -> Iterator[torch.Generator]:
        generator = getattr(at, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
        for name in ("batch_sampler", "sampler"):
            inner = getattr(at, name, None)
            if inner is not None and depth:
                yield from look(inner, depth - 1)

    for generator in look(loader, _DEEPEST):
        if not any(generator is known for known in found):
            found.append(generator)
    return found


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The memory of a contiguous tensor on the CPU; NumPy is not needed."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def as_tensor(data: bytes) -> torch.Tensor:
    """Bytes as a tensor."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
