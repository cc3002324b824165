"""Parts of the page of an answer that say nothing about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from deepvm.reports.markup import Html, joined, tag

_STEPS = 500
"""Of the slider, about."""


def section(name: str, heading: str, *content: str) -> Html:
    """A part of the page with a heading that a link can lead to."""
    return tag(
        "section",
        tag("h2", heading, id=f"{name}-title"),
        *content,
        id=name,
        aria_labelledby=f"{name}-title",
    )


def listing(lines: Iterable[str]) -> Html:
    """Sentences below one another."""
    return tag("ul", *(tag("li", line) for line in lines))


def wide(content: Html, label: str, *, tall: bool = False) -> Html:
    """What scrolls where the window is too small; the keyboard can reach and scroll it."""
    return tag(
        "div",
        content,
        class_="wide tall" if tall else "wide",
        role="region",
        aria_label=label,
        tabindex=0,
    )


def badged(cells: Sequence[str]) -> list[str]:
    """The last cell, where a figure comes from, as a badge."""
    return [*cells[:-1], tag("span", cells[-1], class_=f"badge {cells[-1]}")]


def legend(*, intervals: bool) -> Html:
    """What lines and colours of the chart mean."""
    parts = [("frontier", "best plan of each budget")]
    parts += [("band", "its 80 % interval")] if intervals else []
    parts += [("machines", "all clusters")]
    parts += [("machines far", "larger than 1.5 times what was measured")] if intervals else []
    parts += [("budget", "the request's budget")]
    keys = (
        tag("span", tag("i", class_=f"key {name}", aria_hidden="true"), text)
        for name, text in parts
    )
    return tag("figcaption", *keys)


def slider(most: float, budget: float) -> Html:
    """The budget to look at, for the page's script; hidden without it."""
    power = 10.0 ** math.floor(math.log10(most / _STEPS))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= most / _STEPS)
    ranged = tag(
        "input",
        id="budget",
        type="range",
        min=0,
        max=f"{most:.6g}",
        step=f"{step:.6g}",
        value=f"{budget:.6g}",
    )
    buttons = (
        tag("button", "Cheaper plan", id="cheaper", type="button"),
        tag("button", "Next faster plan", id="faster", type="button"),
    )
    label = tag("label", "Budget ", tag("output", id="budget-text", for_="budget"), for_="budget")
    inside = joined(label, ranged, tag("p", *buttons), tag("div", id="best", role="status"))
    return tag("div", inside, id="choose", hidden=True)
