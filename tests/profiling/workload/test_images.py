"""Data sets of users: read where they are good, refused with the place where they are not."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.errors import DataError
from deepvm.profiling.workload import images as module
from deepvm.profiling.workload.images import read_images


def cifar(labels: list[int], seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return b"".join(
        bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)
    )


def idx(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


PIXELS = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
LABELS = np.array([0, 9, 4], np.uint8)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def fashion(folder: Path, images: bytes = idx(PIXELS), labels: bytes = idx(LABELS)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in zip(NAMES, (images, labels), strict=True):
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    for number, labels in enumerate(([3, 9], [0, 1, 2]), start=1):
        (tmp_path / inside / f"data_batch_{number}.bin").write_bytes(cifar(labels, number))
    found = read_images(tmp_path)
    assert (found.name, found.pixels.shape, found.labels.tolist()) == (
        "cifar10",
        (5, 3, 32, 32),
        [3, 9, 0, 1, 2],
    )
    assert found.pixels[2].tobytes() == cifar([0, 1, 2], 2)[1:3073]


@pytest.mark.parametrize("inside", ["", "FashionMNIST/raw"])
def test_fashion_mnist(tmp_path: Path, inside: str) -> None:
    fashion(tmp_path / inside)
    found = read_images(tmp_path)
    assert found.pixels.shape == (3, 3, 28, 28)
    assert all(np.array_equal(found.pixels[:, channel], PIXELS) for channel in range(3))
    assert found.labels.tolist() == LABELS.tolist()


def test_gzip(tmp_path: Path) -> None:
    for name, data in zip(NAMES, (idx(PIXELS), idx(LABELS)), strict=True):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    assert np.array_equal(read_images(tmp_path).pixels[:, 0], PIXELS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are not images"),
        (cifar([1, 2])[:-1], "6145 bytes are not images"),
        (cifar([1, 2, 10]), "label 10 .expected 0 to 9"),
    ],
)
def test_bad_cifar(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(data)
    with pytest.raises(DataError, match=f"data_batch_1.bin: {message}"):
        read_images(tmp_path)


def test_bad_idx(tmp_path: Path) -> None:
    for images, labels, message in [
        (b"", idx(LABELS), "images-idx3-ubyte: not as its header says: 0x0"),
        (idx(LABELS), idx(LABELS), "images-idx3-ubyte: not as its header says: 0x801"),
        (idx(PIXELS)[:-1], idx(LABELS), "images-idx3-ubyte: not as its header says: 0x803, .3, 28"),
        (idx(PIXELS)[:10], idx(LABELS), "images-idx3-ubyte: not as its header says"),
        (idx(PIXELS[:0]), idx(LABELS), "images-idx3-ubyte: not as its header says"),
        (
            struct.pack(">4I", 0x803, 3, 2**32 - 1, 28),
            idx(LABELS),
            "images-idx3-ubyte: not as its header says",
        ),
        (idx(PIXELS), idx(LABELS[:2]), "has 3 images, .* has 2 labels"),
        (idx(PIXELS), idx(np.array([0, 77, 1], np.uint8)), "labels-idx1-ubyte: label 77"),
    ]:
        with pytest.raises(DataError, match=message):
            read_images(fashion(tmp_path, images, labels))


def test_the_pickled_version_is_not_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="the Python version is pickled"):
        read_images(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leave --data out"):
        read_images(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_images(tmp_path / "nowhere")


def test_half_of_a_pair(tmp_path: Path) -> None:
    (fashion(tmp_path) / NAMES[1]).unlink()
    with pytest.raises(DataError, match="nor both train-images"):
        read_images(tmp_path)


def test_a_pipe_does_not_hold_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data_batch_1.bin")
    with pytest.raises(DataError, match="is not a regular file"):
        read_images(tmp_path)


def test_what_has_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 2**20)
    for name in NAMES:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(DataError, match="has more than 1 MiB"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-6], lambda data: data[:20] + b"\xff" * 9 + data[29:]]
)
def test_damaged_gzip(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    for name, data in zip(NAMES, (idx(PIXELS), idx(LABELS)), strict=True):
        (tmp_path / f"{name}.gz").write_bytes(damage(gzip.compress(data)))
    with pytest.raises(DataError, match="cannot be read"):
        read_images(tmp_path)


@given(images=st.binary(max_size=64), labels=st.binary(max_size=24), keep=st.integers(0, 16))
def test_noise_is_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, images: bytes, labels: bytes, keep: int
) -> None:
    folder = fashion(
        tmp_path_factory.mktemp("noise"), idx(PIXELS)[:keep] + images, idx(LABELS)[:keep] + labels
    )
    with pytest.raises(DataError):
        read_images(folder)
