"""What EC2 says of instances: since when, until when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from deepvm.core.json_types import JsonObject

ALIVE = ("pending", "running", "stopping", "stopped")
"""A stopped one still costs its disk and may restart; from shutting-down on, none is billed."""
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


@dataclass(frozen=True)
class Instance:
    """An instance; ``machine``: the name of its request.

    Times in seconds since the epoch, None if unknown.

    ``taken``: AWS has ended it, or could not start it.
    """

    id: str
    machine: str
    zone: str
    launched_s: float
    alive: bool = True
    ended_s: float | None = None
    taken: bool = False


def instance_of_row(row: JsonObject, machine_tag: str) -> Instance:
    """An instance of the answer of DescribeInstances."""
    tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags") or ()}
    launched_s = row["LaunchTime"].timestamp()
    alive = row["State"]["Name"] in ALIVE
    reasons = [
        str((row.get("StateReason") or {}).get("Code", "")),
        str(row.get("StateTransitionReason") or ""),
    ]
    ended_s = None if alive else ended_of(reasons[-1])
    return Instance(
        row["InstanceId"],
        tags.get(machine_tag, ""),
        str((row.get("Placement") or {}).get("AvailabilityZone", "")),
        launched_s,
        alive,
        None if ended_s is None else max(ended_s, launched_s),
        # Such as Server.SpotInstanceTermination; else Client.InstanceInitiatedShutdown, or who has
        # asked for its end.
        any(reason.startswith("Server.") for reason in reasons),
    )


def ended_of(reason: str) -> float | None:
    """The time in a reason such as ``User initiated (2026-11-21 09:00:00 GMT)``, if any."""
    found = _WHEN.search(reason)
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()


def kept(instances: Iterable[Instance]) -> dict[str, Instance]:
    """The instance that counts of each machine: the oldest that lives, else the oldest."""
    found: dict[str, Instance] = {}
    for instance in sorted(instances, key=lambda i: (not i.alive, i.launched_s, i.id)):
        found.setdefault(instance.machine, instance)
    return found
