"""``--reserved`` and ``--savings-plan``: what the user has committed to, as types and prices of the catalogs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deepvm.cli.output import note

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog


def with_commitments(catalogs: Sequence[Catalog], reserved: str, savings: Sequence[str]) -> tuple[Catalog, ...]:
    """The catalogs with discounts and reserved pools; notes say what counts. Raises DataError, RequestError."""
    from deepvm.core.cluster.commitments import read_savings_plan, with_reserved, with_savings

    plans = tuple(read_savings_plan(text) for text in savings)
    found = [with_savings(c, plans) for c in catalogs]
    for plan in plans:
        note(f"savings plan: on-demand prices less {plan}; what it costs while nothing runs is not counted")
    if not reserved:
        return tuple(found)
    from deepvm.catalog.documents.reserved_file import load_reserved

    pools, now = load_reserved(reserved), datetime.now(timezone.utc)
    answers = [with_reserved(c, pools, now) for c in found]
    for text in dict.fromkeys(text for _, left in answers for text in left):
        note(text)
    return tuple(catalog for catalog, _ in answers)
