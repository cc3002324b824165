"""This installation of deepvm as an archive, for machines on which only Python is installed."""

from __future__ import annotations

import gzip
import importlib.util
import io
import tarfile
from functools import cache
from pathlib import Path

_WITH = ("typer", "shellingham", "annotated_doc", "click", "typing_extensions")
"""Pure Python that the memory node's command needs; what is not installed here is not needed."""


@cache
def package_archive() -> bytes:
    """The same bytes each time, as long as the files are the same."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in ("deepvm", *_WITH):
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                continue
            origin = Path(spec.origin)
            root = origin.parent if spec.submodule_search_locations else origin
            files = sorted(root.rglob("*")) if root.is_dir() else [root]
            for file in files:
                if file.is_file() and file.suffix != ".pyc" and "_data" not in file.parts:
                    _add(archive, file, str(file.relative_to(root.parent)))
    return gzip.compress(raw.getvalue(), 6, mtime=0)


def _add(archive: tarfile.TarFile, file: Path, name: str) -> None:
    member, data = tarfile.TarInfo(name), file.read_bytes()
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))
