"""``--reserved`` and ``--savings-plan``: what the user has committed to.

It is given as types and prices of the catalogs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog


def with_commitments(
    catalogs: Sequence[Catalog],
    reserved: str,
    savings: Sequence[str],
    say: Callable[[str], None],
) -> tuple[Catalog, ...]:
    """The catalogs with discounts and reserved pools; what counts is said.

    Raises DataError, RequestError.
    """
    from deepvm.core.cluster.commitments import read_savings_plan, with_reserved, with_savings

    plans = tuple(read_savings_plan(text) for text in savings)
    if len({c.name.removesuffix(f"-{c.region}") for c in catalogs}) > 1:
        for plan in (p for p in plans if p.glob == "*"):
            allowed = "of several clouds, the types that it is for, such as 'p5.*=28%'"
            raise RequestError("savings_plan", f"{(plan.share * 100).normalize():f}%", allowed)
    found = with_savings(catalogs, plans)
    for plan in plans:
        say(
            f"savings plan: on-demand prices less {plan}; what it costs while nothing runs is not"
            " counted"
        )
    if not reserved:
        return found
    from deepvm.documents.inputs.reserved import load_reserved

    found, notes = with_reserved(found, load_reserved(reserved), datetime.now(timezone.utc))
    for text in notes:
        say(text)
    return found
