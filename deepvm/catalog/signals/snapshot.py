"""The signals that come with deepvm: dated snapshots of regions, for machines without network or credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from deepvm.catalog.signals.signal import Signal
from deepvm.io.times import parse_time


def snapshot_regions(folder: Path) -> tuple[str, ...]:
    """The regions of which a cloud's folder holds a snapshot, sorted."""
    return tuple(sorted(p.stem for p in folder.glob("*[0-9].json")))


@lru_cache(maxsize=1)
def snapshot(region: str, folder: Path) -> Mapping[str, Signal]:
    """The signals of a region by kind, origin ``snapshot``; empty where there is none."""
    if region not in snapshot_regions(folder):
        return {}
    document = json.loads((folder / f"{region}.json").read_text(encoding="utf-8"))
    return {
        s["kind"]: Signal(s["kind"], region, parse_time(s["observed_at"]), s["source"], s["data"], origin="snapshot")
        for s in document["signals"]
    }
