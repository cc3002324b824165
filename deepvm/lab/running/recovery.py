"""What a supervisor records of a run: its attempts, with the parts of their recoveries.

Of a recovery nothing is left out, and nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepvm.lab.records import SUPERVISOR, write_document

Row = Mapping[str, Any]


class Recoveries:
    """Of one run, whose attempts come in their order."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When the first failure was seen since training was last restored."""
        self._reached = 0

    def parts(
        self, attempt: Row, events: Sequence[Row], steps: Sequence[Row]
    ) -> dict[str, float | None]:
        """Seconds of recovery before an attempt, and until its end was seen; None: unknown.

        An attempt after a failure that ends before all of its ranks have restored is part of the
        next one's restart.

        Args:
            attempt: its facts.
            events: of its ranks.
            steps: what rank 0 did in it.
        """
        parts: dict[str, float | None] = {}
        restored = [row for row in events if row["event"] == "restored"]
        if restored and {row["rank"] for row in restored} == set(range(attempt["world"])):
            if self._since is not None:
                # until restoring begins: ranks are there, have met, and have data and model
                begin = max(row["time"] - row["seconds"] for row in restored)
                back = max(row["time"] for row in restored)
                again = [row["time"] for row in steps if row["global_step"] < self._reached]
                parts["restart_s"] = begin - self._since
                parts["restore_s"] = max(row["seconds"] for row in restored)
                parts["replay_s"] = max(again, default=back) - back
            self._since = None
        if attempt["state"] != "completed" and self._since is None:
            self._since = attempt["detected"]
            struck = attempt["struck"]
            seen = [self._since - struck[key] for key in attempt["causes"] if key in struck]
            parts["detect_s"] = min(seen, default=None)
        self._reached = max(self._reached, attempt["reached_step"])
        return parts


def event_facts(rows: Sequence[Row]) -> dict[str, Any]:
    """What the ranks of an attempt have noted, for its record."""
    restored = [row["step"] for row in rows if row["event"] == "restored"]
    return {
        "resumed_step": restored[0] if restored else None,
        "damaged": sum(row.get("checkpoints", 0) for row in rows if row["event"] == "damaged"),
        "disk_errors": sum(row["event"] == "disk" for row in rows),
    }


def write_supervisor(
    folder: Path, state: str, wall_s: float, attempts: Sequence[Row], **more: Any
) -> None:
    """Write ``supervisor.json``."""
    failed = [one for one in attempts if one["state"] != "completed"]
    document = {
        "state": state,
        "restarts": len(failed) - (state == "failed" and bool(failed)),
        "wall_s": wall_s,
        "hangs": sum(one["state"] == "hung" for one in failed),
        "attempts": attempts,
        **more,
    }
    write_document(folder / SUPERVISOR, document)
