"""Signals in words: titles of kinds, ages, reasons of failures."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from deepvm.catalog.signals import signal as provider
from deepvm.catalog.signals.signal import Signal

_TITLES = {
    provider.SPECS: "specifications",
    provider.OFFERINGS: "offerings",
    provider.ZONES: "zones",
    provider.ON_DEMAND: "on-demand prices",
    provider.SPOT: "spot prices",
    provider.HISTORY: "past spot prices",
    provider.ADVISOR: "interruption rates",
    provider.QUOTAS: "quotas",
    provider.PLACEMENT: "placement scores",
}
_REASONS = {
    "credentials": "AWS credentials do not work",
    "expired": "the AWS session has expired",
    "permission": "AWS does not permit it",
    "region": "the account cannot use the region",
    "clock": "the clock of this machine is wrong",
    "throttled": "AWS asks for fewer requests",
    "timeout": "no answer in time",
    "network": "the source cannot be reached",
    "reply": "the answer cannot be used",
}


def title(kind: str) -> str:
    """What people call a kind of signal: ``spot prices``."""
    base, _, parameter = kind.partition(":")
    days = f" of {parameter} days" if base == provider.HISTORY and parameter else ""
    return f"{_TITLES.get(base, base)}{days}"


def reason(why: str) -> str:
    """What a :class:`deepvm.errors.CloudError`'s ``why`` means, in a few words."""
    return _REASONS.get(why, why)


def age(then: datetime, now: datetime) -> str:
    """How old something is, rounded down: ``12 s``, ``5 min``, ``2 h``, ``3 d``; the future counts as now."""
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        # From two of a unit on: "1 d" would hide whether 25 or 47 hours have passed.
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def listed(words: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def rows(signal: Signal) -> int:
    """How many facts a signal holds: types or zones; for spot prices and history, prices."""
    base = signal.kind.partition(":")[0]
    if base == provider.SPOT:
        return sum(len(zones) for zones in signal.data.values())
    if base == provider.HISTORY:
        return sum(len(points) for zones in signal.data.values() for points in zones.values())
    return len(signal.data)
