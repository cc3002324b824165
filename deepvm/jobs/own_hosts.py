"""Machines of the user's own: the hosts of a file, how commands get to them, their names and prices."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from deepvm.core.cluster.instances import Market
from deepvm.errors import RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.jobs.jobfile import JobFile, Machines
from deepvm.jobs.world import Pool
from deepvm.profiling.hosts.launcher import Host, Launcher, read_hosts

FILE = "hosts.json"
"""In a job's folder: what was read when the job was submitted."""
CLOUD = "ssh"
_UNNAMED = "host"
_ALLOWED_TIERS = "what all hosts reach: [s3://bucket/run], or file:// of a folder that they share; or an anchor"


@dataclass(frozen=True)
class OwnHosts:
    """The hosts of one job.

    Attributes:
        tag: names the job on hosts, also where other users have one of that name. launcher, python: as ``Launcher``
            reads them. hosts: in the order of the file.
    """

    tag: str
    launcher: str
    python: str
    hosts: tuple[Host, ...]

    @classmethod
    def read(cls, job: JobFile, beside: Path) -> OwnHosts | None:
        """The hosts of a job file in the folder ``beside``; None if it has none.

        Raises:
            RequestError: no such file, no host in it, one twice; a launcher that cannot be; too few hosts.
            CatalogFormatError: lines of the file cannot be read.
        """
        machines = job.machines
        if (machines.hosts is None) != (job.cloud != CLOUD):
            wanted = f"the cloud {CLOUD}, as there are machines.hosts" if machines.hosts else "one without hosts"
            raise RequestError("cloud", job.cloud, f"{wanted}; ssh and machines.hosts go together")
        if machines.hosts is None:
            return None
        hosts = read_hosts(beside / machines.hosts, "machines.hosts")
        tag = f"{job.name}-{secrets.token_hex(4)}"
        found = cls(tag, machines.launcher or CLOUD, machines.python or "", _typed(hosts, machines))
        try:
            is_here = found.reach.local
        except RequestError as error:
            raise RequestError(f"machines.{error.option}", error.value, error.allowed) from None
        if not (job.tiers or is_here or job.anchor not in (None, "none")):
            raise RequestError("tiers", "none", _ALLOWED_TIERS)
        return found

    @classmethod
    def load(cls, folder: Path) -> OwnHosts | None:
        """The hosts of the job in a folder; None if it has none."""
        try:
            found = json.loads((folder / FILE).read_bytes())
        except FileNotFoundError:
            return None
        return cls(found["tag"], found["launcher"], found["python"], tuple(Host(**h) for h in found["hosts"]))

    def save(self, folder: Path) -> None:
        """Write them down for :meth:`load`. Raises OSError."""
        write_bytes(folder / FILE, json.dumps(asdict(self), indent=1).encode())

    @property
    def reach(self) -> Launcher:
        """How commands get to them. Raises RequestError."""
        return Launcher.parse(self.launcher, self.python)

    @property
    def slots(self) -> int:
        """Trainers on each host, as the file says; 0 if it does not."""
        return self.hosts[0].slots

    def pools(self) -> tuple[Pool, ...]:
        """One for each type and price, the cheapest first."""
        return tuple(sorted(dict.fromkeys(map(pool_of, self.hosts)), key=lambda pool: pool.usd_per_hour))

    def of(self, pool: Pool) -> tuple[Host, ...]:
        """The hosts of a pool."""
        same = (pool.instance_type, pool.usd_per_hour)
        return tuple(h for h in self.hosts if (pool_of(h).instance_type, pool_of(h).usd_per_hour) == same)


def pool_of(host: Host) -> Pool:
    """A host as machines have it: nobody takes it back, so it counts as on demand."""
    return Pool(host.type or _UNNAMED, CLOUD, Market.ON_DEMAND.value, host.usd_per_hour)


def _typed(hosts: tuple[Host, ...], machines: Machines) -> tuple[Host, ...]:
    """With the job's type where the file names none."""
    return tuple(Host(**{**asdict(h), "type": h.type or machines.type or ""}) for h in hosts)
