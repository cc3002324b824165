"""What the controller needs of a cloud, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

from deepvm.errors import CloudError, DeepVMError
from deepvm.jobs.decisions.events import InstancesListed
from deepvm.jobs.decisions.world import MachineRecord


class UnknownError(DeepVMError):
    """The cloud does not answer, or not as it should: the request's outcome is unknown."""

    exit_code = CloudError.exit_code


class RefusedError(DeepVMError):
    """The cloud will not make a machine: capacity, quota, price. None was made."""

    exit_code = CloudError.exit_code


@dataclass(frozen=True)
class Start:
    """What a new machine must know.

    Attributes:
        job: its name. machine: the name of the request, the tag of the machine. secret: of this
            machine.
        controller: the controller's URL. controller_file: a file with it, for machines that share
            this disk.
        most_usd_per_hour: what it may cost, None for no limit; for clouds whose prices move.
    """

    job: str
    machine: str
    secret: bytes = field(repr=False)
    controller: str
    controller_file: str = ""
    most_usd_per_hour: float | None = None


@dataclass(frozen=True)
class Launch:
    """A machine that was made: when, and the zone and price, if the cloud has chosen them."""

    launched_s: float
    zone: str = ""
    usd_per_hour: float | None = None


Listing: TypeAlias = InstancesListed
"""A cloud's answer is what the controller records."""


class Cloud(Protocol):
    """A cloud; calls may block, and come from several threads."""

    can_preempt: ClassVar[bool]
    """Whether machines can be preempted on purpose."""
    near: ClassVar[bool]
    """Whether machines come within seconds, and heartbeats each second cost nothing."""

    @classmethod
    def open(cls, folder: Path) -> Cloud:
        """That of this user, whose jobs are in ``folder``.

        Raises RefusedError: it cannot be used here.
        """

    def host(self, job: str) -> str:
        """The address at which a job's controller listens, so that its machines reach it."""

    def finish(self, job: str) -> None:
        """A job is over: remove what its machines shared. Raises UnknownError."""

    def request(self, record: MachineRecord, start: Start) -> float | Launch:
        """Make a machine, once for each name; returns when it was launched.

        Raises RefusedError, UnknownError.
        """

    def listing(self, job: str) -> Listing:
        """The machines of a job. Raises UnknownError."""

    def release(self, job: str, machine: str) -> None:
        """End a machine; harmless if there is none. Raises UnknownError."""

    def last_lines(self, job: str, machine: str) -> list[str]:
        """What a machine has printed last, as far as the cloud keeps it. Raises UnknownError."""

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        """Take a machine back after a notice of ``grace_s``, or at once without one."""

    def recommend(self, job: str, machine: str) -> None:
        """Send a machine a rebalance recommendation, without ending it."""


@runtime_checkable
class NetworkFaults(Protocol):
    """What a cloud has besides whose machines can lose their links."""

    def cut(self, job: str, machine: str) -> None:
        """Cut a machine's link: it keeps running, unreachable."""


@runtime_checkable
class OwnedHosts(Protocol):
    """A cloud whose machines carry their owner's name, by which they can be found again."""

    @classmethod
    def used(cls, folder: Path) -> bool:
        """Whether jobs of this folder ever rented machines; without requests."""

    def jobs(self) -> Iterable[str]:
        """The jobs of this user whose machines or heads live, whoever knows of them.

        Raises UnknownError.
        """


@runtime_checkable
class RemoteCloud(Protocol):
    """A cloud whose machines share neither disk nor network with the controller."""

    def listen(self) -> tuple[str, int]:
        """Address and port (0: any) to bind; machines use the address :meth:`Cloud.host`."""

    def announce(self, job: str, url: str) -> None:
        """Tell the machines that live where the controller is now. Raises UnknownError."""

    def tier(self, job: str) -> str:
        """Where versions go if the job names no tiers. Raises RefusedError."""

    def zones(self, instance_type: str, market: str) -> Mapping[str, float | None]:
        """Zones to ask for a type in, the first first, and its price there in $/h, None if unknown.

        A name that covers several leaves the choice to the cloud. Raises RefusedError: nothing can
        be rented as it is set up, and why; UnknownError.
        """

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
        """Write it if it still has this tag, None: if there is none; returns the new tag.

        Raises ChangedError.
        """

    def keys(self, prefix: str, after: str = "") -> list[str]:
        """The names that begin so, in order; ``after``: only those behind this one."""

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
