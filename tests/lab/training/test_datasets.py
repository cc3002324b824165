"""Data sets from files in their authors' formats, which are generated here.

Damaged ones are named and refused.
"""

from __future__ import annotations

import gzip
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepvm.errors import DataError, RequestError
from deepvm.lab.training.datasets import DATASETS, load

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
N = 12


def pixels(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx(values: Any) -> bytes:
    return struct.pack(f">I{values.ndim}I", 2048 + values.ndim, *values.shape) + values.tobytes()


def write_fashion(folder: Path, *, zipped: bool) -> tuple[Any, Any]:
    images, labels = pixels((N, 28, 28)), np.arange(N, dtype=np.uint8) % 10
    for name, values in ((IMAGES, images), (LABELS, labels)):
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
        else:
            (folder / name).write_bytes(idx(values))
    return images, labels


def python2(value: Any) -> bytes:
    """As Python 2 pickled it, with which CIFAR's files were made: its bytes are text, and NumPy's
    names are old.
    """
    data = pickle.dumps(value, protocol=3)
    made, ends = (
        bytearray(data),
        [(code.name, at) for code, _, at in pickletools.genops(data) if at is not None],
    )
    for name, at in ends:
        made[at] = {"BINBYTES": ord("T"), "SHORT_BINBYTES": ord("U")}.get(name, made[at])
    made[1] = 2
    return bytes(made).replace(b"cnumpy._core.", b"cnumpy.core.")


def write_cifar(folder: Path, name: str, *, binary: bool) -> tuple[Any, Any]:
    """In the format of https://www.cs.toronto.edu/~kriz/cifar.html.

    Returns images and labels in their order.
    """
    files = [f"data_batch_{i}" for i in range(1, 6)] if name == "cifar10" else ["train"]
    classes, everything = (10 if name == "cifar10" else 100), []
    for number, file in enumerate(files):
        images, labels = pixels((N, 3072), number), (np.arange(N) * 7 + number) % classes
        everything.append((images, labels))
        if binary:
            coarse = [] if name == "cifar10" else [np.zeros((N, 1), np.uint8)]
            rows = np.concatenate([*coarse, labels[:, None].astype(np.uint8), images], axis=1)
            (folder / f"{file}.bin").write_bytes(rows.tobytes())
            continue
        found = {b"data": images, b"batch_label": b"training batch", b"filenames": [b"a.png"] * N}
        if name == "cifar10":
            found[b"labels"] = labels.tolist()
        else:
            found |= {b"fine_labels": labels.tolist(), b"coarse_labels": [0] * N}
        (folder / file).write_bytes(python2(found))
    images, labels = (np.concatenate([part[i] for part in everything]) for i in (0, 1))
    return images, labels


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist(zipped: bool, tmp_path: Path) -> None:
    images, labels = write_fashion(tmp_path, zipped=zipped)
    found = load("fashion-mnist", tmp_path)
    assert (
        found.inputs.shape == (N, 1, 28, 28)
        and found.classes == 10
        and found.targets.tolist() == labels.tolist()
    )
    assert torch.equal(found.inputs[:, 0], torch.from_numpy(images.astype(np.float32)) / 127.5 - 1)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("name", "size", "classes"), [("cifar10", 5 * N, 10), ("cifar100", N, 100)]
)
def test_cifar(name: str, size: int, classes: int, binary: bool, tmp_path: Path) -> None:
    images, labels = write_cifar(tmp_path, name, binary=binary)
    found = load(name, tmp_path)
    assert (
        found.inputs.shape == (size, 3, 32, 32) and found.classes == classes and len(found) == size
    )
    assert found.targets.tolist() == labels.tolist()
    # Red, green and blue, each row by row.
    assert torch.equal(
        found.inputs.reshape(size, -1), torch.from_numpy(images.astype(np.float32)) / 127.5 - 1
    )
    x, y, sample_id = found[3]
    assert torch.equal(x, found.inputs[3]) and int(y) == labels[3] and int(sample_id) == 3


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def other_magic(path: Path) -> None:
    path.write_bytes(b"\x00\x00\x0c" + path.read_bytes()[3:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage"), [(IMAGES, shorten), (LABELS, other_magic), (LABELS, empty)]
)
def test_damaged_files_of_mnist(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    write_fashion(tmp_path, zipped=False)
    damage(tmp_path / name)
    with pytest.raises(DataError, match=f"{name}: .*get the files of the data set again"):
        load("fashion-mnist", tmp_path)


def test_a_damaged_compressed_file(tmp_path: Path) -> None:
    write_fashion(tmp_path, zipped=True)
    shorten(tmp_path / f"{IMAGES}.gz")
    with pytest.raises(DataError, match=rf"{IMAGES}\.gz: cannot be read"):
        load("fashion-mnist", tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    data = bytearray(gzip.compress(idx(pixels((N, 28, 28)))))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{IMAGES}\.gz: cannot be read"):
        load("fashion-mnist", tmp_path)


def test_labels_of_other_images(tmp_path: Path) -> None:
    write_fashion(tmp_path, zipped=False)
    (tmp_path / LABELS).write_bytes(idx(np.zeros(N - 1, np.uint8)))
    with pytest.raises(DataError, match="these are not MNIST's files"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "binary"), [("cifar10", shorten, True), ("cifar100", empty, False)]
)
def test_damaged_files_of_cifar(
    name: str, damage: Callable[[Path], None], binary: bool, tmp_path: Path
) -> None:
    write_cifar(tmp_path, name, binary=binary)
    file = sorted(tmp_path.iterdir())[0]
    damage(file)
    with pytest.raises(DataError, match=file.name):
        load(name, tmp_path)


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_that_are_no_classes(label: int, tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar10", binary=False)
    batch = {b"data": pixels((N, 3072)), b"labels": [label] * N}
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=f"a label is {label}: there are 10 classes"):
        load("cifar10", tmp_path)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_file_that_would_run_code_is_refused_before_it_does(tmp_path: Path) -> None:
    """Their Python format is pickle, and they come from the network."""
    write_cifar(tmp_path, "cifar100", binary=False)
    proof = tmp_path / "proof"
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": Malicious(proof), b"fine_labels": [0]}))
    with pytest.raises(
        DataError, match="train: not a file of CIFAR's Python format: .*has no place in such a file"
    ):
        load("cifar100", tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "found",
    [
        [1, 2],
        {b"data": "x", b"fine_labels": [0]},
        {b"data": pixels((2, 9)), b"fine_labels": [0, 1]},
        {},
    ],
)
def test_a_pickle_of_something_else(found: Any, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(pickle.dumps(found))
    with pytest.raises(DataError, match="train: not a file of CIFAR's Python format"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_needs_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=name):
        load(name)
    with pytest.raises(DataError, match="the files of CIFAR"):
        load(name, tmp_path)


def test_a_part_of_a_data_set(tmp_path: Path) -> None:
    write_fashion(tmp_path, zipped=False)
    assert (
        load("fashion-mnist", tmp_path, 5).targets.tolist()
        == load("fashion-mnist", tmp_path).targets[:5].tolist()
    )
    with pytest.raises(RequestError, match=f"at most the {N} samples"):
        load("fashion-mnist", tmp_path, N + 1)


def test_tokens_are_the_same_each_time_and_can_be_learnt() -> None:
    one, two = load("tokens"), load("tokens")
    assert torch.equal(one.inputs, two.inputs) and torch.equal(
        one.targets[:, :-1], one.inputs[:, 1:]
    )
    # Most tokens follow from the two before them.
    pairs: dict[tuple[int, int], list[int]] = {}
    for row, ends in zip(one.inputs.tolist(), one.targets.tolist(), strict=True):
        for place in range(1, len(row)):
            pairs.setdefault((row[place - 1], row[place]), []).append(ends[place])
    usual = sum(max(map(follows.count, set(follows))) for follows in pairs.values())
    assert usual / sum(map(len, pairs.values())) > 0.75


def test_each_has_a_line_for_people() -> None:
    assert all((one.__doc__ or "").partition("\n")[0].endswith(".") for one in DATASETS.values())
