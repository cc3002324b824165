"""How far a job is, and what its restarts cost, in words.

What is not known is printed as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepvm.core.spelling import joined
from deepvm.core.units import counted, format_seconds

_CAUSES = {"crash": ("crash", "crashes"), "resize": ("change of machines", "changes of machines")}


def steps_words(document: Mapping[str, Any]) -> str:
    """The number of steps, or why it is not known."""
    steps = document["steps"]
    return (
        f"progress unknown: {document['progress_unknown']}"
        if steps is None
        else counted(steps, "step")
    )


def unsaved_words(document: Mapping[str, Any]) -> str:
    """Which steps of a job that has ended are in no checkpoint.

    Empty if none, if unknown, or by an older deepvm.
    """
    steps = document.get("unsaved_steps")
    if not steps or document["state"] not in ("done", "stopped", "failed"):
        return ""
    one = steps == 1
    if document["state"] == "done":
        return (
            "the last step is in no checkpoint"
            if one
            else f"the last {counted(steps, 'step')} are in no checkpoint"
        )
    return f"{counted(steps, 'step')} {'is' if one else 'are'} not saved"


def lost_words(document: Mapping[str, Any]) -> str:
    """Steps that were done again, and those that are not saved; empty if unknown."""
    lost, unsaved = document["lost_steps"], unsaved_words(document)
    if lost is None:
        return ""
    again = (
        ""
        if unsaved and not lost and document["state"] != "done"
        else f"{counted(lost, 'step')} lost"
    )
    return "; ".join(words for words in (again, unsaved) if words)


def restart_words(document: Mapping[str, Any]) -> Iterator[str]:
    """Restarts by cause, and what they cost.

    Nothing where there were none, or the document is of an older deepvm.
    """
    facts = document.get("restarts")
    if not facts or not facts["count"]:
        return
    causes = joined(
        [counted(n, *_CAUSES.get(cause, (cause,))) for cause, n in facts["causes"].items() if n],
        "and",
    )
    waited = (
        f"{format_seconds(facts['waiting_s'], digits=3)} and ${facts['waiting_usd']:.4f} of waiting"
        " and loading"
    )
    yield f"{counted(facts['count'], 'restart')} ({causes}): {waited}"
    if document["steps"] is None:
        trained = (
            f"{format_seconds(facts['uncertain_s'], digits=3)} (${facts['uncertain_usd']:.4f}) of"
            " training"
        )
        yield f"steps lost: unknown; up to {trained} may have been done twice"
