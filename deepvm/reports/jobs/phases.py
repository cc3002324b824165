"""What takes long on machines that are paid for, beside the steps themselves: said only where it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds

_LONG_S = 10.0
_LARGE = 0.1
_WORDS = {
    "code": "fetching the code",
    "setup": "setup",
    "data": "fetching data",
    "load": "loading the trainers",
    "first_step": "their first step",
}


def slow_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for what machines do before they train, and one for what trainers do between steps.

    Documents of an older deepvm know of neither.
    """
    phases = document.get("phases_s", {})
    long = [
        f"{format_seconds(phases[n], digits=2)} for {w}"
        for n, w in _WORDS.items()
        if (phases[n] or 0.0) >= _LONG_S
    ]
    if long:
        yield f"before machines train, on average: {joined(long)}"
    share = document.get("between_steps")
    if share is not None and share >= _LARGE:
        yield (
            f"{100 * share:.0f} % of the training passes between steps: it waits for data, or does"
            " other things there"
        )
