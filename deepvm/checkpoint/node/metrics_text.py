"""A node's status as Prometheus reads it: one line for each number, in its text format 0.0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[Mapping[str, str], float]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    """A metric: its name, its kind, what it says, and its samples in a status."""

    name: str
    kind: str
    help: str
    samples: Callable[[Mapping[str, Any]], Iterable[_Sample]]


def _one(*path: str) -> Callable[[Mapping[str, Any]], Iterable[_Sample]]:
    """The number at a place of the status; no sample where there is none."""

    def find(status: Mapping[str, Any]) -> Iterable[_Sample]:
        value: Any = status
        for name in path:
            if name not in value:
                return
            value = value[name]
        yield {}, float(value)

    return find


def _slots(status: Mapping[str, Any]) -> Iterable[_Sample]:
    return [({"state": state}, status["memory"][f"{state}_slots"]) for state in ("free", "used")]


def _refused(status: Mapping[str, Any]) -> Iterable[_Sample]:
    return [
        ({"reason": reason}, status["refused"].get(reason, 0)) for reason in ("full", "unproven")
    ]


def _held(status: Mapping[str, Any]) -> Iterable[_Sample]:
    jobs = sorted({version["job"] for version in status["versions"]})
    for job in jobs:
        for state in ("receiving", "finishing", "complete"):
            rows = [v for v in status["versions"] if (v["job"], v["state"]) == (job, state)]
            yield {"job": job, "state": state}, len(rows)


def _newest(
    value: Callable[[Mapping[str, Any]], float], counts: Callable[[Mapping[str, Any]], bool]
) -> Callable[[Mapping[str, Any]], Iterable[_Sample]]:
    """For each job the value of its newest version that counts."""

    def find(status: Mapping[str, Any]) -> Iterable[_Sample]:
        newest: dict[str, Mapping[str, Any]] = {}
        for version in filter(counts, status["versions"]):
            if (
                version["job"] not in newest
                or version["version"] > newest[version["job"]]["version"]
            ):
                newest[version["job"]] = version
        for job in sorted(newest):
            yield {"job": job}, value(newest[job])

    return find


def _created(version: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(version["created_at"]).timestamp()


def _complete(version: Mapping[str, Any]) -> bool:
    return bool(version["state"] == "complete")


METRICS = (
    Metric(
        "deepvm_node_uptime_seconds", "gauge", "Seconds since the node began.", _one("uptime_s")
    ),
    Metric("deepvm_node_stopping", "gauge", "1 while the node is about to end.", _one("stopping")),
    Metric(
        "deepvm_node_memory_limit_bytes",
        "gauge",
        "Memory for all versions.",
        _one("memory", "limit_bytes"),
    ),
    Metric(
        "deepvm_node_memory_allocated_bytes",
        "gauge",
        "Memory in slots.",
        _one("memory", "allocated_bytes"),
    ),
    Metric("deepvm_node_slots", "gauge", "Slots with a version (used) and without (free).", _slots),
    Metric("deepvm_node_versions", "gauge", "Versions in memory, by job and state.", _held),
    Metric(
        "deepvm_node_newest_complete_version",
        "gauge",
        "Steps in the newest complete version in memory.",
        _newest(lambda v: float(v["version"]), _complete),
    ),
    Metric(
        "deepvm_node_newest_complete_timestamp_seconds",
        "gauge",
        "When that version was complete, Unix time.",
        _newest(_created, _complete),
    ),
    Metric(
        "deepvm_node_newest_durable_version",
        "gauge",
        "Steps in the newest version in memory that is on the disk or in the bucket, too.",
        _newest(lambda v: float(v["version"]), lambda v: bool(v["durable"])),
    ),
    Metric(
        "deepvm_node_versions_complete_total",
        "counter",
        "Versions that arrived.",
        _one("counts", "complete"),
    ),
    Metric(
        "deepvm_node_versions_dropped_total",
        "counter",
        "Versions that were given up.",
        _one("counts", "dropped"),
    ),
    Metric(
        "deepvm_node_versions_refused_total",
        "counter",
        "Versions without room.",
        _one("counts", "busy"),
    ),
    Metric(
        "deepvm_node_received_bytes_total",
        "counter",
        "Bytes that arrived undamaged.",
        _one("counts", "received_bytes"),
    ),
    Metric(
        "deepvm_node_damaged_pieces_total",
        "counter",
        "Pieces whose checksum was another; they are sent again.",
        _one("counts", "damaged_pieces"),
    ),
    Metric(
        "deepvm_node_duplicate_pieces_total",
        "counter",
        "Pieces that came twice.",
        _one("counts", "duplicates"),
    ),
    Metric(
        "deepvm_node_flush_waiting",
        "gauge",
        "Complete versions that wait for the disk.",
        _one("flush", "waiting"),
    ),
    Metric("deepvm_node_flushed_total", "counter", "Versions written.", _one("flush", "flushed")),
    Metric(
        "deepvm_node_flush_failures_total",
        "counter",
        "Attempts to write that failed.",
        _one("flush", "failed"),
    ),
    Metric(
        "deepvm_node_flush_seconds_total",
        "counter",
        "How long all writes took.",
        _one("flush", "total_s"),
    ),
    Metric(
        "deepvm_node_flush_last_seconds",
        "gauge",
        "How long the last write took.",
        _one("flush", "last_s"),
    ),
    Metric(
        "deepvm_node_connections",
        "gauge",
        "Connections that have shown the token.",
        _one("connections"),
    ),
    Metric(
        "deepvm_node_connections_limit", "gauge", "The most of them.", _one("connections_limit")
    ),
    Metric(
        "deepvm_node_connections_unproven",
        "gauge",
        "Connections without it so far.",
        _one("unproven"),
    ),
    Metric(
        "deepvm_node_connections_total",
        "counter",
        "Connections served since the node began.",
        _one("served"),
    ),
    Metric(
        "deepvm_node_connections_refused_total",
        "counter",
        "Connections refused, by reason.",
        _refused,
    ),
)


def metrics_text(status: Mapping[str, Any]) -> str:
    """The status of a node (``deepvm.memory-node/1``) in Prometheus's text format."""
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [
            f"{metric.name}{_labels(labels)} {_number(value)}"
            for labels, value in metric.samples(status)
        ]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    rows = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{rows}}}" if rows else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
