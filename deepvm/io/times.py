"""Moments in UTC as ISO 8601."""

from __future__ import annotations

from datetime import datetime, timezone


def parse_time(text: str) -> datetime:
    """Parse a moment with a time zone, or a day (its midnight in UTC); UTC, whole seconds.

    Raises:
        ValueError: it is neither.
    """
    # Python 3.10 reads no Z.
    moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
    if moment.tzinfo is None:
        if len(text) > len("2026-01-31"):
            raise ValueError(f"{text!r} names no time zone")
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return moment.astimezone(timezone.utc).replace(microsecond=0)
    except OverflowError:
        raise ValueError(f"{text!r} is out of range") from None


def format_time(moment: datetime) -> str:
    """ISO 8601 in UTC, whole seconds, with ``Z``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_text(seconds: float, timespec: str = "seconds") -> str:
    """A time since the epoch as ISO 8601 in UTC, with ``Z``."""
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec=timespec)
    return text.replace("+00:00", "Z")
