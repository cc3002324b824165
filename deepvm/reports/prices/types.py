"""The types of a catalog with their prices and speeds, for people."""

from __future__ import annotations

from datetime import datetime

from deepvm.core.cluster.instances import Catalog, InstanceType, flopp
from deepvm.core.units import counted
from deepvm.reports.plans.sources import measured_lines, source_line
from deepvm.reports.text import print_text, text_blocks


def print_types(catalog: Catalog, *, wide: bool) -> None:
    """Write the table of ``catalog show``."""
    print_text("catalog_types", types=catalog, wide=wide, per_dollar=_per_dollar)


def about_lines(catalog: Catalog, now: datetime) -> list[str]:
    """How many types a catalog has, of where and when, and what its figures rest on."""
    counts = type_counts(catalog)
    lines = text_blocks("catalog_about", ["about"], catalog=catalog, counts=counts)
    if catalog.provenance.origins:
        lines.append(source_line(catalog, now))
    return [*lines, *measured_lines(catalog)]


def type_counts(catalog: Catalog) -> str:
    """``14 instance types (6 GPU, 8 CPU)``."""
    gpus = sum(i.gpu is not None for i in catalog)
    return f"{counted(len(catalog), 'instance type')} ({gpus} GPU, {len(catalog) - gpus} CPU)"


def _per_dollar(instance: InstanceType) -> float | None:
    spot = instance.spot_usd_per_hour
    if instance.eflops is None or spot is None:
        return None
    return flopp(instance.eflops, float(spot))
