"""Labeled images from untrusted files: CIFAR-10 (binary), Fashion-MNIST (idx, maybe gzipped).

CIFAR-10's Python version is not read: it is pickled, and unpickling a file runs what is in it.
"""

from __future__ import annotations

import gzip
import math
import os
import stat
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deepvm.errors import DataError

CIFAR_CLASSES = 10
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32
_IDX_IMAGES = 0x803
_IDX_LABELS = 0x801
_MOST_BYTES = 256 * 2**20  # of a file, unpacked; the largest of both data sets has 47 MB
_MOST_SIDE = 1024
_FOLDERS = ("", "cifar-10-batches-bin", "FashionMNIST/raw", "raw")

Bytes = npt.NDArray[np.uint8]


class Images(NamedTuple):
    """A data set (``cifar10``, ``idx``): pixels (images, 3, h, w) 0-255, labels 0-9."""

    name: str
    pixels: Bytes
    labels: Bytes


def read_images(folder: Path) -> Images:
    """The training images below a folder, where the data sets' archives put them.

    Raises:
        DataError: there are none, or a file is damaged; names the file and the place in it.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder}: is not a folder; name the one with the files of CIFAR-10 or Fashion-MNIST"
        )
    for place in (folder / name for name in _FOLDERS):
        batches = sorted(place.glob("data_batch_*.bin"))
        if batches:
            parts = [_cifar(path) for path in batches]
            labels, pixels = (np.concatenate(rows) for rows in zip(*parts, strict=True))
            return Images("cifar10", pixels, labels)
        images, names = (
            next(
                (
                    path
                    for end in ("", ".gz")
                    if (path := place / f"train-{name}-ubyte{end}").exists()
                ),
                None,
            )
            for name in ("images-idx3", "labels-idx1")
        )
        if images and names:
            return _idx_pair(images, names)
        if images or names:
            raise DataError(
                f"{place}: has {images or names}, but not the images and labels that belong"
                " together"
            )
    if any(
        (folder / name / "data_batch_1").exists() for name in (*_FOLDERS, "cifar-10-batches-py")
    ):
        pickled = "which is pickled, and unpickling runs what is in a file; get the binary version"
        raise DataError(f"{folder}: has CIFAR-10's Python version, {pickled}")
    raise DataError(
        f"{folder}: has neither data_batch_*.bin (CIFAR-10, binary version) nor"
        " train-images-idx3-ubyte and train-labels-idx1-ubyte (Fashion-MNIST); leave --data out to"
        " train on random images"
    )


def _cifar(path: Path) -> tuple[Bytes, Bytes]:
    data = _content(path)
    if not data or len(data) % _CIFAR_RECORD:
        raise _damaged(
            path,
            f"has {len(data)} bytes; allowed: one or more images of {_CIFAR_RECORD} bytes each",
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_RECORD)
    _check_labels(path, rows[:, 0], 0, _CIFAR_RECORD)
    return rows[:, 0], rows[:, 1:].reshape(-1, *_CIFAR_SHAPE)


def _idx_pair(images: Path, names: Path) -> Images:
    pixels = _idx(images, _IDX_IMAGES, 3)
    labels = _idx(names, _IDX_LABELS, 1)
    if len(pixels) != len(labels):
        raise _damaged(images, f"has {len(pixels)} images, {names} has {len(labels)} labels")
    _check_labels(names, labels, 8, 1)
    # A view: three times the same grey, without memory for it.
    return Images(
        "idx", np.broadcast_to(pixels[:, None], (len(pixels), 3, *pixels.shape[1:])), labels
    )


def _idx(path: Path, magic: int, dimensions: int) -> Bytes:
    data = _content(path)
    header = 4 + 4 * dimensions
    found = int.from_bytes(data[:4], "big")
    if len(data) < header or found != magic:
        raise _damaged(
            path, f"byte 0: 0x{found:08x} is not 0x{magic:08x}, which begins such a file"
        )
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    for place, size in enumerate(shape):
        if size < 1 or (place and size > _MOST_SIDE):
            most = f"1 to {_MOST_SIDE}" if place else "from 1"
            raise _damaged(path, f"byte {4 + 4 * place}: a size of {size}; allowed: {most}")
    rest = len(data) - header
    count = math.prod(shape)
    if rest != count:
        raise _damaged(path, f"byte {header}: {rest} bytes follow the header, which says {count}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path}: {why}; get the files of the data set again")


def _check_labels(path: Path, labels: Bytes, first: int, step: int) -> None:
    wrong = np.flatnonzero(labels >= CIFAR_CLASSES)
    if len(wrong):
        number = int(wrong[0])
        raise _damaged(
            path, f"byte {first + number * step}: label {labels[number]}; allowed: 0 to 9"
        )


def _content(path: Path) -> bytes:
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer, for ever if there is
        # none.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _damaged(path, "is not a regular file")
            unpacked: Any = gzip.GzipFile(fileobj=stream) if path.suffix == ".gz" else stream
            # What gzip makes of a small file may have no end
            data: bytes = unpacked.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise _damaged(path, f"cannot be read: {why}") from None
    if len(data) > _MOST_BYTES:
        raise _damaged(path, f"has more than {_MOST_BYTES // 2**20} MiB")
    return data
