"""Charts of the page of a lab: places are shares of the width, so that texts keep their size on a telephone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deepvm.lab.results import Estimate
from deepvm.reports.jobs.charts import legend, names_beside, percent, plot, round_up
from deepvm.reports.markup import Html, joined, tag
from deepvm.reports.pictures import short

_ROW, _AXIS, _HEIGHT = 28, 24, 220
_FAR = 2.0
_LONGEST = 28
"""Letters of a name beside a chart; a telephone has room for the rest of it."""


@dataclass(frozen=True)
class Scale:
    """An axis between two values."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], *, around: float) -> Scale:
        """One with all values and ``around`` on it, and some room."""
        low, high = min([around, *values]), max([around, *values])
        room = 0.06 * (high - low) or 0.05 * abs(around) or 1.0
        return cls(low - room, high + room)

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """At most four round values with their labels."""
        step = round_up((self.high - self.low) / 3.5)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [
            ((first + i) * step, f"{(first + i) * step + 0.0:.{digits}f}") for i in range(count)
        ]

    def axis(self, height: float) -> Iterator[Html]:
        """Lines and labels below a picture."""
        for value, label in self.ticks():
            share = self.share(value)
            anchor = "start" if share < 0.08 else "end" if share > 0.92 else "middle"
            x = percent(share)
            yield tag("line", class_="grid", x1=x, x2=x, y1=0, y2=f"{height:g}")
            yield tag("text", label, x=x, y=f"{height + 17:g}", text_anchor=anchor)


def ratio_scale(ratios: Iterable[Estimate]) -> Scale:
    """An axis with all ratios, 1, and of their intervals what is within twice and half of that.

    Two or three pairs have intervals beside which nothing else could be seen.
    """
    every = list(ratios)
    means = [one.mean for one in every]
    least, most = min([1.0, *means]) / _FAR, max([1.0, *means]) * _FAR
    ends = [
        min(max(end, least), most)
        for one in every
        for end in (one.low, one.high)
        if end is not None
    ]
    return Scale.of([*means, *ends], around=1.0)


def forest(
    label: str, rows: Sequence[tuple[str, Estimate, str]], scale: Scale | None = None
) -> Html:
    """Ratios with their intervals below one another, beside a line at 1: name, estimate, tip."""
    scale, height = scale or ratio_scale(one for _, one, _ in rows), _ROW * len(rows)
    drawn: list[Html] = [*scale.axis(height), _upright("same", scale.share(1.0), height)]
    for place, (_, one, tip) in enumerate(rows):
        y = f"{_ROW * (place + 0.5):g}"
        parts = []
        if one.low is not None and one.high is not None:
            x1, x2 = (percent(min(max(scale.share(end), 0.0), 1.0)) for end in (one.low, one.high))
            parts.append(tag("line", class_="whisker", x1=x1, x2=x2, y1=y, y2=y))
        parts.append(tag("circle", class_="mean", cx=percent(scale.share(one.mean)), cy=y, r=5))
        drawn.append(tag("g", tag("title", tip), *parts))
    names = [
        (_ROW * (place + 0.5) + 4, short(name, _LONGEST)) for place, (name, _, _) in enumerate(rows)
    ]
    return _beside(label, names, drawn, height)


def bars(
    label: str, rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], unit: str
) -> Html:
    """Sums of parts below one another, all on one scale: name, and style, size and tip of each part."""
    most = max((sum(size for _, size, _ in parts) for _, parts in rows), default=0.0) or 1.0
    scale, height = Scale(0.0, most), _ROW * len(rows)
    drawn: list[Html] = list(scale.axis(height))
    for place, (_, parts) in enumerate(rows):
        start = 0.0
        for kind, size, tip in parts:
            if size > 0:
                x, width, y = (
                    percent(scale.share(start)),
                    percent(size / most),
                    f"{_ROW * place + 4:g}",
                )
                part = tag("title", f"{tip}: {size:.3g} {unit}")
                drawn.append(
                    tag(
                        "rect", part, class_=f"share {kind}", x=x, width=width, y=y, height=_ROW - 8
                    )
                )
            start += size
    names = [
        (_ROW * (place + 0.5) + 4, short(name, _LONGEST)) for place, (name, _) in enumerate(rows)
    ]
    return _beside(label, names, drawn, height)


def scatter(
    label: str, points: Sequence[tuple[float, float, str]], x_name: str, y_name: str
) -> Html:
    """Points, each with a tip, between two axes that cross zero."""
    x = Scale.of([point[0] for point in points], around=0.0)
    y = Scale.of([point[1] for point in points], around=0.0)
    drawn: list[Html] = [*x.axis(_HEIGHT)]
    texts = []
    for value, text in y.ticks():
        at = _HEIGHT * (1 - y.share(value))
        drawn.append(tag("line", class_="grid", x1=0, x2="100%", y1=f"{at:.1f}", y2=f"{at:.1f}"))
        texts.append((min(max(at + 4, 10.0), _HEIGHT - 2.0), text))
    zero = f"{_HEIGHT * (1 - y.share(0.0)):.1f}"
    drawn.append(tag("line", class_="same", x1=0, x2="100%", y1=zero, y2=zero))
    for value, other, tip in points:
        place = {"cx": percent(x.share(value)), "cy": f"{_HEIGHT * (1 - y.share(other)):.1f}"}
        drawn.append(tag("circle", tag("title", tip), class_="mean", r=6, **place))
    picture = tag("svg", *drawn, class_="area", height=_HEIGHT + _AXIS, aria_hidden="true")
    letters = max(len(text) for _, text in texts)
    made = plot(label, names_beside(texts, _HEIGHT + _AXIS, letters, right=True), picture)
    return joined(tag("p", f"Upward: {y_name}. To the right: {x_name}.", class_="quiet"), made)


def keys(parts: Sequence[tuple[str, str]]) -> Html:
    """What the colours of :func:`bars` mean."""
    return legend([(f"share {kind}", text) for kind, text in parts])


def _upright(kind: str, share: float, height: float) -> Html:
    x = percent(share)
    return tag("line", class_=kind, x1=x, x2=x, y1=0, y2=f"{height:g}")


def _beside(
    label: str, names: Sequence[tuple[float, str]], drawn: Sequence[Html], height: float
) -> Html:
    letters = max((len(name) for _, name in names), default=0)
    picture = tag("svg", *drawn, class_="area", height=f"{height + _AXIS:g}", aria_hidden="true")
    return plot(label, names_beside(names, height + _AXIS, letters, right=False), picture)
