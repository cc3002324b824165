"""Labeled images from untrusted files: CIFAR-10 (binary), Fashion-MNIST (idx, maybe gzipped)."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deepvm.errors import DataError

CIFAR_CLASSES = 10
_CIFAR_SHAPE = (3, 32, 32)
_MAX_BYTES = 256 * 2**20  # of a file, unpacked; the largest of both data sets has 47 MB
_FOLDERS = ("", "cifar-10-batches-bin", "FashionMNIST/raw", "raw")

Bytes = npt.NDArray[np.uint8]


class Images(NamedTuple):
    """A data set (``cifar10``, ``idx``): pixels (images, 3, h, w) 0-255, labels 0-9."""

    name: str
    pixels: Bytes
    labels: Bytes


def read_images(folder: Path) -> Images:
    """The training images below a folder, where archives put them. Raises DataError."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: is not a folder; name the one with the files of CIFAR-10 or Fashion-MNIST"
        )
    for place in (folder / name for name in _FOLDERS):
        batches = sorted(place.glob("data_batch_*.bin"))
        if batches:
            parts = [read_records(path) for path in batches]
            pixels, names = (np.concatenate(part) for part in zip(*parts, strict=True))
            return Images("cifar10", pixels.reshape(-1, *_CIFAR_SHAPE), names)
        images = sorted(place.glob("train-images-idx3-ubyte*"))
        labels = sorted(place.glob("train-labels-idx1-ubyte*"))
        if images and labels:
            return _idx_pair(images[0], labels[0])
    raise DataError(
        f"{folder}: has neither data_batch_*.bin (CIFAR-10, binary version; the Python version is"
        " pickled, and unpickling runs what is in a file) nor both train-images-idx3-ubyte and"
        " train-labels-idx1-ubyte (Fashion-MNIST); leave --data out to train on random images"
    )


def read_records(
    path: Path, label_bytes: int = 1, classes: int = CIFAR_CLASSES
) -> tuple[Bytes, Bytes]:
    """Pixels and labels (the last of each) of CIFAR's binary format. Raises DataError."""
    data = _content(path)
    size = label_bytes + math.prod(_CIFAR_SHAPE)
    if not data or len(data) % size:
        raise _damaged(path, f"{len(data)} bytes are not images of {size} bytes each")
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    labels = rows[:, label_bytes - 1]
    _check_labels(path, labels, classes)
    return rows[:, label_bytes:], labels


def _idx_pair(images: Path, names: Path) -> Images:
    pixels = read_idx(images, 3)
    labels = read_idx(names, 1)
    if len(pixels) != len(labels):
        raise _damaged(images, f"has {len(pixels)} images, {names} has {len(labels)} labels")
    _check_labels(names, labels)
    # A view: three times the same grey, without memory for it.
    shape = (len(pixels), 3, *pixels.shape[1:])
    return Images("idx", np.broadcast_to(pixels[:, None], shape), labels)


def read_idx(path: Path, dimensions: int) -> Bytes:
    """An array of MNIST's format. Raises DataError."""
    data = _content(path)
    size = 4 + 4 * dimensions
    magic, *shape = np.frombuffer(data[:size].ljust(size, b"\0"), ">u4").tolist()
    if magic != 0x800 + dimensions or math.prod(shape) != len(data) - size or 0 in shape:
        raise _damaged(path, f"not as its header says: {magic:#x}, {shape}")
    return np.frombuffer(data, np.uint8, offset=size).reshape(shape)


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path}: {reason}; get the files of the data set again")


def _check_labels(path: Path, labels: Bytes, classes: int = CIFAR_CLASSES) -> None:
    if labels.max() >= classes:
        raise _damaged(path, f"label {labels.max()} (expected 0 to {classes - 1})")


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise _damaged(path, "is not a regular file")
    if path.suffix == ".gz":
        open_file: Any = gzip.open
    else:
        open_file = open
    try:
        with open_file(path, "rb") as stream:
            # What gzip makes of a small file may have no end
            data: bytes = stream.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, f"cannot be read: {error}") from None
    if len(data) > _MAX_BYTES:
        raise _damaged(path, f"has more than {_MAX_BYTES // 2**20} MiB")
    return data
