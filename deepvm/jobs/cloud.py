"""What the controller needs of a cloud, whichever it is."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

from deepvm.errors import CloudError, DeepVMError
from deepvm.jobs.decisions.events import InstancesListed
from deepvm.jobs.decisions.world import MachineRecord
from deepvm.records import dataclass, field


class UnknownError(DeepVMError):
    """The cloud does not answer, or not as it should: the request's outcome is unknown."""

    exit_code = CloudError.exit_code


class RefusedError(DeepVMError):
    """The cloud will not make a machine: capacity, quota, price. None was made."""

    exit_code = CloudError.exit_code


@dataclass(frozen=True)
class Start:
    """What a new machine must know."""

    job: str
    machine: str  # the name of the request, and its tag
    secret: bytes = field(repr=False)
    controller: str  # the controller's URL
    controller_file: str = ""  # a file with it, for machines that share this disk
    most_usd_per_hour: float | None = None  # what it may cost, for clouds whose prices move


@dataclass(frozen=True)
class Launch:
    """A machine that was made: when, and the zone and price, if the cloud has chosen them."""

    launched_s: float
    zone: str = ""
    usd_per_hour: float | None = None


Listing: TypeAlias = InstancesListed  # A cloud's answer is what the controller records


class Cloud(Protocol):
    """A cloud; calls may block, and come from several threads. What has a body is optional."""

    can_preempt: ClassVar[bool] = False  # Whether machines can be preempted on purpose
    # Whether machines come within seconds, and heartbeats each second cost nothing
    near: ClassVar[bool] = False

    def host(self, job: str) -> str:
        """The address at which a job's controller listens, so that its machines reach it."""

    def finish(self, job: str) -> None:
        """A job is over: remove what its machines shared. Raises UnknownError."""

    def request(self, record: MachineRecord, start: Start) -> float | Launch:
        """Make a machine, once per name; Unix time of launch. Raises RefusedError, UnknownError."""

    def listing(self, job: str) -> Listing:
        """The machines of a job. Raises UnknownError."""

    def release(self, job: str, machine: str) -> None:
        """End a machine; harmless if there is none. Raises UnknownError."""

    def last_lines(self, job: str, machine: str) -> list[str]:
        """What a machine has printed last, as far as the cloud keeps it. Raises UnknownError."""
        return []

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        """Preempt a machine after a notice of ``grace_s``, or at once without one."""
        raise UnknownError("the cloud preempts machines itself")

    def recommend(self, job: str, machine: str) -> None:
        raise UnknownError("the cloud sends rebalance recommendations itself")


@runtime_checkable
class NetworkFaults(Protocol):
    """What a cloud has besides whose machines can lose their links."""

    def cut(self, job: str, machine: str) -> None:
        """Cut a machine's link: it keeps running, unreachable. Raises UnknownError."""


@runtime_checkable
class OwnedHosts(Protocol):
    """A cloud whose machines carry their owner's name, by which they can be found again."""

    @classmethod
    def used(cls, folder: Path) -> bool:
        """Whether jobs of this folder ever rented machines; without requests."""

    def jobs(self) -> Iterable[str]:
        """The jobs of this user whose machines or heads live, known or not. Raises UnknownError."""


@runtime_checkable
class RemoteCloud(Protocol):
    """A cloud whose machines share neither disk nor network with the controller."""

    def listen(self) -> tuple[str, int]:
        """Address and port (0: any) to bind; machines use the address :meth:`Cloud.host`."""

    def announce(self, job: str, url: str) -> None:
        """Tell the machines that live where the controller is now. Raises UnknownError."""

    def tier(self, job: str) -> str:
        """Where checkpoints go if the job names no tiers. Raises RefusedError."""

    def zones(self, instance_type: str, market: str) -> Mapping[str, float | None]:
        """Zones for a type, the best first, with $/h or None. Raises RefusedError, UnknownError."""
        # A name of several zones leaves the choice to the cloud

    def whole(self) -> str:
        """The name that covers all zones."""

    def names(self, job: str) -> Mapping[str, str]:
        """How all that a job makes can be found later, by kind. Raises RefusedError."""


@dataclass(frozen=True)
class Object:
    """An object as read; ``tag``: of this state; ``age_s``: by the store's clock."""

    data: bytes = field(repr=False)
    tag: str
    age_s: float


class ChangedError(DeepVMError):
    """Another process has written the object meanwhile."""

    exit_code = CloudError.exit_code


class Objects(Protocol):
    """A bucket's objects with a prefix. Methods raise RefusedError and UnknownError."""

    def get(self, key: str, unlike: str = "") -> Object | None:
        """An object, None if there is none; without its data if its tag is ``unlike``."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""

    def replace(self, key: str, data: bytes, tag: str | None) -> str:
        """Write it if it has this tag (None: it is new); the new tag. Raises ChangedError."""

    def keys(self, prefix: str, after: str = "") -> list[str]:
        """The names that start so, in order; ``after``: only those after this one."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects; harmless where there are none."""


@runtime_checkable
class HostsController(Protocol):
    """A cloud that can rent a machine for the controller: remote controllers, from 1."""

    def controls_here(self) -> bool:
        """Whether machines would reach a controller on this computer."""

    def check_head(self) -> None:
        """Whether a head can be rented. Raises RefusedError, UnknownError."""

    def objects(self, job: str) -> Objects:
        """What a head and its user tell each other."""

    def start_head(self, job: str, number: int) -> None:
        """Rent it, once for each number. Raises RefusedError, UnknownError."""

    def heads(self, job: str) -> Listing:
        """The heads of a job, by :func:`head_name`. Raises UnknownError."""

    def end_head(self, job: str, name: str) -> None:
        """End one; harmless if there is none. Raises UnknownError."""

    def head_type(self) -> str:
        """The instance type of one."""

    def head_usd_per_hour(self) -> float:
        """What one costs. Raises RefusedError: it is unknown."""


def head_name(number: int) -> str:
    """The name of a head, by which its cloud knows it."""
    return f"head-{number}"
