"""What happens to a job, and what is done about it: the controller's inputs and acts."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.world import Reason
from deepvm.records import dataclass, field


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Launched:
    """The cloud has launched a machine."""

    id: str
    launched_s: float
    zone: str = ""  # the cloud's choice, if any; so is the price
    usd_per_hour: float | None = None


@dataclass(frozen=True)
class Refused:
    """The cloud will not make it."""

    id: str
    why: str


@dataclass(frozen=True)
class InstancesListed:
    """The cloud's list of the job's machines."""

    alive: Mapping[str, float]  # launch times
    ended: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # launch, end
    zones: Mapping[str, str] = field(default_factory=dict)  # where each is, if the cloud chose
    taken: frozenset[str] = frozenset()  # those that the cloud preempted


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat, with the signs of life of :mod:`deepvm.jobs.agent.liveness`."""

    id: str
    generation: int = 0  # 0: none
    step: int = 0
    warm: bool = False
    step_s: float = 0.0  # duration of the last step, 0 before the first
    spare: bool = True  # whether it is warm for the next generation even while this one runs
    # What it does before it can start any, as "fetches data: 3 of 10 GB"; empty when that is over
    preparing: str = ""
    idle_s: float | None = None  # since its trainers' newest sign of life; None: an older agent
    printed_s: float | None = None  # since they printed a line; None: they have not
    longest_s: float | None = None  # between two of their steps; None before the first
    between_s: float = 0.0  # passed between the first trainer's steps, of of_s of this generation
    of_s: float = 0.0
    address: str = ""  # where its memory node is, or a rendezvous can be
    port: int = 0
    scheduled: int = 0  # the newest scheduled step that it has
    seen: str = ""  # the digest of its desired state
    wait_s: float = 0.0  # how long it waits for an answer


@dataclass(frozen=True)
class Silent:
    """The connection of a machine's agent broke, and it has not come back."""

    id: str


@dataclass(frozen=True)
class Noticed:
    """The cloud preempts a machine at ``taken_s``; ``action``: its word for that."""

    id: str
    taken_s: float
    action: str = ""


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
    """How long a machine's preparation took."""

    id: str
    code_s: float
    setup_s: float
    data_s: float
    load_s: float  # of trainers


@dataclass(frozen=True)
class Stepped:
    """A generation's first trainer has done its first step, ``took_s`` after its start."""

    id: str
    generation: int
    took_s: float


@dataclass(frozen=True)
class OutputsLooked:
    """What a machine has kept of its outputs."""

    id: str
    files: int
    bytes: int
    unmatched: tuple[str, ...] = ()  # patterns that match nothing there
    others: tuple[str, ...] = ()  # some files that the training wrote, and that no pattern means
    why: str = ""  # why the newest are not kept


@dataclass(frozen=True)
class Started:
    """The trainers of a generation run on a machine."""

    id: str
    generation: int
    version: int | None = None  # what the first one resumed from
    done: int = 0  # the last step of those of an older generation, which were ended for it


@dataclass(frozen=True)
class Ended:
    """All trainers of a generation on a machine have ended."""

    id: str
    generation: int
    code: int  # the worst
    step: int = 0
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Safe:
    """A checkpoint of a generation survives the loss of its machines."""

    generation: int
    version: int
    reason: Reason
    stall_s: float = 0.0
    took_s: float = 0.0  # from the end of its step
    lasts: bool = True  # whether it survives the loss of the anchors too
    pending: bool = False  # whether it is on its way to where it does


@dataclass(frozen=True)
class CheckpointDurable:
    """A safe version survives the loss of the anchors now, ``took_s`` after the end of its step."""

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
    """A checkpoint will not come."""

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
    """The user wants a checkpoint; training continues."""


@dataclass(frozen=True)
class Failed:
    """A machine cannot train."""

    id: str
    why: str
    own: bool = False  # the machine is to blame, not the job, which continues with others
    data: bool = False  # it cannot have the job's data; else its setup failed
    lines: Sequence[str] | None = None  # the last that its cloud has of it


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


GenerationEvent: TypeAlias = (
    Safe | CheckpointDurable | CheckpointOnAnchorOnly | Unsaved | Started | Ended
)
# Events from which nothing follows
RecordedOnly: TypeAlias = Tick | Injected | FaultInjected | MetadataUnavailable | Prepared | Stepped
OfMachine: TypeAlias = (
    Launched | Refused | Heartbeat | Silent | Noticed | Rebalanced | Failed | OutputsLooked
)
OfJob: TypeAlias = InstancesListed | Stop | SaveNow | Downtime
Event: TypeAlias = GenerationEvent | RecordedOnly | OfMachine | OfJob


@dataclass(frozen=True)
class Request:
    """Ask the cloud for a machine; its record says where."""

    id: str


@dataclass(frozen=True)
class Release:
    """Have the cloud end a machine; may be repeated."""

    id: str


Act: TypeAlias = Request | Release
