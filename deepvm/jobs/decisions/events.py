"""What happens to a job, and what is done about it: the controller's inputs and acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.world import Reason

# --- what happens ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Launched:
    """The cloud has launched a machine; ``zone``, ``usd_per_hour``: the cloud's choice, if any."""

    id: str
    launched_s: float
    zone: str = ""
    usd_per_hour: float | None = None


@dataclass(frozen=True)
class Refused:
    """The cloud will not make it."""

    id: str
    why: str


@dataclass(frozen=True)
class InstancesListed:
    """The cloud's list of the job's machines: launch times, and (launch, end) of ended ones.

    ``zones``: where each is, if that was left to the cloud. ``taken``: those of which it says that
    it took them back.
    """

    alive: Mapping[str, float]
    ended: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat: the agent's generation (0: none), its step, and whether it is warm.

    ``step_s``: duration of the last step, 0 before the first. ``spare``: whether it can even while
    this one runs.
    ``preparing``: what it does before it can start any, as "fetches data: 3 of 10 GB"; empty when
    that is over.
    ``idle_s``: since the newest sign of life of its trainers, None where the agent does not say;
    ``printed_s``: since they printed a line, None if they have not; ``longest_s``: the longest time
    between two of their steps, None before the first (:mod:`deepvm.jobs.agent.liveness`).
    ``between_s``: of ``of_s`` seconds of this generation, how many have passed between its first
    trainer's steps.
    """

    id: str
    generation: int = 0
    step: int = 0
    warm: bool = False
    step_s: float = 0.0
    spare: bool = True
    preparing: str = ""
    idle_s: float | None = None
    printed_s: float | None = None
    longest_s: float | None = None
    between_s: float = 0.0
    of_s: float = 0.0


@dataclass(frozen=True)
class Silent:
    """The connection of a machine's agent broke, and it has not come back."""

    id: str


@dataclass(frozen=True)
class Noticed:
    """The cloud takes a machine back at ``taken_s``."""

    id: str
    taken_s: float


@dataclass(frozen=True)
class Rebalanced:
    """The cloud recommends a rebalance: preemption is likelier, so a checkpoint is worthwhile."""

    id: str


@dataclass(frozen=True)
class MetadataUnavailable:
    """A machine's metadata service refuses: it will go without a notice."""

    id: str
    why: str


@dataclass(frozen=True)
class Prepared:
    """How long a machine's preparation took: code, setup, data, and loading of trainers."""

    id: str
    code_s: float
    setup_s: float
    data_s: float
    load_s: float


@dataclass(frozen=True)
class Stepped:
    """A generation's first trainer has done its first step, ``took_s`` after its start."""

    id: str
    generation: int
    took_s: float


@dataclass(frozen=True)
class Started:
    """The trainers of a generation run on a machine.

    ``version``: what the first one resumed from, else None.

    ``done``: the last step of those of an older generation, which were ended for it; 0 if there
    were none.
    """

    id: str
    generation: int
    version: int | None = None
    done: int = 0


@dataclass(frozen=True)
class Ended:
    """All trainers of a generation on a machine have ended: worst exit code, last step."""

    id: str
    generation: int
    code: int
    step: int = 0


@dataclass(frozen=True)
class Safe:
    """A version of a generation survives the loss of its machines.

    ``stall_s``: for how long it stalled training. ``took_s``: from the end of its step until it was
    safe. ``lasts``: whether it is known to survive the loss of the anchors too; ``pending``:
    whether it is on its way to where it does.
    """

    generation: int
    version: int
    reason: Reason
    stall_s: float = 0.0
    took_s: float = 0.0
    lasts: bool = True
    pending: bool = False


@dataclass(frozen=True)
class CheckpointDurable:
    """A version that was safe before survives the loss of the anchors now, too.

    ``took_s``: from the end of its step until then.
    """

    generation: int
    version: int
    took_s: float


@dataclass(frozen=True)
class CheckpointOnAnchorOnly:
    """A safe checkpoint would not survive loss of the anchors; ``why``: the reason, or ""."""

    generation: int
    version: int
    why: str


@dataclass(frozen=True)
class Unsaved:
    """A version will not come."""

    generation: int
    why: str
    reason: Reason


@dataclass(frozen=True)
class Stop:
    """The user ends the job; with a checkpoint first, unless ``at_once``."""

    why: str
    at_once: bool = False


@dataclass(frozen=True)
class SaveNow:
    """The user wants a version; training continues."""


@dataclass(frozen=True)
class Failed:
    """A machine cannot train: its setup failed, or it cannot have the job's data (``data``).

    ``own``: the machine is to blame, not the job, which continues with others.
    """

    id: str
    why: str
    own: bool = False
    data: bool = False


@dataclass(frozen=True)
class Downtime:
    """There was no controller since ``since_s``; now there is."""

    since_s: float


@dataclass(frozen=True)
class Injected(Injection):
    """The user orders preemptions."""


@dataclass(frozen=True)
class FaultInjected:
    """A fault is about to be injected into a machine; ``grace_s``: None without a notice."""

    id: str
    blow: str
    grace_s: float | None


Event: TypeAlias = (
    Tick
    | Launched
    | Refused
    | InstancesListed
    | Heartbeat
    | Silent
    | Noticed
    | Rebalanced
    | MetadataUnavailable
    | Prepared
    | Stepped
    | Started
    | Ended
    | Safe
    | CheckpointDurable
    | CheckpointOnAnchorOnly
    | Unsaved
    | Stop
    | SaveNow
    | Failed
    | Downtime
    | Injected
    | FaultInjected
)

# --- what is done ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Ask the cloud for a machine; its record says where."""

    id: str


@dataclass(frozen=True)
class Release:
    """Have the cloud end a machine; may be repeated."""

    id: str


Act: TypeAlias = Request | Release
