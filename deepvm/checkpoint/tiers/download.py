"""Bring a version from elsewhere into a file."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator
from pathlib import Path

from deepvm.checkpoint.files.file_names import file_name
from deepvm.checkpoint.format.manifest import ChunkChecks, Manifest
from deepvm.errors import CheckpointError, DamagedError


def download(pieces: Generator[memoryview, None, None], manifest: Manifest, folder: Path, name: str) -> Path:
    """A new file in ``folder``, whole or not at all and without a commit record.

    Args:
        pieces: the version's bytes, in order; compared with their checksums as they come.
        manifest: what they should be.
        folder: made if need be.
        name: the version's, in errors.

    Raises:
        CheckpointError: the file cannot be written, and what ``pieces`` raises. DamagedError: the bytes are others.
    """
    path = folder / file_name(manifest.job, manifest.version)
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    checks = ChunkChecks(manifest, name)
    try:
        with contextlib.closing(pieces):
            folder.mkdir(parents=True, exist_ok=True)
            with hidden.open("xb") as file:
                for piece in pieces:
                    checks.add(piece)
                    file.write(piece)
                if file.tell() != manifest.size:
                    raise DamagedError(f"{name}: {file.tell()} bytes came in place of {manifest.size}")
        hidden.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
    return path
