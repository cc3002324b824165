"""Streams (``IterableDataset``): do they restore a position, do they repeat their batches?"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import DataLoader, IterableDataset

from deepvm.checkpoint.format.tensor_bytes import bytes_of

log = logging.getLogger("deepvm.checkpoint")

_EXACT = {
    f"{stage}ExamplesIterable"
    for stage in (
        "",
        "Arrow",
        "RebatchedArrow",
        "Step",
        "Mapped",
        "Filtered",
        "Skip",
        "Take",
        "Repeat",
        "Formatted",
    )
} | {"SelectColumnsIterable"}
"""Stages of ``datasets`` whose state is exact, as tests of each show."""
_EXACT_WITHOUT_WORKERS = {
    f"{kind}MultiSourcesExamplesIterable"
    for kind in ("Cycling", "RandomlyCycling", "VerticallyConcatenated", "HorizontallyConcatenated")
}
_REASONS = {"BufferShuffledExamplesIterable": "the rows in its shuffle buffer"}
_COMPARED_VALUES = 4096
_COMPARED_ITEMS = 64


def is_hugging_face(dataset: Any) -> bool:
    """Whether this is a stream of Hugging Face ``datasets``, or a stage of one."""
    return (
        type(dataset).__module__.partition(".")[0] == "datasets"
        and "Iterable" in type(dataset).__name__
    )


def missing_from_state(loader: DataLoader[Any]) -> str:
    """What the dataset's state lacks, so that it must be reread; empty if nothing is known."""
    stages = [*_stages(loader.dataset)]
    if not stages:
        return ""
    if not is_hugging_face(loader.dataset):
        return "which row of the stream of datasets in it comes next"
    if loader.num_workers and loader.persistent_workers:
        return "where persistent workers start the next epoch"
    if loader.num_workers:
        exact = _EXACT
    else:
        exact = _EXACT | _EXACT_WITHOUT_WORKERS
    names = {type(stage).__name__ for stage in stages} - exact - {"IterableDataset"}
    reasons = [reason for name, reason in _REASONS.items() if name in names]
    return (reasons or [f"the rows in {name}" for name in sorted(names)] or [""])[0]


def warn_of_incomplete(extra: Mapping[str, Any]) -> None:
    """Warn of stateful loaders without a :class:`ResumableLoader` whose own state loses rows."""
    for name, loader in extra.items():
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
            missing = missing_from_state(loader)
            if missing:
                log.warning(
                    "extra[%r]: the state of the %s does not have %s, so a resume loses or repeats"
                    " rows; put ResumableLoader(loader) into extra, and iterate over that",
                    name,
                    type(loader).__name__,
                    missing,
                )


def _stages(top: Any) -> Iterator[Any]:
    """The streams of ``datasets`` that an object consists of, itself included."""
    waiting = [top]
    known = {id(top)}
    while waiting:
        stage = waiting.pop()
        if is_hugging_face(stage):
            yield stage
        parts = [*vars(stage).values()]
        for value in [*parts]:
            if isinstance(value, dict):
                parts += value.values()
            elif isinstance(value, (list, tuple)):
                parts += value
        for part in parts:
            if is_hugging_face(part) and id(part) not in known:
                known.add(id(part))
                waiting.append(part)


def digest(batch: Any) -> int:
    """A checksum of a batch in microseconds: samples of each tensor, shapes, texts, numbers."""
    crc = 0
    for part in _parts(batch):
        crc = crc32(part, crc)
    return crc


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        if value.layout is torch.strided and value.device.type == "cpu":
            # Some rows and some columns: that costs the same for any size and any order in memory.
            side = int(_COMPARED_VALUES ** (1 / max(value.dim(), 1)))
            yield bytes_of(value.detach()[(slice(side),) * value.dim()].contiguous())
    elif isinstance(value, Mapping):
        yield from _parts([*islice(value.items(), _COMPARED_ITEMS)])
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)}".encode()
        for item in value[:_COMPARED_ITEMS]:
            yield from _parts(item)
    elif hasattr(value, "__array_interface__"):
        yield from _parts([str(value.dtype), *value.shape, value.flat[:_COMPARED_ITEMS].tolist()])
    elif isinstance(value, (str, bytes, int, float, complex, type(None))):
        yield repr(value[:_COMPARED_VALUES] if isinstance(value, (str, bytes)) else value).encode()
    else:
        yield type(value).__name__.encode()
