"""A job as objects of a bucket: the mirror of its history, its logs and its commands.

The mirror is one object that is only ever replaced where it is still the one that the writer has
read. It names the head that may write it: whoever starts another head writes that one's number
first, and the older ones are fenced.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CloudError, DataError, DeepVMError
from deepvm.jobs.cloud import Objects, UnknownError

MIRROR = "history.json.gz"
FOLDER = "folder/"
LOGS = "logs/"
COMMANDS = "commands/"
ANSWERS = "answers/"
_SCHEMA = "deepvm.head/1"
_KEPT = ("secret", "code.tar.gz")
"""What a controller needs of its job's folder."""
_PIECE = 8_000_000
"""Bytes of an object of it: each must be sent within a minute."""


class FencedError(DeepVMError):
    """Another head runs the job now; this one must do nothing more."""

    exit_code = CloudError.exit_code


def encoded(copy: JsonObject, head: int, writer: str, number: int, nonce: str = "") -> bytes:
    """A mirror of the rows of a job.

    ``head``: which may write it. ``writer``: who has, empty for the user's own computer.
    ``number``: grows with each that this writer writes. ``nonce``: of the controller, for messages
    to it.
    """
    about = {"head": head, "writer": writer, "number": number, "nonce": nonce}
    return packed({"schema_version": _SCHEMA, **about, **copy})


def decoded(data: bytes) -> JsonDict:
    """A mirror. Raises UnknownError: it is none."""
    found = unpacked(data)
    if found.get("schema_version") != _SCHEMA:
        raise UnknownError(
            f"the mirror of the job is of another deepvm ({found.get('schema_version')})"
        )
    return found


def packed(document: JsonObject) -> bytes:
    """An object of the bucket."""
    return gzip.compress(json.dumps(document).encode(), 5, mtime=0)


def unpacked(data: bytes) -> JsonDict:
    """What was packed. Raises UnknownError: it cannot be read."""
    try:
        return dict(json.loads(gzip.decompress(data)))
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise UnknownError(f"an object of the head cannot be read: {error}") from None


def put_folder(objects: Objects, folder: Path) -> None:
    """Send what a controller needs of its job's folder.

    Raises DataError, UnknownError, RefusedError.
    """
    objects.remove(objects.keys(FOLDER))
    for name in _KEPT:
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"{folder / name}: {error.strerror or error}") from None
        for number, start in enumerate(range(0, len(data), _PIECE)):
            objects.put(f"{FOLDER}{name}/{number:04}", data[start : start + _PIECE])


def get_folder(objects: Objects, folder: Path) -> bool:
    """Fetch it; whether it was there. Raises UnknownError, RefusedError."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    keys = objects.keys(FOLDER)
    for name in _KEPT:
        pieces = [objects.get(key) for key in keys if key.startswith(f"{FOLDER}{name}/")]
        if pieces:
            (folder / name).touch(mode=0o600)
            (folder / name).write_bytes(b"".join(one.data for one in pieces if one is not None))
    return bool(keys)
