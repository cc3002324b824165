"""This installation of deepvm as an archive, for machines on which only Python is installed."""

from __future__ import annotations

import gzip
import importlib.util
import io
import tarfile
from functools import cache
from importlib import metadata
from pathlib import Path

from deepvm.io.user_dirs import data_folder

_WITH = ("typer", "shellingham", "annotated_doc", "click", "typing_extensions")
"""Pure Python that the memory node's command needs; what is not installed here is not needed."""
_EXTRA = "run"
"""The extra of deepvm with which controllers run."""


@cache
def package_archive(*, data: bool = False) -> bytes:
    """The same bytes each time, as long as the files are the same.

    ``data``: with the embedded catalogs, for a controller; and without what pip installs there, maybe a newer one.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in ("deepvm", *(() if data else _WITH)):
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                continue
            origin = Path(spec.origin)
            root = origin.parent if spec.submodule_search_locations else origin
            files = sorted(root.rglob("*")) if root.is_dir() else [root]
            for file in files:
                if file.is_file() and file.suffix != ".pyc" and "_data" not in file.parts:
                    _add(archive, file, str(file.relative_to(root.parent)))
        for file in sorted(data_folder().rglob("*")) if data else ():
            if file.is_file():
                _add(archive, file, f"deepvm/_data/{file.relative_to(data_folder())}")
    return gzip.compress(raw.getvalue(), 6, mtime=0)


def requirements() -> list[str]:
    """What a controller needs besides deepvm, as pip reads it: of this installation's own metadata."""
    try:
        rows = metadata.requires("deepvm") or []
    except metadata.PackageNotFoundError:
        rows = []
    needed = [row for row in rows if "extra ==" not in row]
    for row in rows:
        what, _, marker = row.partition(";")
        if marker.strip() == f"extra == '{_EXTRA}'":
            needed.append(what.strip())
    return needed


def _add(archive: tarfile.TarFile, file: Path, name: str) -> None:
    member, data = tarfile.TarInfo(name), file.read_bytes()
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))
