"""This installation of deepvm for other machines: where to get it, or all of it as an archive."""

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from deepvm.io.user_dirs import data_folder
from deepvm.records import dataclass, field

_NAME = "deepvm"
# Pure Python that the memory node's command needs; what is not installed here is not needed
_WITH = ("typer", "shellingham", "annotated_doc", "click", "typing_extensions")
_EXTRA = "run"  # The extra of deepvm with which controllers run
# What deepvm consists of: a folder in which people work holds more than that
_KINDS = frozenset(
    {".py", ".sh", ".typed", ".css", ".js", ".json", ".csv", ".yaml", ".j2", ".md", ".mplstyle"}
)
_PLAIN_URL = re.compile(r"https?://[\w.,:/@+=~%&#-]+", re.ASCII)


@dataclass(frozen=True)
class OwnPackage:
    """What pip on another machine may install to have the deepvm that runs here."""

    pin: str  # ==VERSION or @URL; empty if no other machine can get it
    place: str = ""  # where it was installed from
    wheel_name: str = ""
    wheel: bytes = field(default=b"", repr=False)  # without a pin

    def requirement(self, extra: str = "") -> str:
        """As for pip; empty without ``pin``. ``extra``: such as ``[train]``."""
        if self.pin:
            return f"{_NAME}{extra}{self.pin}"
        return ""


def own_package() -> OwnPackage:
    """The deepvm that runs here, by its installer's metadata (PEP 610)."""
    try:
        found = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        return OwnPackage("", str(Path(__file__).parents[2]))
    text = found.read_text("direct_url.json")
    if text is None:  # of an index, whose releases have names
        return OwnPackage(f"=={found.version}")
    origin = json.loads(text)
    place = str(origin.get("url", ""))
    if url := _url(origin):
        return OwnPackage(f"@{url}", place)
    return OwnPackage("", place.removeprefix("file://"), *_wheel(found))


def _url(origin: dict[str, Any]) -> str:
    url = str(origin.get("url", ""))
    vcs = origin.get("vcs_info")
    marks = []
    if vcs:
        url = f"{url}@{vcs['commit_id']}"
    hashes = (origin.get("archive_info") or {}).get("hashes") or {}
    if "sha256" in hashes:
        marks.append(f"sha256={hashes['sha256']}")
    if origin.get("subdirectory"):
        marks.append(f"subdirectory={origin['subdirectory']}")
    whole = f"{url}#{'&'.join(marks)}" if marks else url
    if "dir_info" in origin or not _PLAIN_URL.fullmatch(whole):
        return ""
    if vcs:
        return f"{vcs['vcs']}+{whole}"
    return whole


def _wheel(distribution: metadata.Distribution) -> tuple[str, bytes]:
    files = {name: file.read_bytes() for file, name in _files(data=True)}
    info = f"{_NAME}-{distribution.version}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (distribution.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: deepvm\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o644 << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return f"{_NAME}-{distribution.version}-py3-none-any.whl", raw.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@cache
def package_archive(*, data: bool = False, libraries: bool = True) -> bytes:
    """For machines on which only Python is installed; of the same files the same bytes.

    ``data``: with the embedded catalogs. ``libraries``: with what the memory node's command needs.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for file, name in (*_files(data=data), *(_libraries() if libraries else ())):
            member = tarfile.TarInfo(name)
            content = file.read_bytes()
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), 6, mtime=0)


def _files(*, data: bool) -> Iterator[tuple[Path, str]]:
    package = Path(__file__).resolve().parents[1]
    roots = [(package, _NAME), *([(data_folder(), f"{_NAME}/_data")] if data else ())]
    for root, name in roots:
        for file in sorted(root.rglob("*")):
            inside = file.relative_to(root)
            hidden = inside.parts[0] == "_data" or any(p.startswith(".") for p in inside.parts)
            if file.suffix in _KINDS and not hidden and file.is_file():
                yield file, f"{name}/{inside.as_posix()}"


def _libraries() -> Iterator[tuple[Path, str]]:
    for name in _WITH:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        root = Path(spec.origin)
        if spec.submodule_search_locations:
            root = root.parent
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.is_file() and file.suffix != ".pyc":
                yield file, str(file.relative_to(root.parent))


def requirements() -> list[str]:
    """A controller's requirements besides deepvm, for pip."""
    try:
        rows = metadata.requires(_NAME) or []
    except metadata.PackageNotFoundError:
        rows = []
    needed = [row for row in rows if "extra ==" not in row]
    for row in rows:
        what, _, marker = row.partition(";")
        if marker.strip() == f"extra == '{_EXTRA}'":
            needed.append(what.strip())
    return needed
