"""``--mttp history``: how long the spot VMs of this user's own jobs lived.

This is used instead of a cloud's bands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog


def with_history(catalogs: Sequence[Catalog], say: Callable[[str], None]) -> tuple[Catalog, ...]:
    """The catalogs with the lifetimes that the history knows.

    It says of which types; the others keep their bands.

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
