"""Parts of pictures of a job: places are shares of the width, so that texts keep their size in any window."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepvm.reports.markup import Html, tag

_SPANS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
)
_DAY_S = 86_400
_TICKS = 5
"""At most so many spans between labels: on a telephone more would overlap."""
AXIS_PX, LETTER_PX = 24, 7.2


@dataclass(frozen=True)
class Times:
    """The axis of a job's time, from its start to its end or to now; seconds since the epoch."""

    start_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """Never 0: a job that was just submitted has a picture, too."""
        return max(self.end_s - self.start_s, 1.0)

    def share(self, at_s: float) -> float:
        """How far on the axis a time is, from 0 to 1."""
        return min(max((at_s - self.start_s) / self.span_s, 0.0), 1.0)

    def place(self, at_s: float) -> str:
        """The same as SVG writes it."""
        return percent(self.share(at_s))

    def elapsed(self, at_s: float) -> str:
        """A time as the page writes it, such as ``1:05:20`` after the start."""
        return elapsed(at_s - self.start_s)

    def ticks(self) -> list[tuple[float, str]]:
        """Seconds after the start to label, and the labels."""
        step = next((s for s in _SPANS_S if self.span_s / s <= _TICKS), None)
        if step is None:
            step = _DAY_S * round_up(self.span_s / _TICKS / _DAY_S)
        return [
            (i * step, _tick(i * step, step)) for i in range(int(self.span_s / step * 1.0001) + 1)
        ]


def percent(share: float) -> str:
    """A share of a width or height in SVG."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.999)


def elapsed(seconds: float) -> str:
    """A time after the start: ``12.3 s``, ``4:05`` (minutes), ``1:04:05`` (hours), ``2 d 1:04:05``."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not days and not hours:
        return f"{minutes}:{rest:02d}"
    return f"{f'{days} d ' if days else ''}{hours}:{minutes:02d}:{rest:02d}"


def _tick(seconds: float, step: float) -> str:
    if not seconds:
        return "0"
    if step >= _DAY_S:
        return f"{seconds / _DAY_S:g} d"
    if step >= 3600 or (seconds >= 3600 and seconds % 3600 == 0):
        return f"{seconds / 3600:g} h"
    if step >= 60:
        return f"{seconds / 60:g} min"
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def amounts(most: float, ticks: int = 4) -> list[float]:
    """Round values from 0 to label an axis with, the last of them at or above ``most``."""
    step = round_up(most / ticks)
    return [i * step for i in range(math.ceil(most / step * 0.9999) + 1)]


def time_axis(times: Times, *, labels_y: float | None, height: float) -> Iterator[Html]:
    """Grid lines for times and, below or above, their labels."""
    ticks = times.ticks()
    for at_s, label in ticks:
        x = percent(at_s / times.span_s)
        if labels_y is None:
            yield tag("line", class_="grid", x1=x, x2=x, y1=0, y2=f"{height:g}")
        else:
            anchor = "start" if not at_s else "end" if at_s / times.span_s > 0.94 else "middle"
            yield tag("text", label, x=x, y=f"{labels_y:g}", text_anchor=anchor)


def plot(label: str, names: Html, picture: Html) -> Html:
    """What stands beside an axis, and the picture that has the rest of the width."""
    return tag("div", names, picture, class_="plot", role="img", aria_label=label)


def names_beside(
    texts: Sequence[tuple[float, str]], height: float, letters: int, *, right: bool
) -> Html:
    """Labels at heights in pixels, in a column as wide as so many letters."""
    width = round(letters * LETTER_PX) + 12
    x, anchor = (width - 8, "end") if right else (0, "start")
    labels = (tag("text", text, x=x, y=f"{y:g}", text_anchor=anchor) for y, text in texts)
    return tag(
        "svg", *labels, class_="names", width=width, height=f"{height:g}", aria_hidden="true"
    )


@dataclass(frozen=True)
class Line:
    """A line of a chart: seconds after the start and values. ``kind``: its style; ``unit``: behind values, in words."""

    kind: str
    name: str
    points: Sequence[tuple[float, float]]
    digits: int = 0
    unit: str = ""


def lines_chart(
    label: str,
    times: Times,
    lines: Sequence[Line],
    marks: Sequence[Html],
    *,
    most: float,
    height: int,
    letters: int,
) -> Html:
    """Lines over time, with what ``marks`` draws below them."""
    rows = amounts(most)
    top = rows[-1]
    texts = [(height - height * v / top * _ROOM + 4, format_amount(v, rows[1])) for v in rows]
    grid = [
        tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y)
        for y in (f"{height - height * v / top * _ROOM:.1f}" for v in rows)
    ]
    scale = f"matrix({1000 / times.span_s:.9g} 0 0 {-1000 * _ROOM / top:.9g} 0 1000)"
    drawn = (
        tag(
            "polyline",
            class_=f"line {line.kind}",
            points=" ".join(f"{x:.6g},{y:.9g}" for x, y in line.points),
            transform=scale,
            data_name=line.name,
            data_unit=line.unit,
            data_digits=line.digits,
        )
        for line in lines
        if line.points
    )
    scaled = tag(
        "svg",
        *drawn,
        viewBox="0 0 1000 1000",
        preserveAspectRatio="none",
        width="100%",
        height=height,
    )
    axis = [
        *time_axis(times, labels_y=None, height=height),
        *time_axis(times, labels_y=height + 17, height=0),
    ]
    picture = tag(
        "svg",
        *grid,
        *axis,
        *marks,
        scaled,
        tag("line", class_="cursor", x1=0, x2=0, y1=0, y2=height, visibility="hidden"),
        class_="area lines",
        height=height + AXIS_PX,
        data_span=f"{times.span_s:.6g}",
        aria_hidden="true",
    )
    return plot(label, names_beside(texts, height + AXIS_PX, letters, right=True), picture)


_ROOM = 0.94
"""Share of a chart's height that its largest label is at: its text needs the rest."""


def height_of(value: float, most: float, height: float) -> float:
    """Where a value of a chart is, in pixels from its top."""
    return height - height * value / amounts(most)[-1] * _ROOM


def format_amount(value: float, step: float) -> str:
    """A label of an axis whose labels are ``step`` apart."""
    if not value:
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and step >= size / 10:
            return f"{value / size:g}{letter}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def legend(parts: Sequence[tuple[str, str]]) -> Html:
    """What shapes and colours mean: names of styles with words."""
    keys = (
        tag("span", tag("i", class_=f"key {kind}", aria_hidden="true"), text)
        for kind, text in parts
    )
    return tag("p", *keys, class_="legend")


def stacked(parts: Sequence[tuple[str, float, str]], label: str) -> Html:
    """Shares of a whole as one bar: style, share and tip of each."""
    drawn, start = [], 0.0
    for kind, share, tip in parts:
        if share > 0:
            x, width = percent(start), percent(share)
            drawn.append(
                tag("rect", class_=f"share {kind}", x=x, width=width, y=0, height=28, data_tip=tip)
            )
        start += share
    return tag("svg", *drawn, class_="stacked", height=28, role="img", aria_label=label)


def shape(kind: str, at: str, y: float, path: str, tip: str = "") -> Html:
    """A small shape around a place; it keeps its form however wide the picture is."""
    inside = tag("path", d=path, class_=kind, data_tip=tip or None)
    return tag("svg", inside, x=at, y=f"{y:g}", overflow="visible", width=1, height=1)
