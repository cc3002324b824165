"""The signals that come with deepvm: a dated snapshot of a region, for machines without network or credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from deepvm.catalog.signals.signal import Signal
from deepvm.io.package_data import data_folder
from deepvm.io.times import parse_time


def snapshot_regions() -> tuple[str, ...]:
    """The regions of which a snapshot comes with deepvm, sorted."""
    return tuple(sorted(p.stem for p in _folder().glob("*-*-[0-9].json")))


@lru_cache(maxsize=1)
def snapshot(region: str) -> Mapping[str, Signal]:
    """The signals of a region by kind, origin ``snapshot``; empty where there is none."""
    file = _folder() / f"{region}.json"
    if region not in snapshot_regions():
        return {}
    document = json.loads(file.read_text(encoding="utf-8"))
    return {
        s["kind"]: Signal(s["kind"], region, parse_time(s["observed_at"]), s["source"], s["data"], origin="snapshot")
        for s in document["signals"]
    }


def _folder() -> Path:
    return data_folder() / "aws"
