"""Open catalogs for commands, with notes about where prices come from."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from deepvm.cli.output import note, say
from deepvm.cli.settings import set_by
from deepvm.services.plan_options import MeasuredOptions, PlanFlags, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepvm.core.cluster.instances import Catalog
    from deepvm.services.open_catalogs import CatalogOpener


def opener(flags: PlanFlags, *, details: bool = False) -> CatalogOpener:
    """An opener of the catalogs that the options name; ``details``: print routine notes, too."""
    from deepvm.services.open_catalogs import CatalogOpener

    return CatalogOpener(flags, note, say, lambda found: _say_notes(found, details=details), set_by)


def load(name: str, flags: SourceOptions) -> Catalog:
    """A catalog, with notes about where its prices come from. Raises DataError, CloudError."""
    from deepvm.catalog.store import load_catalog

    given = {field.name: getattr(flags, field.name) for field in fields(SourceOptions)}
    catalog = load_catalog(name, **given)
    _say_notes([catalog])
    return catalog


def load_measured(name: str, flags: MeasuredOptions) -> Catalog:
    """As :func:`load`, with the user's measurements. Raises RequestError, too."""
    from deepvm.services.open_catalogs import with_figures

    return with_figures([load(name, flags)], flags.tables, flags.workload, note)[0]


def _say_notes(catalogs: Sequence[Catalog], *, details: bool = False) -> None:
    abouts = [catalog.provenance for catalog in catalogs]
    usual = dict.fromkeys(text for about in abouts for text in about.usual)
    for text in dict.fromkeys(text for about in abouts for text in about.notes):
        if details or text not in usual:
            note(text)
    if usual and not details:
        from deepvm.reports.plans.sources import brief_line

        note(brief_line(catalogs))
