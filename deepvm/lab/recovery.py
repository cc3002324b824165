"""The parts of recoveries, of which nothing is left out and nothing counts twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Recoveries:
    """Of one run, whose attempts come in their order."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When the first failure was seen since training was last restored."""
        self._reached = 0

    def parts(
        self,
        attempt: Mapping[str, Any],
        restored: Sequence[Mapping[str, Any]],
        steps: Iterable[Mapping[str, Any]],
    ) -> dict[str, float | None]:
        """Seconds of recovery before an attempt, and until its end was seen; None: unknown.

        An attempt behind a failure that ends before all of its ranks have restored is part of the
        next one's restart.

        Args:
            attempt: its facts.
            restored: when each of its ranks had restored.
            steps: what rank 0 did in it.
        """
        found: dict[str, float | None] = {}
        if {row["rank"] for row in restored} == set(range(attempt["world"])) and restored:
            if self._since is not None:
                # until restoring begins: ranks are there, have met, and have data and model
                found["restart_s"] = (
                    max(row["time"] - row["seconds"] for row in restored) - self._since
                )
                found["restore_s"] = max(row["seconds"] for row in restored)
                found["replay_s"] = _replay_s(
                    steps, max(row["time"] for row in restored), self._reached
                )
            self._since = None
        if attempt["state"] != "completed" and self._since is None:
            self._since, struck = attempt["detected"], attempt["struck"]
            seen = [self._since - struck[key] for key in attempt["causes"] if key in struck]
            found["detect_s"] = min(seen, default=None)
        self._reached = max(self._reached, attempt["reached_step"])
        return found


def event_facts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the ranks of an attempt have noted, for its record."""
    restored = [row["step"] for row in rows if row["event"] == "restored"]
    return {
        "resumed_step": restored[0] if restored else None,
        "damaged": sum(row.get("checkpoints", 0) for row in rows if row["event"] == "damaged"),
        "disk_errors": sum(row["event"] == "disk" for row in rows),
    }


def _replay_s(steps: Iterable[Mapping[str, Any]], since: float, reached: int) -> float:
    """How long the steps took that an earlier attempt had done already."""
    return max((row["time"] - since for row in steps if row["global_step"] < reached), default=0.0)
