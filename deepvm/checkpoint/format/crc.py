"""CRC-32 as zip files have it, by the fastest library that is installed.

On one core of a 2024 Xeon: zlib 4 GB/s, isal 27 GB/s, zlib-ng 28 GB/s; all of them release the interpreter's lock.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

Bytes = bytes | bytearray | memoryview


def _fastest() -> Callable[[Any, int], int]:
    for name in ("isal.isal_zlib", "zlib_ng.zlib_ng"):
        try:
            return importlib.import_module(name).crc32  # type: ignore[no-any-return]
        except ImportError:
            continue
    return zlib.crc32


_crc32 = _fastest()


def crc32(data: Bytes, start: int = 0) -> int:
    """CRC-32 of bytes, or of what came before (``start``) and these bytes."""
    return _crc32(data, start)
