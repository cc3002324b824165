"""Users' own terms and experience, as prices, types and lifetimes of the catalogs.

``--reserved`` and ``--savings-plan``: their commitments. ``--mttp history``: how long the
spot VMs of their own jobs lived, used instead of a cloud's bands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    """The catalogs with discounts and reserved pools; a note names each that counts.

    Raises DataError, RequestError.
    """
    from deepvm.core.cluster.commitments import read_savings_plan, with_reserved, with_savings

    plans = tuple(read_savings_plan(text) for text in savings)
    if len({c.name.removesuffix(f"-{c.region}") for c in catalogs}) > 1:
        for plan in (p for p in plans if p.glob == "*"):
            allowed = "of several clouds, the types that it is for, such as 'p5.*=28%'"
            raise RequestError("savings_plan", f"{(plan.share * 100).normalize():f}%", allowed)
    discounted = with_savings(catalogs, plans)
    for plan in plans:
        say(
            f"savings plan: on-demand prices less {plan}; what it costs while nothing runs is not"
            " counted"
        )
    if not reserved:
        return discounted
    from deepvm.documents.inputs.reserved import load_reserved

    now = datetime.now(timezone.utc)
    committed, notes = with_reserved(discounted, load_reserved(reserved), now)
    for text in notes:
        say(text)
    return committed


def with_history(catalogs: Sequence[Catalog], say: Callable[[str], None]) -> tuple[Catalog, ...]:
    """The catalogs with the lifetimes that the history knows, and a note for each type.

    Other types keep their bands.

    Raises:
        RequestError: no type of the catalogs has a history. MissingExtraError: no SQLAlchemy.
            DataError: no history.
    """
    import time

    from deepvm.core.lifetimes import FEWEST, history_words
    from deepvm.jobs.history.history import History
    from deepvm.jobs.history.pools import lives_by_type

    with History.open() as history:
        lives, _ = lives_by_type(history.machines(), time.time())
    offered = {i.name for catalog in catalogs for i in catalog}
    known = {name: life for name, life in lives.items() if name in offered}
    if not known:
        allowed = f"a time such as 3h: no type here has {FEWEST} preemptions of spot VMs"
        raise RequestError("mttp", "history", allowed)
    for name, life in sorted(known.items()):
        say(f"by your history, {history_words(name, life)}")
    say("the other types are counted by their bands")
    return tuple(
        replace(c, instances=tuple(replace(i, known_life=known.get(i.name)) for i in c.instances))
        for c in catalogs
    )
