"""DCP's API on our writing: resharding, verified reads, all or nothing, and torch's own reader as
witness.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from deepvm.checkpoint.dcp import (
    _MAGIC,
    METADATA,
    DeepVMReader,
    DeepVMWriter,
    Piece,
    _Unpickler,
    seal,
    unseal,
)
from deepvm.checkpoint.format.checksums import crc32
from deepvm.errors import CheckpointError, DamagedError, RequestError


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A single process without a group is what we mean; DCP warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def state(seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    big = torch.randn(64, 33, generator=made)
    return {
        "big": big,
        "column": big[:, 3],
        "half": torch.randn(7, generator=made).bfloat16(),
        "flags": torch.rand(9, generator=made) > 0.5,
        "complex": torch.randn(3, 2, dtype=torch.complex64, generator=made),
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 5),
        "nested": {"step": 3 + seed, "names": ["a", "b"], "rate": 0.5},
    }


def blank() -> dict[str, Any]:
    found = {k: torch.zeros_like(v) for k, v in state().items() if isinstance(v, torch.Tensor)}
    return {**found, "nested": {"step": 0, "names": ["", ""], "rate": 0.0}}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = all(torch.equal(v, other[k]) for k, v in one.items() if isinstance(v, torch.Tensor))
    return tensors and one["nested"] == other["nested"]


def saved(folder: Path, seed: int = 0) -> Path:
    dcp.save(state(seed), storage_writer=DeepVMWriter(folder))
    return folder


def cause(error: pytest.ExceptionInfo[Any]) -> Exception:
    """What a rank raised, out of what DCP makes of it."""
    if not isinstance(error.value, CheckpointException):
        return error.value
    return next(iter(error.value.failures.values()))[0]


def refused(folder: Path) -> Exception:
    with pytest.raises((CheckpointException, DamagedError)) as error:
        dcp.load(blank(), storage_reader=DeepVMReader(folder))
    return cause(error)


@pytest.mark.parametrize("reader", [DeepVMReader, dcp.FileSystemReader])
def test_what_is_saved_is_loaded_also_by_torch_itself(
    reader: Callable[[Path], Any], tmp_path: Path
) -> None:
    found = blank()
    dcp.load(found, storage_reader=reader(saved(tmp_path / "new" / "folder")))
    assert same(found, state())


def test_every_item_is_a_file_that_torch_loads(tmp_path: Path) -> None:
    metadata, crcs = unseal((saved(tmp_path) / METADATA).read_bytes(), tmp_path)
    place = next(p for i, p in metadata.storage_data.items() if i.fqn == "column")
    data = (tmp_path / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
    assert torch.equal(torch.load(io.BytesIO(data), weights_only=True), state()["column"])
    assert crcs[place.relative_path, place.offset, place.length] == crc32(data)


def test_async_save(tmp_path: Path) -> None:
    own = state()
    writer = DeepVMWriter(tmp_path / "ignored")
    for number in range(2):  # the second uses the writer's memory again
        own["scalar"].fill_(number)
        future: Any = dcp.async_save(
            own, checkpoint_id=tmp_path / str(number), storage_writer=writer
        )
        own["big"].add_(0)
        getattr(future, "upload_completion", future).result(60)
        found = blank()
        dcp.load(found, checkpoint_id=tmp_path / str(number), storage_reader=DeepVMReader(tmp_path))
        assert same(found, own)


def test_a_second_save_takes_the_place_of_the_first_and_tidies_up(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / ".__0_0123456789abcdef.distcp.aaaa.tmp").touch()
    (tmp_path / "mine.tmp").touch()
    saved(tmp_path, 2)
    found = blank()
    dcp.load(found, storage_reader=DeepVMReader(tmp_path))
    assert same(found, state(2))
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("__")) == [
        METADATA,
        "mine.tmp",
    ]
    assert len(list(tmp_path.iterdir())) == 3


def test_every_flipped_bit_that_matters_is_found(tmp_path: Path) -> None:
    data = next(saved(tmp_path).glob("*.distcp"))
    metadata, _ = unseal((tmp_path / METADATA).read_bytes(), tmp_path)
    whole = data.read_bytes()
    for index, piece in metadata.storage_data.items():
        if index.fqn == "empty":  # of which nothing is read
            continue
        for place in {
            piece.offset,
            piece.offset + piece.length // 2,
            piece.offset + piece.length - 1,
        }:
            data.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            assert data.name in str(refused(tmp_path))
    data.write_bytes(whole[: len(whole) // 2])
    assert isinstance(refused(tmp_path), DamagedError)
    data.unlink()
    assert isinstance(refused(tmp_path), DamagedError)


def test_every_flipped_bit_of_the_commit_record_is_found(tmp_path: Path) -> None:
    record = seal(pickle.dumps(dcp.Metadata({})), [Piece("__0_0.distcp", 0, 5, 7)])
    assert unseal(record, tmp_path)[1] == {("__0_0.distcp", 0, 5): 7}
    for place in range(len(record)):
        for bit in (1, 128):
            with pytest.raises(DamagedError):
                unseal(
                    record[:place] + bytes([record[place] ^ bit]) + record[place + 1 :], tmp_path
                )
    for length in range(len(record)):
        with pytest.raises(DamagedError):
            unseal(record[:length], tmp_path)


def sealed(pickled: bytes, rows: bytes) -> bytes:
    """As by a writer of something else, whose checksums are right."""
    trailer = struct.pack("<QI", len(pickled), crc32(pickled + rows))
    return pickled + rows + trailer + struct.pack("<I", crc32(trailer)) + _MAGIC


PICKLED = pickle.dumps(dcp.Metadata({"w": dcp.metadata.BytesStorageMetadata()}))
ROWS = b'{"pieces": {"a": [[0, 5, 7]]}}'


@given(st.data())
def test_a_commit_record_of_anything_is_read_or_refused(data: st.DataObject) -> None:
    """Checksums say nothing about who wrote: no other error, whatever is in it."""
    pickled, rows = (
        PICKLED,
        data.draw(st.sampled_from([ROWS, b"", b"[" * 5000, b'{"pieces": {"a": [[0, 5, 1e999]]}}'])),
    )
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(pickled)))
        pickled = (
            pickled[:start]
            + data.draw(st.binary(max_size=4))
            + pickled[start + data.draw(st.integers(0, 4)) :]
        )
    if data.draw(st.booleans()):
        pickled = data.draw(st.binary(max_size=40))
    with contextlib.suppress(DamagedError):
        unseal(sealed(pickled, rows), Path("x"))


def test_a_commit_record_whose_pickle_is_none() -> None:
    for pickled in [b"", b".", b"0.", b"(", b"]q", b"\x80\x04\x8d", b"}}s.", b"cos\nsystem\n."]:
        with pytest.raises(DamagedError):
            unseal(sealed(pickled, ROWS), Path("x"))
        assert unseal(sealed(PICKLED, ROWS), Path("x"))[1] == {("a", 0, 5): 7}


def test_what_torch_wrote_without_checksums_is_refused(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    assert "no checksums" in str(refused(tmp_path))


def test_a_folder_without_a_commit_record(tmp_path: Path) -> None:
    assert "no save here was completed" in str(refused(tmp_path))


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize("thing", [Evil(), print, torch.load, torch.nn.Linear(1, 1)])
def test_a_commit_record_runs_no_code(thing: Any, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="does not belong"):
        unseal(seal(pickle.dumps(thing), []), tmp_path)
    with pytest.raises(DamagedError, match="something else"):
        unseal(seal(pickle.dumps({"a": 1}), []), tmp_path)
    with pytest.raises(pickle.UnpicklingError):
        _Unpickler(io.BytesIO()).find_class("torch.distributed.checkpoint.metadata", "os.system")
    assert seal(b"", []).endswith(_MAGIC)


def test_ranks_that_do_not_coordinate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        DeepVMWriter(tmp_path).set_up_storage_writer(True, rank=0, use_collectives=False)


def test_a_rank_whose_folder_is_another_is_found_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeepVMWriter.finish

    def finish(self: DeepVMWriter, **arguments: Any) -> None:
        for path in tmp_path.glob("*.distcp"):
            path.unlink()
        real(self, **arguments)

    monkeypatch.setattr(DeepVMWriter, "finish", finish)
    with pytest.raises((CheckpointException, CheckpointError)) as error:
        saved(tmp_path)
    assert "must share one" in str(cause(error))
    assert not (tmp_path / METADATA).exists()


def test_a_disk_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((CheckpointException, CheckpointError)) as error:
        saved(tmp_path / "file" / "below")
    assert isinstance(cause(error), CheckpointError)
    assert "below" in str(cause(error))


SCRIPT = textwrap.dedent("""
    import os, sys, warnings
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from deepvm.checkpoint.dcp import DeepVMReader, DeepVMWriter

    warnings.simplefilter("ignore")
    what, folder, world, rank, meeting, seed = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:7]
    # Shards of 7 rows over 2, 3 or 1 ranks: the cuts lie elsewhere each time.
    full = torch.arange(70.0).reshape(7, 10) + float(seed)
    columns = torch.arange(30.0).reshape(3, 10) - float(seed)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        mesh = init_device_mesh("cpu", (world,))
        make = lambda t, place: distribute_tensor(t, mesh, [place])
    else:
        make = lambda t, place: t.clone()
    zero = what == "load"
    state = {
        "rows": make(full * (not zero), Shard(0)),
        "columns": make(columns * (not zero), Shard(1)),
        "same": make(full * (not zero), Replicate()),
        "step": 0 if zero else int(seed),
    }
    if what == "save":
        dcp.save(state, storage_writer=DeepVMWriter(folder))
    else:
        dcp.load(state, storage_reader=DeepVMReader(folder))
        whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
        assert torch.equal(whole(state["rows"]), full)
        assert torch.equal(whole(state["columns"]), columns)
        assert torch.equal(whole(state["same"]), full)
        assert state["step"] == int(seed)
    if world > 1:
        dist.destroy_process_group()
        # Threads of gloo outlive it (torch 2.13), and may abort the interpreter while it ends.
        os._exit(0)
