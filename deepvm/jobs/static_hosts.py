"""Machines the user owns: the hosts file, the command to reach them, names and prices."""

import json
from pathlib import Path

from deepvm.core.cluster.instances import Market
from deepvm.io.atomic_write import write_bytes
from deepvm.jobs.decisions.world import Pool
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.records import asdict, dataclass

FILE = "hosts.json"  # In a job's folder: what was read when the job was submitted
SSH = "ssh"
_UNNAMED = "host"


@dataclass(frozen=True)
class StaticHosts:
    """The hosts of one job, in the order of the file."""

    tag: str  # names the job on hosts, also where other users have one of that name
    launcher: str  # it and python as Launcher reads them
    python: str
    hosts: tuple[Host, ...]

    @classmethod
    def load(cls, folder: Path) -> "StaticHosts | None":
        try:
            found = json.loads((folder / FILE).read_bytes())
        except FileNotFoundError:
            return None
        return cls(**{**found, "hosts": tuple(Host(**host) for host in found["hosts"])})

    def save(self, folder: Path) -> None:
        write_bytes(folder / FILE, json.dumps(asdict(self), indent=1).encode())

    @property
    def reach(self) -> Launcher:
        return Launcher.parse(self.launcher, self.python)

    @property
    def slots(self) -> int:
        """Trainers on each host, as the file says; 0 if it does not."""
        return self.hosts[0].slots

    def pools(self) -> tuple[Pool, ...]:
        return tuple(
            sorted(dict.fromkeys(map(pool_of, self.hosts)), key=lambda pool: pool.usd_per_hour)
        )

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def of(self, pool: Pool) -> tuple[Host, ...]:
        same = (pool.instance_type, pool.usd_per_hour)
        return tuple(
            h for h in self.hosts if (pool_of(h).instance_type, pool_of(h).usd_per_hour) == same
        )


def pool_of(host: Host) -> Pool:
    """A host as machines have it: it is never preempted, so it counts as on demand."""
    return Pool(host.type or _UNNAMED, SSH, Market.ON_DEMAND.value, host.usd_per_hour)
