"""Options of commands that read catalogs and do not plan."""

# No `from __future__ import annotations` here, as in deepvm.cli.plan.options: typer reads the types of the fields.

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepvm.cli.output import note
from deepvm.cli.plan.options import AwsProfile, Offline, Prices, Tables, Workload

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SourceFlags:
    """How a command that only reads catalogs comes to AWS's prices; as in :class:`PlanFlags`."""

    prices: Prices = "auto"
    offline: Offline = False
    profile: AwsProfile = ""

    def load(self, name: str) -> "Catalog":
        """A catalog, with notes about where AWS's prices come from.

        Raises:
            DataError, CloudError: it cannot be had.
        """
        from deepvm.catalog.store import load_catalog

        catalog = load_catalog(name, prices=self.prices, offline=self.offline, profile=self.profile)
        for text in catalog.provenance.notes:
            note(text)
        return catalog


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ShowFlags(SourceFlags):
    """As of :class:`SourceFlags`, for a command that shows what the planner would count with."""

    tables: Tables = "auto"
    workload: Workload = ""

    def load(self, name: str) -> "Catalog":
        """As of :class:`SourceFlags`, with measured figures.

        Raises:
            RequestError: nothing was measured with the workload.
        """
        from deepvm.cli.plan.open_catalogs import measured

        return measured((super().load(name),), self.tables, self.workload)[0]
