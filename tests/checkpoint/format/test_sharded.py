"""Parts of tensors: where each byte of a rank's memory is in the whole, and who writes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from deepvm.checkpoint.format import sharded  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.format.layout import Layout, Segment  # noqa: E402
from deepvm.checkpoint.format.sharded import (  # noqa: E402
    Region,
    local,
    part_for,
    parts_of,
    region_of,
    sharded_as,
    storage_of,
    writers,
)
from deepvm.checkpoint.format.torch_zip import Image  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.training.ranks import shards  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402


@pytest.fixture
def rank() -> Iterator[int]:
    """One of four ranks, always the same, as torch remembers what it worked out.

    No data is exchanged.
    """
    torch.distributed.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
    yield 3
    torch.distributed.destroy_process_group()


def put(into: Any, region: Region, part: Any) -> None:
    """Copy a part's memory to where it belongs in the bytes of the whole."""
    memory = part.untyped_storage()
    data = torch.empty(0, dtype=torch.uint8).set_(memory)
    for run in region.runs():
        into[run.place : run.place + run.length] = data[run.start : run.start + run.length]


PLACEMENTS = [
    [Shard(0), Shard(1)],
    [Shard(0), Shard(0)],
    [Shard(1), Replicate()],
    [Replicate(), Replicate()],
    [Shard(2), Shard(1)],
]


def test_the_runs_of_a_part_are_what_torch_gave_this_rank(rank: int) -> None:
    for place in range(4):
        for placements in PLACEMENTS:
            others = [0, 1, 2]
            others.insert(place, rank)
            mesh = DeviceMesh("cpu", torch.tensor(others).reshape(2, 2))
            for shape in ((5, 7, 3), (1, 2, 9), (4, 4, 4), (3, 5, 1)):
                whole = torch.arange(math.prod(shape)).reshape(shape)
                part = distribute_tensor(whole, mesh, placements, src_data_rank=None)
                held, region = local(part), region_of(part)
                assert sum(
                    run.length for run in region.runs()
                ) == held.nbytes and region.run_count == len([*region.runs()])
                blank = torch.full_like(whole, -1)
                put(blank.view(-1).view(torch.uint8), region, held)
                found = blank[blank >= 0]
                assert torch.equal(
                    found, held.flatten().sort().values
                )  # each number is its own position
                assert torch.equal(found, whole[blank >= 0])
                again = part_for(whole, part)
                assert (
                    torch.equal(local(again), held)
                    and storage_of(again)._cdata != storage_of(part)._cdata
                )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parts_that_cover_a_tensor_cover_its_bytes_once(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    cuts = [sorted({0, n, *data.draw(st.sets(st.integers(0, n), max_size=2))}) for n in shape]
    grids: list[tuple[tuple[int, int], ...]] = [()]
    for row in cuts:
        grids = [(*grid, pair) for grid in grids for pair in zip(row, row[1:], strict=False)]
    whole = torch.randn(shape, dtype=torch.float64)
    parts = [Region(shape, tuple(a for a, _ in g), tuple(b - a for a, b in g), 8) for g in grids]
    blank = torch.zeros_like(whole)
    for region, grid in zip(parts, grids, strict=True):
        put(
            blank.view(-1).view(torch.uint8),
            region,
            whole[tuple(slice(*pair) for pair in grid)].clone(),
        )
    assert torch.equal(blank, whole)
    copies = data.draw(st.integers(1, 3))
    held = [parts_of({4: region}) for region in parts for _ in range(copies)]
    owned = writers({4: parts[0]}, [0, 0, 0, 0, 16], held)
    # No gap, no overlap
    Layout(16 + whole.nbytes, shards(16 + whole.nbytes, len(held), [(Segment(0, 16), 0), *owned]))
    rows = [sum(s.length for s, r in owned if r == rank) for rank in range(len(held))]
    # One writer for each part
    assert sorted(n for n in rows if n) == sorted(math.prod(p.sizes) * 8 for p in parts)


def test_parts_that_are_not_all_of_it_are_refused() -> None:
    region = Region((4, 2), (0, 0), (2, 2), 4)
    with pytest.raises(CheckpointError, match="not all of it"):
        writers({0: region}, [0], [parts_of({0: region})] * 2)
    with pytest.raises(CheckpointError, match="others hold whole"):
        writers({0: region}, [0], [parts_of({0: region}), {}])


def test_what_cannot_be_saved_is_refused_by_name(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = init_device_mesh("cpu", (4,))
    wrong = {
        "a sum": DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False),
        "row by row": DTensor.from_local(torch.ones(2, 3).t(), mesh, [Shard(0)], run_check=False),
    }
    for why, tensor in wrong.items():
        with pytest.raises(RequestError, match=why) as error:
            flatten({"model": {"w": tensor}})
        assert "state['model']['w']" in str(error.value)
    part = distribute_tensor(torch.ones(8), mesh, [Shard(0)], src_data_rank=None)
    assert len(flatten([part, part]).storages) == 1  # tied
    with pytest.raises(RequestError, match="memory of its own"):
        flatten([part, local(part)])
    columns = distribute_tensor(torch.ones(9, 8), mesh, [Shard(1)], src_data_rank=None)
    assert flatten([columns]).regions[0].run_count == 9
    for name, most in (("MOST_RUNS", 8), ("MOST_RUNS_OF_ALL", 35)):
        with monkeypatch.context() as patch:
            patch.setattr(sharded, name, most)
            with pytest.raises(RequestError, match="into 9 runs of bytes on this rank, 36 on all"):
                flatten([columns])


def test_a_file_describes_whole_tensors(rank: int) -> None:
    part = distribute_tensor(
        torch.ones(10, 3), init_device_mesh("cpu", (4,)), [Shard(0)], src_data_rank=None
    )
    sharded, plain = flatten({"w": part}), flatten({"w": torch.ones(10, 3)})
    assert sharded.structure == plain.structure and sharded.sizes == plain.sizes == [120]
    assert sharded.regions and not plain.regions and sharded.storages[0].nbytes() < 120


def test_a_state_is_sharded_like_the_present_one(rank: int) -> None:
    mesh = init_device_mesh("cpu", (4,))
    present = {
        "a": distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)], src_data_rank=None),
        "b": torch.zeros(2),
    }
    saved = {"a": torch.arange(16.0).reshape(8, 2), "b": torch.ones(2), "c": [torch.ones(1), 5]}
    found = sharded_as(saved, {**present, "c": [None, None]})
    assert torch.equal(local(found["a"]), saved["a"][2 * rank : 2 * rank + 2])
    assert found["b"] is saved["b"] and found["c"][1] == 5
    # Load_state_dict is to say that the sizes differ
    other = sharded_as({"a": torch.ones(3)}, present)
    assert other["a"].shape == (3,)


def test_address_space_for_more_than_the_memory_there_is() -> None:
    size = 2**42
    region = Region((size,), (2**41,), (2**20,), 1)
    image = Image(size, (), (0,), (size,), (), (), Segment(0, 0), (), regions={0: region})
    own = Segment(2**41, 2**20)
    end = own.offset + own.length
    slot = Slot(
        image, Layout(size, ((Segment(0, own.offset), Segment(end, size - end)), (own,))), 1
    )
    slot.copy([torch.full((2**20,), 7, dtype=torch.uint8)], range(len(slot.pieces)))
    assert bytes(slot.view[own.offset - 1 : own.offset + 1]) == b"\0\7" and slot.view[end - 1] == 7
    slot.release()
