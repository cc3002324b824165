"""A digest of the tensors in a file of final parameters, independent of its layout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.lab.certify.probe import digest

_MOST_NAMES = 5


def digest_of_file(path: Path, folder: Path) -> str:
    """Hex SHA-256 of the names and values of all tensors in a file.

    ``folder``: of the run that should have written it.

    Raises:
        DataError: the file is missing, unreadable, or has no tensors.
    """
    if not path.is_file():
        missing = f"{path.name}: the script has not written this file of final parameters"
        raise DataError(f"{missing}; in {folder}, the folder of its run, {_shown(folder)}")
    named = sorted(_tensors("", _load(path)), key=lambda pair: pair[0])
    if not named:
        raise DataError(f"{path.name}: there are no tensors in this file")
    names = hashlib.sha256("\n".join(name for name, _ in named).encode()).hexdigest()
    return hashlib.sha256(f"{names} {digest(tensor for _, tensor in named)}".encode()).hexdigest()


def _shown(folder: Path) -> str:
    """Its newest files."""
    files = sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: -path.stat().st_mtime,
    )
    if not files:
        return "there is no file: tell the script to write there, with {out} or DEEPVM_AUDIT_DIR"
    names = [str(path.relative_to(folder)) for path in files[:_MOST_NAMES]]
    return f"there are {', '.join([*names, *(['...'] if len(files) > _MOST_NAMES else [])])}"


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{path.name}: not a file of safetensors: {error}") from None
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zipfile and torch each have their own
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path.name}: not a file of torch.save() with tensors alone: {reason}"
        ) from None


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "untyped_storage"):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors(f"{name}/{key}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _tensors(f"{name}/{index}", inner)