""")  # noqa: E501


def ranks(
    what: str, folder: Path, world: int, seed: int, environment: dict[str, str] | None = None
) -> list[int]:
    """Exit codes of a save or load with so many processes."""
    meeting = folder.parent / f"meeting-{os.urandom(4).hex()}"
    own = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                SCRIPT,
                what,
                str(folder),
                str(world),
                str(rank),
                str(meeting),
                str(seed),
            ],
            env=own,
            stderr=subprocess.DEVNULL if environment else None,
        )
        for rank in range(world)
    ]
    try:
        if environment:  # one is killed; the others would wait for it
            running[0].wait(60)
            for process in running[1:]:
                process.kill()
        return [process.wait(60) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_two_ranks_save_and_one_loads(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert ranks("save", folder, 2, 5) == [0, 0]
    assert len(list(folder.glob("__*.distcp"))) == 2
    assert ranks("load", folder, 1, 5) == [0]


@pytest.mark.slow
@pytest.mark.parametrize(("writers", "readers"), [(1, 2), (2, 3), (3, 2)])
def test_any_number_saves_and_any_number_loads(writers: int, readers: int, tmp_path: Path) -> None:
    assert ranks("save", tmp_path / "state", writers, 3) == [0] * writers
    assert ranks("load", tmp_path / "state", readers, 3) == [0] * readers


def single(seed: int) -> dict[str, Any]:
    """The state of SCRIPT on one rank."""
    full, columns = (
        torch.arange(70.0).reshape(7, 10) + seed,
        torch.arange(30.0).reshape(3, 10) - seed,
    )
    return {"rows": full, "columns": columns, "same": full.clone(), "step": seed}


@pytest.mark.parametrize("place", ["dcp.data.before-sync", "dcp.metadata.before-rename"])
def test_a_save_that_is_killed_leaves_the_one_before_it(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    dcp.save(single(1), storage_writer=DeepVMWriter(folder))
    assert ranks("save", folder, 1, 2, {"DEEPVM_CHECKPOINT_KILL_AT": place}) == [-signal.SIGKILL]
    for seed in (1, 3):
        found = single(0)
        dcp.load(found, storage_reader=DeepVMReader(folder))
        assert found["step"] == seed
        assert all(torch.equal(v, single(seed)[k]) for k, v in found.items() if k != "step")
        dcp.save(single(3), storage_writer=DeepVMWriter(folder))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["data", "metadata"])
@pytest.mark.parametrize(
    "when",
    [
        "before-write",
        "mid-write",
        "before-sync",
        "after-sync",
        "before-rename",
        "before-folder-sync",
    ],
)
def test_two_ranks_of_which_one_is_killed_anywhere(what: str, when: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    dcp.save(single(1), storage_writer=DeepVMWriter(folder))
    assert (
        ranks("save", folder, 2, 2, {"DEEPVM_CHECKPOINT_KILL_AT": f"dcp.{what}.{when}"})[0]
        == -signal.SIGKILL
    )
    found = single(0)
    dcp.load(found, storage_reader=DeepVMReader(folder))
    # Behind the rename of the metadata the new one is there, before it the old one.
    assert found["step"] == (2 if (what, when) == ("metadata", "before-folder-sync") else 1)
    assert all(torch.equal(v, single(found["step"])[k]) for k, v in found.items() if k != "step")


def test_a_reader_serves_again_and_elsewhere(tmp_path: Path) -> None:
    """Also where the metadata came from another rank."""
    reader = DeepVMReader(tmp_path / "a")
    for value, folder in ((1.0, "a"), (2.0, "a"), (3.0, "b")):
        dcp.save({"w": torch.full((4,), value)}, storage_writer=DeepVMWriter(tmp_path / folder))
        metadata = DeepVMReader(tmp_path / folder).read_metadata()
        reader.reset(tmp_path / folder)
        reader.set_up_storage_reader(metadata, False)
        (place,) = metadata.storage_data.values()
        assert reader._read(place.relative_path, place.offset, place.length, "w")
    state = {"w": torch.zeros(4)}
    dcp.load(state, storage_reader=reader)
    assert state["w"].tolist() == [3.0] * 4
    dcp.save({"w": torch.full((4,), 4.0)}, storage_writer=DeepVMWriter(tmp_path / "b"))
    # Without a reset
    reader.set_up_storage_reader(DeepVMReader(tmp_path / "b").read_metadata(), False)
    dcp.load(state, storage_reader=reader)
    assert state["w"].tolist() == [4.0] * 4
