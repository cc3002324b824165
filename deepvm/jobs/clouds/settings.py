"""What a local machine's processes are told of their surroundings, in a file of its folder."""

from __future__ import annotations

from typing import TypedDict


class MachineSettings(TypedDict, total=False):
    """Where a machine is: its address, the interface of collectives, its metadata service.

    ``beat_s``: between heartbeats, at most. ``metadata_named``: whether its processes find that
    service by the variable of AWS's libraries, instead of the one that the computer has.
    """

    address: str
    interface: str
    metadata_host: str
    metadata_port: int
    metadata_named: bool
    beat_s: float
