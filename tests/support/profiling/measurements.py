"""Documents of profiling commands, with defaults: a test says only what it is about."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import Tables, entry_of

DAY = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
WORKLOAD = {
    "model": "resnet50",
    "resolution": 224,
    "batch": 64,
    "dtype": "float32",
    "optimizer": "adam",
}


def eflops_document(eflops: float = 1.2e12, **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "deepvm.eflops/1",
        "eflops": eflops,
        "images_per_s": 98.3,
        "spread": 0.02,
        "workload": WORKLOAD,
        "machine": {"processor": "x", "cores": 4},
    } | changes


def scaling_document(
    points: Any = ((1, 1), (2, 1.5), (4, 2.5), (8, 4)), **changes: Any
) -> dict[str, Any]:
    return {
        "schema_version": "deepvm.scaling/1",
        "workload": WORKLOAD,
        "hosts": ["a", "b"],
        "local": False,
        "points": [{"n": n, "seconds": 10 / s, "speedup": s} for n, s in points],
        "warnings": [],
    } | changes


def saturation_document(
    knee: float | None = 5, gbps: float | None = 10, upto: int = 8, **changes: Any
) -> dict[str, Any]:
    return {
        "schema_version": "deepvm.saturation/1",
        "transport": "tcp",
        "sender_gbps": gbps,
        "receiver_gbps": gbps,
        "times": [{"n": n, "seconds": [1 / n]} for n in range(1, upto + 1)],
        "n_sat_raw": knee,
        "n_sat_knee": knee,
        "interval": [4, 6],
    } | changes


def eflops(name: str, value: float = 1.2e12, when: datetime = DAY, **changes: Any) -> Entry:
    return entry_of(eflops_document(value, **changes), measured_at=when, instance_type=name)


def scaling(
    name: str,
    points: Any = ((1, 1), (2, 1.5), (4, 2.5), (8, 4)),
    when: datetime = DAY,
    **changes: Any,
) -> Entry:
    return entry_of(scaling_document(points, **changes), measured_at=when, instance_type=name)


def saturation(knee: float | None = 5, gbps: float | None = 10, **changes: Any) -> Entry:
    types = {
        "sender_type": changes.pop("sender", "g4dn.xlarge"),
        "receiver_type": changes.pop("receiver", "c5.xlarge"),
    }
    return entry_of(saturation_document(knee, gbps, **changes), measured_at=DAY, **types)


def tables(*entries: Entry) -> Tables:
    return Tables().merged(entries)
