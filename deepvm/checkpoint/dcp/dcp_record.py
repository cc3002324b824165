"""The commit record of a DCP checkpoint: torch's pickled metadata, and behind it the checksums of all items."""

from __future__ import annotations

import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata

from deepvm.checkpoint.format.checksums import crc32
from deepvm.errors import DamagedError

_MAGIC = b"deepvm.dcp/1\n"
_TRAILER = struct.Struct("<QI")


_HARMLESS = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
}


class Piece(NamedTuple):
    """An item in a data file, and the CRC-32 of its bytes."""

    name: str
    offset: int
    length: int
    crc: int


def seal(pickled: bytes, pieces: list[Piece]) -> bytes:
    """The pickle, the checksums of all items, and a trailer with the CRC-32 of both."""
    names = sorted({p.name for p in pieces})
    rows = {name: [[p.offset, p.length, p.crc] for p in pieces if p.name == name] for name in names}
    body = pickled + json.dumps({"pieces": rows}, separators=(",", ":")).encode()
    trailer = _TRAILER.pack(len(pickled), crc32(body))
    return body + trailer + struct.pack("<I", crc32(trailer)) + _MAGIC


def unseal(data: bytes, path: Path) -> tuple[Metadata, dict[tuple[str, int, int], int]]:
    """Read what :func:`seal` made.

    Args:
        data: all bytes of the file.
        path: its name, for errors.

    Returns:
        The metadata, and the CRC-32 of each item by its file, offset and length.

    Raises:
        DamagedError: the bytes are not those that were written, or hold what does not belong into metadata.
    """
    end = len(data) - len(_MAGIC) - 4 - _TRAILER.size
    if end < 0 or not data.endswith(_MAGIC):
        raise DamagedError(f"{path}: it has no checksums: it is damaged, or was written by something else")
    trailer = data[end : end + _TRAILER.size]
    length, crc = _TRAILER.unpack(trailer)
    own = struct.unpack_from("<I", data, end + _TRAILER.size)[0]
    if crc32(trailer) != own or crc32(memoryview(data)[:end]) != crc or length > end:
        raise DamagedError(f"{path}: it is damaged")
    try:
        rows = json.loads(data[length:end])["pieces"]
        crcs = {(name, int(o), int(n)): int(c) for name, own in rows.items() for o, n, c in own}
        metadata = _Unpickler(io.BytesIO(data[:length])).load()
    except (ValueError, TypeError, KeyError, AttributeError, pickle.UnpicklingError) as error:
        raise DamagedError(f"{path}: it cannot be read: {error}") from None
    if not isinstance(metadata, Metadata):
        raise DamagedError(f"{path}: it holds something else than metadata")
    return metadata, crcs


class _Unpickler(pickle.Unpickler):
    """Loads DCP's own records and nothing that could run other code: a checksum says nothing about who wrote."""

    def find_class(self, module: str, name: str) -> Any:
        """A class that metadata consists of.

        Raises:
            pickle.UnpicklingError: it is another.
        """
        if module == dcp_metadata.__name__ and isinstance(found := getattr(dcp_metadata, name, None), type):
            return found
        if (module, name) == (_StorageInfo.__module__, _StorageInfo.__name__):
            return _StorageInfo
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) in _HARMLESS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into metadata")
