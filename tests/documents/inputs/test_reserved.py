"""Files of reserved VMs: what is read, and what is refused with its place."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deepvm.documents.inputs.reserved import load_reserved
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


def test_a_pool_ends_after_it_begins(tmp_path: Path) -> None:
    change = {"begins": "2026-12-01T11:30:00Z", "until": "2026-12-01T12:30:00+01:00"}
    with pytest.raises(CatalogFormatError, match=r"pools\[0\].begins: expected a time before"):
        load_reserved(written(tmp_path, {**POOL, **change}))


@pytest.mark.parametrize("name", ["a b", "a@b"])
def test_names_are_safe(tmp_path: Path, name: str) -> None:
    with pytest.raises(CatalogFormatError, match=r"invalid value for pools\[0\].name"):
        load_reserved(written(tmp_path, {**POOL, "name": name}))


def test_names_are_there_once(tmp_path: Path) -> None:
    with pytest.raises(CatalogFormatError, match=r"pools\[1\].name: expected every name once"):
        load_reserved(written(tmp_path, POOL, POOL))
