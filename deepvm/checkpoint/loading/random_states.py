"""Random states of a process in a few kilobytes: cheap enough to read before each batch."""

import random
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from deepvm.checkpoint.format.tensor_bytes import as_tensor, bytes_of

_PYTHON = struct.Struct("<qdqq")  # version, gauss, words, bytes of torch's state
_NUMPY = struct.Struct("<qqd")
_WORD = 4
_DEEPEST = 6


def packed() -> bytes:
    """The states of Python's, torch's (CPU) and, if it is loaded, NumPy's global generator."""
    version, words, gauss = random.getstate()
    state = torch.get_rng_state()
    head = _PYTHON.pack(
        version, float("nan") if gauss is None else gauss, len(words), state.numel()
    )
    parts = [head, array("I", words).tobytes(), bytes_of(state)]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, position, has_gauss, cached = numpy.random.get_state()
        parts += [
            _NUMPY.pack(position, has_gauss, cached),
            keys.astype("<u4", copy=False).tobytes(),
        ]
    return b"".join(parts)


def restore(data: bytes) -> None:
    """Set the generators to what :func:`packed` has returned."""
    version, gauss, count, size = _PYTHON.unpack_from(data)
    at = _PYTHON.size + _WORD * count
    words = array("I", data[_PYTHON.size : at])
    random.setstate((version, tuple(words), None if gauss != gauss else gauss))
    torch.set_rng_state(as_tensor(data[at : at + size]))
    numpy = sys.modules.get("numpy")
    more = data[at + size :]
    if numpy is not None and more:
        position, has_gauss, cached = _NUMPY.unpack_from(more)
        keys = numpy.frombuffer(more, dtype="<u4", offset=_NUMPY.size)
        numpy.random.set_state(("MT19937", keys, position, has_gauss, cached))


class GeneratorStates(NamedTuple):
    """Random states at a moment: the global ones, and those of the loader's own generators."""

    shared: bytes
    own: tuple[bytes, ...]

    @classmethod
    def now(cls, generators: Sequence[torch.Generator]) -> "GeneratorStates":
        return cls(packed(), tuple(bytes_of(g.get_state()) for g in generators))

    def put_back(self, generators: Sequence[torch.Generator]) -> None:
        restore(self.shared)
        if len(generators) == len(self.own):
            for generator, state in zip(generators, self.own, strict=True):
                generator.set_state(as_tensor(state))


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The generators that the loader and its samplers, however they are wrapped, draw from."""
    found: dict[int, torch.Generator] = {}
    for _, sampler in _samplers("", loader):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())


def counters_of(loader: DataLoader[Any]) -> dict[str, int]:
    """The integer attributes of the samplers, such as an epoch counter, by path."""
    return {
        f"{path}.{name}": value
        for path, sampler in _samplers("", loader)
        if sampler is not loader
        for name, value in getattr(sampler, "__dict__", {}).items()
        if type(value) is int
    }


def restore_counters(loader: DataLoader[Any], counters: Mapping[str, int]) -> None:
    """Set the counters that the samplers still have."""
    samplers = dict(_samplers("", loader))
    for key in counters_of(loader).keys() & counters.keys():
        path, _, name = key.rpartition(".")
        setattr(samplers[path], name, counters[key])


def own_generators(dataset: Any) -> list[str]:
    """Attributes of a dataset that are random generators: no checkpoint includes them."""
    holders = {"": dataset, **{f"{name}.": part for name, part in _attributes(dataset)}}
    return [
        f"{prefix}{name}"
        for prefix, holder in holders.items()
        for name, value in _attributes(holder)
        if isinstance(value, (random.Random, torch.Generator))
        or type(value).__module__.startswith("numpy.random")
    ]


def _attributes(holder: Any) -> list[tuple[str, Any]]:
    if isinstance(holder, ModuleType):
        return []
    return [*getattr(holder, "__dict__", {}).items()]


def _samplers(path: str, holder: Any, depth: int = _DEEPEST) -> Iterator[tuple[str, Any]]:
    yield path, holder
    for name in ("batch_sampler", "sampler"):
        inner = getattr(holder, name, None)
        if inner is not None and depth:
            yield from _samplers(f"{path}.{name}", inner, depth - 1)
