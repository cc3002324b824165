"""Options for costs besides VMs: which are counted, and how much of each.

Separate from the bill, which a request without them need not load.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from deepvm.core.spelling import refuse_unknown
from deepvm.core.units import parse_bytes
from deepvm.records import dataclass

DISK = "disk"
ADDRESSES = "addresses"
NAT = "nat"
EGRESS = "egress"
BUCKET = "bucket"
BOOT = "boot"
# The costs that are counted besides VMs, in the order in which bills name them
COSTS = (DISK, ADDRESSES, NAT, EGRESS, BUCKET, BOOT)
GB = Decimal(10**9)  # Bytes; most clouds bill by 2**30, so that a bill may be 7 % lower


@dataclass(frozen=True)
class Extras:
    """What users set; sizes in GB, None where nothing is set."""

    disk_gb: Decimal | None = None
    disk_kind: str = ""
    egress_gb: Decimal | None = None
    bucket_gb: Decimal | None = None
    nat: bool = False
    excluded: frozenset[str] = frozenset()

    @property
    def given(self) -> tuple[str, ...]:
        amounts = {
            DISK: self.disk_gb,
            EGRESS: self.egress_gb,
            BUCKET: self.bucket_gb,
            NAT: self.nat or None,
        }
        return tuple(name for name, value in amounts.items() if value is not None)

    @property
    def counted(self) -> bool:
        """Whether budgets and ranking use the whole bill: only if the user sets some of it."""
        return bool(self.given)

    @classmethod
    def parse(
        cls,
        disk: str | int | None = None,
        disk_type: str | None = None,
        egress: str | int | None = None,
        bucket: str | int | None = None,
        nat: bool = False,
        exclude_cost: str | Sequence[str] = (),
    ) -> "Extras":
        """Read options of :class:`deepvm.planner.options.RankOptions`. Raises a RequestError."""
        words = (exclude_cost,) if isinstance(exclude_cost, str) else tuple(exclude_cost)
        names = [name.strip() for text in words for name in text.split(",") if name.strip()]
        for name in names:
            refuse_unknown("exclude_cost", name, (*COSTS, "all"))
        return cls(
            disk_gb=_gb(disk, "disk"),
            disk_kind=disk_type or "",
            egress_gb=_gb(egress, "egress"),
            bucket_gb=_gb(bucket, "bucket"),
            nat=bool(nat),
            excluded=frozenset(COSTS if "all" in names else names),
        )


class Surcharge(NamedTuple):
    """Micro-dollars/h that the bill adds per VM of a market and per cluster; once per job."""

    spot: int = 0
    on_demand: int = 0
    cluster: int = 0
    once_usd: Decimal = Decimal(0)


def _gb(size: str | int | None, option: str) -> Decimal | None:
    """A size; 0 is one, too: nothing of the kind is needed."""
    if size is None or size == "":
        return None
    return parse_bytes(size, option, zero=True) / GB
