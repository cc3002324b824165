"""Data sets with sample ids, (input, target, sample id), so that an audit can follow them."""

import gzip
import importlib.util
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from deepvm.errors import DataError, MissingExtraError, RequestError
from deepvm.profiling.workload.images import read_idx, read_records
from deepvm.records import dataclass

# Where Debian's package ``dataset-fashion-mnist`` puts it
FASHION = Path("/usr/share/datasets/fashion-mnist")
_TOKENS = 4096
_SEQUENCE = 32
_VOCABULARY = 64


Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]  # Inputs, targets and sample ids


@dataclass(frozen=True)
class Samples(torch.utils.data.Dataset[Batch]):
    """All samples of a data set, in memory."""

    inputs: Tensor  # (D, channels, height, width), about [-1, 1]; (D, length) for tokens
    targets: Tensor  # (D,), or (D, length) for tokens
    classes: int

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, sample_id: int) -> Batch:
        return self.inputs[sample_id], self.targets[sample_id], torch.tensor(sample_id)

    def batch(self, ids: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(ids)
        return self.inputs[chosen], self.targets[chosen], chosen


def digits(path: Path | None) -> Samples:
    """1797 digits of 8 x 8 pixels, from scikit-learn's own files. Raises MissingExtraError."""
    # Its file alone: importing scikit-learn takes seconds, in each rank of each attempt.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtraError("dataset digits", "scikit-learn", "lab")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(file, "rt", encoding="ascii") as text:
            rows = np.loadtxt(text, delimiter=",")
        inputs = torch.from_numpy(rows[:, :-1].astype(np.float32)).reshape(-1, 1, 8, 8) / 8 - 1
    except (OSError, EOFError, ValueError, RuntimeError) as error:
        raise DataError(f"{file}: not scikit-learn's digits: {error}") from None
    return Samples(inputs, torch.from_numpy(rows[:, -1].astype(np.int64)), 10)


def fashion_mnist(path: Path | None) -> Samples:
    """60 000 pieces of clothing of 28 x 28 pixels, in the files of MNIST. Raises DataError."""
    folder = path or FASHION
    images = read_idx(_one_of(folder, "train-images-idx3-ubyte"), 3)
    targets = read_idx(_one_of(folder, "train-labels-idx1-ubyte"), 1)
    if len(images) != len(targets):
        raise DataError(
            f"{folder}: {images.shape} images and {targets.shape} labels; these are not MNIST's"
            " files"
        )
    inputs = torch.from_numpy(images.astype(np.float32)).unsqueeze(1) / 127.5 - 1
    return Samples(inputs, torch.from_numpy(targets.astype(np.int64)), int(targets.max()) + 1)


def cifar10(path: Path | None) -> Samples:
    """50 000 images of 3 x 32 x 32 pixels in 10 classes, from their own files."""
    folder = _given(path, "cifar10")
    if binary := sorted(folder.glob("data_batch_*.bin")):
        return _images([read_records(file) for file in binary], 10)
    return _images([_pickled(file, b"labels") for file in _some(folder, "data_batch_*")], 10)


def cifar100(path: Path | None) -> Samples:
    """50 000 images of 3 x 32 x 32 pixels in 100 classes, from their own files."""
    folder = _given(path, "cifar100")
    if (binary := folder / "train.bin").is_file():
        return _images([read_records(binary, 2, 100)], 100)
    return _images([_pickled(file, b"fine_labels") for file in _some(folder, "train")], 100)


def tokens(path: Path | None) -> Samples:
    """4096 sentences of 32 tokens of a toy grammar: each token depends on the two before."""
    rng = np.random.default_rng(20260101)
    favoured = rng.integers(0, _VOCABULARY, (_VOCABULARY, _VOCABULARY))
    text = rng.integers(0, _VOCABULARY, (_TOKENS, _SEQUENCE + 1))
    for column in range(2, _SEQUENCE + 1):
        follows = rng.random(_TOKENS) < 0.8
        text[:, column] = np.where(
            follows, favoured[text[:, column - 2], text[:, column - 1]], text[:, column]
        )
    whole = torch.from_numpy(text.astype(np.int64))
    return Samples(whole[:, :-1].contiguous(), whole[:, 1:].contiguous(), _VOCABULARY)


# By the names of matrix files; each takes the folder of its files, if it has any
DATASETS: Mapping[str, Callable[[Path | None], Samples]] = {
    "digits": digits,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tokens": tokens,
}


def load(name: str, path: str | Path | None = None, size: int | None = None) -> Samples:
    """A data set, or its first ``size`` samples. Raises RequestError, DataError."""
    samples = DATASETS[name](Path(path) if path else None)
    if size is None:
        return samples
    if size > len(samples):
        raise RequestError("size", size, f"at most the {len(samples)} samples of {name}")
    return Samples(samples.inputs[:size], samples.targets[:size], samples.classes)


def _given(path: Path | None, name: str) -> Path:
    if path is None:
        raise RequestError(
            "path", None, f"the folder of the files of {name}, as its authors give them out"
        )
    return path


def _some(folder: Path, pattern: str) -> list[Path]:
    files = sorted(p for p in folder.glob(pattern) if p.is_file())
    if not files:
        raise DataError(
            f"{folder}: has no {pattern}; give the folder with the files of CIFAR, unpacked"
        )
    return files


def _one_of(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{folder}: has no {name}, nor {name}.gz; on Debian: apt install dataset-fashion-mnist,"
        " else give its path"
    )


class _Plain(pickle.Unpickler):
    """Loads arrays and plain values only: the files come from the network."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in such a file")


def _pickled(path: Path, labels: bytes) -> tuple[Any, Any]:
    try:
        with path.open("rb") as file:
            document = _Plain(file, encoding="bytes").load()
        images = np.asarray(document[b"data"], np.uint8)
        targets = np.asarray(document[labels], np.int64)
        if images.ndim != 2 or images.shape != (len(targets), 3072):
            raise ValueError(f"{images.shape} images for {len(targets)} labels")
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a file of CIFAR's Python format: {error}") from None
    return images, targets


def _images(parts: Sequence[tuple[Any, Any]], classes: int) -> Samples:
    images, targets = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    for label in (targets.min(initial=0), targets.max(initial=0)):
        if not 0 <= label < classes:
            raise DataError(f"a label is {label}: there are {classes} classes")
    inputs = torch.from_numpy(images.astype(np.float32)).reshape(-1, 3, 32, 32) / 127.5 - 1
    return Samples(inputs, torch.from_numpy(targets.astype(np.int64)), classes)
