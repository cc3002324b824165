"""Export a version to other file formats."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepvm.checkpoint.format.manifest import check_contents
from deepvm.errors import CheckpointError, MissingExtraError
from deepvm.io.atomic_write import hidden_path, sync


def export_safetensors(source: Path, target: Path) -> int:
    """Write the model of a verified version as safetensors; returns how many tensors.

    Names are those of ``state_dict()``, levels of nested ones joined by dots; a tensor with two
    names (tied weights) is written twice. Raises MissingExtraError, CheckpointError.
    """
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtraError("format", error.name or "safetensors", "train") from None

    try:
        # Mapped: a checkpoint's optimizer is twice as large as its model, and is not needed.
        tree = torch.load(source, map_location="cpu", mmap=True, weights_only=True)
        check_contents(tree)
        version = tree["version"]
        model = tree["model"]
    except CheckpointError as error:
        raise CheckpointError(f"{source}: holds no model: {error}") from None
    except Exception as error:  # torch has no error of its own for files that it cannot read
        raise CheckpointError(
            f"{source}: holds no model that can be read: {type(error).__name__}: {error}"
        ) from None
    tensors = {
        name: value.detach().resolve_conj().resolve_neg().clone().contiguous()
        for name, value in _leaves(model)
        if isinstance(value, torch.Tensor)
    }
    if not tensors:
        raise CheckpointError(f"{source}: its model has no tensors")
    try:
        with hidden_path(target) as hidden:
            hidden.touch(exist_ok=False)
            # As the user's umask has it; safetensors hides its files from others
            mode = hidden.stat().st_mode
            save_file(tensors, hidden, metadata={"format": "pt", "deepvm_version": str(version)})
            hidden.chmod(mode)
            sync(hidden)
            os.replace(hidden, target)
            sync(target.parent)
    except Exception as error:  # safetensors has none either
        raise CheckpointError(f"{target}: cannot be written: {error}") from None
    return len(tensors)


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree
