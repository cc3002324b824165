"""Sharded tensors (FSDP2, tensor parallel): a rank writes its part; a file has whole tensors."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from deepvm.checkpoint.format.layout import Segment
from deepvm.errors import CheckpointError, RequestError

# Limits: runs on one rank (each one copy), and on all ranks (each one layout entry)
MOST_RUNS, MOST_RUNS_OF_ALL = 100_000, 900_000


class Run(NamedTuple):
    """Contiguous bytes, at ``place`` in the whole tensor and at ``start`` in the rank's part."""

    place: int
    start: int
    length: int


class Region(NamedTuple):
    """A part of a whole tensor of a ``shape``, which is laid out row by row."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]  # of the part, in elements, as ``sizes``
    sizes: tuple[int, ...]
    itemsize: int  # bytes of an element
    start: int = 0  # in its own memory, in bytes
    ranks: int = 1  # that have parts

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return _row_major(self.shape)

    @property
    def run_count(self) -> int:
        if math.prod(self.sizes):
            return math.prod(self.sizes[: self._split])
        return 0

    @property
    def _split(self) -> int:
        """The first dimension of a run: the later ones are whole."""
        split = len(self.shape)
        while split and self.sizes[split - 1] == self.shape[split - 1]:
            split -= 1
        return max(split - 1, 0)

    def runs(self) -> Iterator[Run]:
        if not self.run_count:
            return
        split = self._split
        strides = self.strides
        length = math.prod(self.sizes[split:]) * self.itemsize
        first = sum(offset * stride for offset, stride in zip(self.offsets, strides, strict=True))
        for number, row in enumerate(product(*map(range, self.sizes[:split]))):
            at = first + sum(index * stride for index, stride in zip(row, strides, strict=False))
            yield Run(at * self.itemsize, self.start + number * length, length)


# Types that are surely not sharded: most tensors, recognized at a glance
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor, in whose memory there may be a part only."""
    return type(tensor).__name__ == "DTensor"  # its module is slow to import


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the memory of this rank."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()  # type: ignore[attr-defined,no-any-return]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of this rank behind a tensor."""
    # Training stalls for thousands of these calls: one look recognizes most tensors.
    if type(tensor) in _PLAIN:
        return tensor.untyped_storage()
    return local(tensor).untyped_storage()


def whole_strides(tensor: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """A tensor's strides and offset in the file, in elements; sharded ones are row-major."""
    if is_sharded(tensor):
        return (_row_major(tensor.shape), 0)
    return (tensor.stride(), int(tensor.storage_offset()))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def region_of(tensor: torch.Tensor) -> Region:
    """The part of a DTensor that this rank has. Raises ValueError, with the reason, if none."""
    found: Any = tensor
    if any(placement.is_partial() for placement in found.placements):
        raise ValueError("a sum with a summand on each rank; .redistribute(...) adds them up")
    held = local(tensor)
    if not held.is_contiguous() or held.is_conj() or held.is_neg():
        raise ValueError(
            "a part that does not lie row by row in memory; .contiguous() makes one that does"
        )
    shape = tuple(tensor.shape)
    offsets = sizes = (0,) * len(shape)
    if held.numel():
        chunk, *more = found.__create_chunk_list__()  # as torch's own checkpoints ask
        if more:
            raise ValueError(
                f"a part in {1 + len(more)} pieces; place it so that each rank has one"
            )
        offsets = tuple(chunk.offsets)
        sizes = tuple(chunk.sizes)
    if sizes != tuple(held.shape) and held.numel():
        shown = f"a part of shape {tuple(held.shape)}, which torch describes as {sizes}"
        raise ValueError(f"{shown}: choose sizes that each dimension of the device mesh divides")
    start = int(held.storage_offset()) * held.element_size()
    ranks = int(found.device_mesh.size())
    return Region(shape, offsets, sizes, held.element_size(), start, ranks)


def check_runs(regions: Iterable[Region]) -> None:
    """Raise RequestError if a state is sharded too finely."""
    counts = [(region.run_count, region.ranks) for region in regions]
    own = sum(count for count, _ in counts)
    every = sum(count * ranks for count, ranks in counts)
    if own > MOST_RUNS or every > MOST_RUNS_OF_ALL:
        allowed = f"at most {MOST_RUNS} and {MOST_RUNS_OF_ALL}: shard dimension 0, or save with"
        value = f"sharded into {own} runs of bytes on this rank, {every} on all"
        raise RequestError("model", value, f"{allowed} DeepVMWriter")


Part = tuple[tuple[int, ...], tuple[int, ...]]  # Offsets and sizes of a rank's part of a tensor


def parts_of(regions: Mapping[int, Region]) -> dict[int, Part]:
    """What other ranks must know of this rank's parts, by the number of the storage."""
    return {number: (region.offsets, region.sizes) for number, region in regions.items()}


def holders_of(number: int, held: Sequence[Mapping[int, Part]]) -> dict[Part, list[int]]:
    """The ranks that hold each part of a storage, without empty parts."""
    found: dict[Part, list[int]] = {}
    for rank, row in enumerate(held):
        if math.prod(row[number][1]):
            found.setdefault(row[number], []).append(rank)
    return found


def writers(
    regions: Mapping[int, Region], storages: Sequence[int], held: Sequence[Mapping[int, Part]]
) -> list[tuple[Segment, int]]:
    """Which rank writes which bytes: of several with the same part, who has least to write.

    ``storages``: offsets in the file. ``held``: :func:`parts_of` on each rank. Raises
    CheckpointError: parts are missing.
    """
    found: list[tuple[Segment, int]] = []
    load = [0] * len(held)
    if any(row.keys() != regions.keys() for row in held):
        raise CheckpointError(
            "some ranks hold parts of tensors that others hold whole; all must be sharded alike"
        )
    for number, region in regions.items():
        holders = holders_of(number, held)
        if sum(math.prod(sizes) for _, sizes in holders) != math.prod(region.shape):
            raise CheckpointError(
                f"the ranks' parts of a tensor of shape {region.shape} are not all of it, each once"
            )
        for (offsets, sizes), ranks in holders.items():
            rank = min(ranks, key=load.__getitem__)
            load[rank] += math.prod(sizes) * region.itemsize
            for run in region._replace(offsets=offsets, sizes=sizes).runs():
                found.append((Segment(storages[number] + run.place, run.length), rank))
    return found


def sharded_as(saved: Any, present: Any) -> Any:
    """A saved state with this rank's parts of what is sharded in ``present``; reads only these."""
    if is_sharded(present) and isinstance(saved, torch.Tensor) and saved.shape == present.shape:
        return part_for(saved, present)
    if type(saved) in (dict, OrderedDict) and isinstance(present, Mapping):
        made: Any = type(saved)()
        for key, value in saved.items():
            made[key] = sharded_as(value, present.get(key))
        if hasattr(saved, "_metadata"):
            made._metadata = saved._metadata
        return made
    both_listed = type(saved) in (list, tuple) and isinstance(present, (list, tuple))
    if both_listed and len(saved) == len(present):
        return type(saved)(
            sharded_as(one, other) for one, other in zip(saved, present, strict=True)
        )
    return saved


def part_for(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The part of a whole tensor that this rank holds of ``like``, in memory of its own."""
    with torch.no_grad():
        made = torch.empty_like(like, dtype=whole.dtype)
        region = region_of(made)
        if region.run_count:
            slices = [
                slice(offset, offset + size)
                for offset, size in zip(region.offsets, region.sizes, strict=True)
            ]
            local(made).copy_(whole[tuple(slices)])
    return made
