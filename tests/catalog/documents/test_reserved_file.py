"""Files of reserved VMs: what is read, and what is refused with its place."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deepvm.catalog.documents.reserved_file import load_reserved
from deepvm.errors import CatalogFormatError

POOL = {"name": "block-1", "instance_type": "p5.48xlarge", "count": 4, "usd_per_hour": 31.464}


def written(tmp_path: Path, *pools: dict[str, Any], **changes: Any) -> Path:
    file = tmp_path / "reserved.json"
    file.write_text(
        json.dumps({"schema_version": "deepvm.reserved/1", "pools": list(pools), **changes})
    )
    return file


def test_a_file_is_read(tmp_path: Path) -> None:
    more = {
        "begins": "2026-11-30T11:30:00Z",
        "until": "2026-12-01T11:30:00Z",
        "region": "us-east-1",
        "zone": "use1-az4",
        "kind": "capacity-block",
    }
    (found,) = load_reserved(written(tmp_path, {**POOL, **more}))
    assert found.usd_per_hour == Decimal("31.464") and found.kind == "capacity-block"
    assert found.begins == datetime(2026, 11, 30, 11, 30, tzinfo=timezone.utc)
    assert found.until == datetime(2026, 12, 1, 11, 30, tzinfo=timezone.utc)


def test_only_name_type_count_and_price_are_needed(tmp_path: Path) -> None:
    (found,) = load_reserved(written(tmp_path, POOL))
    assert (found.until, found.region, found.zone, found.kind) == (None, "", "", "reservation")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"count": 0}, "count"),
        ({"count": 1.5}, "count"),
        ({"usd_per_hour": 0}, "usd_per_hour"),
        ({"usd_per_hour": -1}, "usd_per_hour"),
        ({"usd_per_hour": 0.1234567}, "usd_per_hour"),
        ({"until": "soon"}, "until"),
        ({"until": 1_700_000_000}, "until"),
        ({"begins": "soon"}, "begins"),
        ({"begins": "2026-12-01T11:30:00Z", "until": "2026-12-01T12:30:00+01:00"}, "begins"),
        ({"kind": "spot"}, "kind"),
        ({"name": "a b"}, "name"),
        ({"name": "a@b"}, "name"),
        ({"price": 3}, "price"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], place: str
) -> None:
    with pytest.raises(CatalogFormatError, match=rf"pools.*{place}|{place}.*pools"):
        load_reserved(written(tmp_path, {**POOL, **change}))


def test_names_are_there_once(tmp_path: Path) -> None:
    with pytest.raises(CatalogFormatError, match="block-1.*twice"):
        load_reserved(written(tmp_path, POOL, POOL))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": "deepvm.reserved/2", "pools": []}']
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "reserved.json"
    file.write_text(text)
    with pytest.raises(CatalogFormatError):
        load_reserved(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CatalogFormatError):
        load_reserved(tmp_path / "none.json")
