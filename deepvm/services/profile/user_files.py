"""Read measurements from files: exported tables, documents of ``profile``, CSV of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS, FUTURE, Entry
from deepvm.catalog.measured.tables import entry_of, read_tables
from deepvm.core.units import parse_time
from deepvm.documents.inputs.tables import read_document
from deepvm.errors import RequestError
from deepvm.services.profile.saving import entry_from


def read_json(
    path: Path, measured_at: str, types: Mapping[str, str], say: Callable[[str], None]
) -> Sequence[Entry]:
    """Measurements of a JSON file, which may be several exported ones.

    Raises:
        CatalogFormatError: not valid. RequestError: a type is missing, or given twice.
    """
    document = read_document(path)
    if not str(document.get("schema_version")).startswith("deepvm.tables/"):
        moment = _moment(measured_at, path)
        return [entry_from(document, say, **types, measured_at=moment, name=str(path))]
    for option, value in {**types, "measured_at": measured_at}.items():
        if value:
            allowed = "nothing with exported tables, which say so themselves"
            raise RequestError(option, value, allowed)
    return read_tables(path).entries


def read_csv(
    path: Path, measured_at: str, instance_type: str, workload: str, say: Callable[[str], None]
) -> Entry:
    """A speed-up curve of a CSV with the columns n and speedup, or n and seconds."""
    from deepvm.profiling.fit.diagnostics import point_doubts
    from deepvm.profiling.fit.speedup_points import read_medians, read_points

    for text in point_doubts(read_points(path)):
        say(f"Note: {path}: {text}")
    document = {
        "schema_version": DOCUMENT_VERSIONS["scaling"],
        "workload": {"model": workload},
        "local": False,
        "points": [{"n": int(n), "seconds": None, "speedup": s} for n, s in read_medians(path)],
        "warnings": [],
    }
    moment = _moment(measured_at, path)
    return entry_of(document, measured_at=moment, instance_type=instance_type, name=str(path))


def _moment(text: str, path: Path) -> datetime:
    """When something was measured: as given, else when its file was written."""
    now = datetime.now(timezone.utc)
    if not text:
        return min(now, datetime.fromtimestamp(path.stat().st_mtime, timezone.utc))
    with suppress(ValueError):
        moment = parse_time(text)
        if moment.year >= 2000 and moment - now <= FUTURE:
            return moment
    allowed = "a day or a time with a zone, not in the future, such as 2026-01-31T12:00:00Z"
    raise RequestError("measured_at", text, allowed)
