"""The file image: plain torch reads it, zip's own test passes, and every kind of tensor comes back
bit by bit.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoint.memory_nodes import Acks, running, tier

torch = pytest.importorskip("torch")

from support.checkpoint.zip_images import write  # noqa: E402

from deepvm.checkpoint.files.commit_record import verify  # noqa: E402
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten, map_leaves  # noqa: E402
from deepvm.checkpoint.format.manifest import Level, Shard  # noqa: E402
from deepvm.checkpoint.format.tensor_bytes import as_bytes  # noqa: E402
from deepvm.checkpoint.format.torch_zip import plan_image  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.tiers.file import FileTier  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402


def same(one: Any, other: Any) -> bool:
    """Equal in types, order, values and, for tensors, in every bit."""
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor):
            return False
        about = [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (one, other)]
        return about[0] == about[1] and bytes(one.untyped_storage()) == bytes(
            other.untyped_storage()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


def loads(path: Path) -> list[Any]:
    return [torch.load(path, weights_only=True), torch.load(path, weights_only=True, mmap=True)]


def test_a_model_and_its_optimizer(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Embedding(5, 20)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    tree = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "extra": {},
        "version": 7,
    }
    write(tree, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None
    for loaded in loads(tmp_path / "x.pt"):
        assert same(loaded, tree)
        assert loaded["model"]._metadata == model.state_dict()._metadata
        assert (
            all(t.data_ptr() % 128 == 0 for t in loaded["model"].values())
            or loaded["model"]["0.weight"].is_pinned
        )
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])


def odd_tensors() -> dict[str, Any]:
    base = torch.arange(100.0)
    return {
        "tied": [base, base],
        "view": base[10:20],
        "transposed": torch.arange(12).reshape(3, 4).t(),
        "strided": torch.arange(20)[::3],
        "expanded": torch.ones(1).expand(4, 5),
        "empty": torch.empty(0),
        "empty shape": torch.empty(3, 0, 2),
        "scalar": torch.tensor(3.25),
        "bool": torch.tensor([True, False]),
        "bf16": torch.randn(7).to(torch.bfloat16),
        "fp8": torch.randn(7).to(torch.float8_e4m3fn),
        "complex": torch.randn(3, dtype=torch.complex64),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "parameter": torch.nn.Parameter(torch.ones(3)).detach(),
        "uint16": torch.tensor([1, 65535]).to(torch.uint16),
    }


def test_odd_tensors(tmp_path: Path) -> None:
    tree = odd_tensors()
    write(tree, tmp_path / "x.pt")
    for loaded in loads(tmp_path / "x.pt"):
        assert same(loaded, tree)
    loaded["tied"][0][0] = 99
    assert loaded["tied"][1][0] == 99  # the memory is still shared


def test_containers_and_constants(tmp_path: Path) -> None:
    tree = {
        "list": [1, 2.5, True, None, "text", b"bytes", ()],
        "tuple": (1, (2, [3])),
        "ordered": OrderedDict(b=1, a=2),
        "counter": Counter({30: 1, 80: 2}),
        "names": {0: {"step": torch.tensor(1.0)}, 1: {}},
        "types": [torch.float16, torch.device("cpu"), torch.Size([1, 2])],
        "huge": 2**70,
        "ends": [2**63 - 1, -(2**63), 0, -1, 1.7976931348623157e308, 5e-324, float("inf")],
    }
    write(tree, tmp_path / "x.pt")
    for loaded in loads(tmp_path / "x.pt"):
        assert same(loaded, tree)


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=True)
leaves = (
    numbers
    | st.text(max_size=5)
    | st.none()
    | st.booleans()
    | st.builds(
        lambda n, d: torch.arange(n).to(d),
        st.integers(0, 40),
        st.sampled_from([torch.float32, torch.int64]),
    )
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-5, 5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(trees, st.data())
def test_any_state_and_then_other_values_in_the_same_layout(
    tmp_path: Path, tree: Any, data: st.DataObject
) -> None:
    write(tree, tmp_path / "x.pt")
    assert all(same(loaded, tree) for loaded in loads(tmp_path / "x.pt"))

    def other(value: float) -> float:
        kinds = (
            st.floats(allow_nan=True)
            if isinstance(value, float)
            else st.integers(-(2**63), 2**63 - 1)
        )
        return data.draw(kinds)

    changed = map_leaves(tree, lambda t: (t + 1).to(t.dtype), other)
    assert flatten(changed).structure == flatten(tree).structure
    write(changed, tmp_path / "y.pt", template=tree)
    assert all(same(loaded, changed) for loaded in loads(tmp_path / "y.pt"))


class Strange:
    pass


def test_what_torch_would_not_load_is_refused_with_its_place() -> None:
    for value, said in [
        (Strange(), "Strange"),
        ({1, 2}, "set"),
        (torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (torch.empty(3, device="meta"), "device meta"),
        (
            [torch.ones(3), (memory := torch.ones(3)), memory.view(torch.int32)][1:],
            "one type for one memory",
        ),
        ({2.5: 1}, "keys that are strings or whole numbers"),
    ]:
        with pytest.raises(RequestError) as caught:
            flatten({"extra": {"mine": [0, value]}})
        assert "state['extra']['mine'][1]" in str(caught.value) and said in str(caught.value)


def test_numpy_values_come_with_advice() -> None:
    numpy = pytest.importorskip("numpy")
    for value, advice in ((numpy.float32(1), ".item()"), (numpy.zeros(3), "torch.from_numpy")):
        with pytest.raises(RequestError, match=advice.replace(".", r"\.")):
            flatten({"extra": value})


def test_beyond_four_gigabytes(tmp_path: Path) -> None:
    """zip64: sizes and places of eight bytes. The file is sparse, so is the memory."""
    size = 2**32 + 4096
    tree = {"big": torch.empty(size, dtype=torch.uint8), "after": torch.arange(5.0), "version": 3}
    parts = flatten(tree)
    image = plan_image(tree, parts)
    path = tmp_path / "big.pt"
    with path.open("wb") as file:
        file.truncate(image.size)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for offset, data in image.pieces:
            memory[offset : offset + len(data)] = data
        with memoryview(memory) as view:
            image.write_numbers(view, parts.numbers)
        for storage, offset in (
            (b"end", image.storages[0] + size - 3),
            (bytes(parts.storages[1]), image.storages[1]),
        ):
            memory[offset : offset + len(storage)] = storage
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert bytes(loaded["big"][-3:].tolist()) == b"end" and loaded["after"].tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    with zipfile.ZipFile(path) as archive:
        assert {i.filename: i.file_size for i in archive.infolist()}["archive/data/0"] == size
    assert max(f.offset + f.length for f in image.fields) <= image.size


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_a_version_beyond_four_gigabytes_on_a_disk(tmp_path: Path, several: bool) -> None:
    """Through a folder, and through a memory node: every checksum, of the zip file too."""
    if (
        os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") < 11 * 2**30
        or shutil.disk_usage(tmp_path).free < 6 * 2**30
    ):
        pytest.skip("it needs 11 GiB of memory and 6 GiB of disk")
    size = 2**32 + 4096
    tree = {"big": torch.zeros(size, dtype=torch.uint8), "after": torch.arange(5.0), "version": 3}
    parts = flatten(tree)
    image = plan_image(tree, parts)
    slot = Slot(image)
    tree["big"][-3:] = torch.tensor(list(b"end"))
    slot.copy([as_bytes(s) for s in parts.storages], range(len(slot.pieces)))
    image.write_numbers(slot.view, parts.numbers)
    shard = Shard("job", 3, 0, image.layout(), slot.view)
    if several:
        with running(5 * 2**31, persist=tmp_path / "p") as node:
            to = tier(node, limit_s=120.0)
            acks = Acks()
            to.put(shard, acks)
            assert acks.wait(Level.DURABLE, 120)
            to.close()
    else:
        FileTier(tmp_path / "p").put(shard, lambda level: None)
    folder = VersionFolder(tmp_path / "p")
    path = folder.file("job", 3)
    verify(path)
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert bytes(loaded["big"][-3:].tolist()) == b"end" and loaded["after"].tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    path.unlink()
