"""Text reports from the jinja2 templates ``templates/*.txt.j2``, which look like what they print.

Lines that start with ``|`` are a table, the first of them its header::

    | model | >eFLOPS | >images/s !2 |
    | {{ row.model }} | {{ row.eflops | number(".4g") }} | {{ row.images_per_s | number(",.1f") }} |

``>`` aligns a column to the right, ``~`` keeps its names on one line, ``!2`` gives the order in
which narrow terminals leave columns out.
"""

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

from deepvm.core.spelling import printable
from deepvm.core.units import format_short, format_time, format_usd
from deepvm.reports.compiled_templates import compiled_templates
from deepvm.reports.pages import new_environment
from deepvm.reports.terminal import Column, print_lines, print_table

_HEADER = re.compile(r"(>?)(~?)(.*?) ?(?:!(\d+))?")
# Bars and line ends in values, as long as bars and line ends of templates have a meaning
_HIDDEN = {ord("|"): "\0", ord("\n"): "\1"}
_VISIBLE = {0: "|", 1: "\n"}
_SIZES = ("", "k", "M", "G", "T", "P", "E")


def print_text(template: str, *, also: str = "-o json", **data: Any) -> None:
    """Print ``templates/TEMPLATE.txt.j2``; ``also``: an option that prints all columns."""
    text = _environment().get_template(f"{template}.txt.j2").render(**data).removesuffix("\n")
    for is_table, lines in groupby(text.split("\n"), lambda line: line.startswith("|")):
        if not is_table:
            print_lines([line.translate(_VISIBLE) for line in lines])
            continue
        print_table(table_of(lines), also=also)


def text_blocks(template: str, names: Iterable[str], **data: Any) -> list[str]:
    """The lines of some blocks of ``templates/TEMPLATE.txt.j2``, without empty ones."""
    report = _environment().get_template(f"{template}.txt.j2")
    context = report.new_context(data)
    text = "".join("".join(report.blocks[name](context)) for name in names)
    return [line.translate(_VISIBLE) for line in text.split("\n") if line]


def table_of(lines: Iterable[str]) -> list[Column]:
    """The columns of the table that lines describe."""
    rows = [[cell[1:-1].translate(_VISIBLE) for cell in line.split("|")[1:-1]] for line in lines]
    columns = []
    for header, *cells in zip(*rows, strict=True):
        match = _HEADER.fullmatch(header)
        assert match is not None
        right, whole, name, drop = match.groups()
        align: Literal["left", "right"] = "right" if right else "left"
        columns.append(Column(name, align, int(drop or 0), not whole, cells))
    return columns


@lru_cache(maxsize=1)
def _environment() -> Any:
    environment = new_environment(
        lambda value: value.translate(_HIDDEN) if isinstance(value, str) else value,
        bytecode_cache=compiled_templates("text"),
    )
    environment.filters.update(
        hours=format_hours,
        median=_median,
        printable=printable,
        scaled=scaled,
        short=format_short,
        step=format_step,
        time=format_time,
        usd=format_usd,
    )
    return environment


def _median(values: Iterable[float]) -> float:
    from statistics import median  # slow to import

    return median(values)


def format_hours(seconds: float | None) -> str:
    """Such as ``2.83``; a dash for None."""
    if seconds is None:
        return "-"
    if math.isfinite(seconds):
        return f"{seconds / 3600:.2f}"
    return "infinite"


def scaled(number: float) -> str:
    """Three digits and the prefix of the unit that follows: ``1.23 G``."""
    power = 0
    # 999.5 would be shown as 1e+03.
    while number >= 999.5 and power < len(_SIZES) - 1:
        number = number / 1000
        power = power + 1
    digits = f"{number:#.3g}".rstrip(".")
    return f"{digits} {_SIZES[power]}"


def format_step(seconds: float) -> str:
    """Three digits in s, ms or us: steps last from microseconds to minutes."""
    sizes = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, size in sizes.items() if seconds >= 0.9995 * size), "us")
    value = seconds / sizes[unit]
    if value < 999.5:
        return f"{value:.3g} {unit}"
    return f"{value:.0f} {unit}"
