"""Retention policy: which versions to keep. The caller removes the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.errors import RequestError


def kept(
    versions: Sequence[int], keep: int = 2, every: int = 0, best: Collection[int] = ()
) -> set[int]:
    """Of complete versions, the newest ``keep`` and the ``best``.

    What is not kept now will not be kept later either.

    ``every``: also the first version at or after each multiple of this number; 0 for none. Raises
    RequestError.
    """
    if keep < 1:
        raise RequestError("keep", keep, "a whole number from 1: the newest version always stays")
    if every < 0:
        raise RequestError("every", every, "a whole number of steps, 0 for none")
    ordered = sorted(set(versions))
    stay = set(ordered[-keep:]) | (set(ordered) & set(best))
    reached = 0
    for version in ordered:
        if every and version // every > reached:
            reached = version // every
            stay.add(version)
    return stay


def outdated(
    complete: Collection[int], unrecorded: Collection[int], keep: int = 2, every: int = 0
) -> set[int]:
    """Checkpoints without a record that :func:`kept` would drop: no sign of a loss."""
    return {v for v in unrecorded if v not in kept([*complete, v], keep, every)}


def kept_of(manifests: Sequence[CommitRecord], keep: int = 2, every: int = 0) -> set[int]:
    """As :func:`kept`, with the newest of those marked as best."""
    best = max((m.version for m in manifests if m.best), default=-1)
    return kept([m.version for m in manifests], keep, every, {best})
