"""Retention policy: which versions to keep. The caller removes the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deepvm.checkpoint.format.manifest import Manifest
from deepvm.errors import RequestError


def kept(versions: Sequence[int], keep: int = 2, every: int = 0, best: Collection[int] = ()) -> set[int]:
    """The versions to keep; all others may go.

    A version dropped once is never wanted later: with newer versions, no other old one is kept.

    Args:
        versions: complete versions, in any order.
        keep: the newest so many, at least one.
        every: for each multiple of this number, from the first on, also the first version that reaches it: of saves
            at 100, 200, ... steps and ``every=1000`` those at 1000, 2000, ..., and of saves at odd times (every so many
            seconds, or before a preemption) those closest behind. 0 for none.
        best: versions that the user wants kept.

    Raises:
        RequestError: ``keep`` or ``every`` cannot be used.
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


def outdated(complete: Collection[int], unrecorded: Collection[int], keep: int = 2, every: int = 0) -> set[int]:
    """Of versions that lost their commit record, those that would not be kept if they still had it.

    An interrupted removal leaves such a file; it is needed as evidence no more than the version itself.

    Args:
        complete: the complete versions; the policy counts only those.
        unrecorded: those whose file exists and whose record does not.
        keep: see :func:`kept`.
        every: see there.
    """
    return {v for v in unrecorded if v not in kept([*complete, v], keep, every)}


def kept_of(manifests: Sequence[Manifest], keep: int = 2, every: int = 0) -> set[int]:
    """As :func:`kept`, and the newest of those marked as best."""
    return kept(
        [m.version for m in manifests], keep, every, {max((m.version for m in manifests if m.best), default=-1)}
    )
