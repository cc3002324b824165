"""HTML pages from the jinja2 templates in ``templates/``, and the axes of their pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm import __version__
from deepvm.core.spelling import joined
from deepvm.core.units import counted, elapsed, format_bytes, format_money, format_seconds, utc_text
from deepvm.errors import EXTRA_SOURCE
from deepvm.records import dataclass
from deepvm.reports.terminal import visible

if TYPE_CHECKING:
    from jinja2 import Environment


TEMPLATES = Path(__file__).with_name("templates")


def format_number(value: float | None, form: str = "") -> str:
    """A number in a form such as ``.3f``; a dash for None."""
    if value is None:
        return "-"
    return format(value, form)


def format_percent(share: float, digits: int = 0) -> str:
    """Such as ``12.5 %``."""
    return f"{100 * share:.{digits}f} %"


def clock(at_s: float) -> str:
    """The time of day, here."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def moment(text: str) -> str:
    """A time in ISO 8601, UTC, to the second, for people."""
    return f"{text[:19].replace('T', ' ')} UTC"


# Of pages and of texts
_FILTERS: dict[str, Callable[..., str]] = {
    "bytes": format_bytes,
    "clock": clock,
    "counted": counted,
    "duration": format_seconds,
    "elapsed": elapsed,
    "iso": utc_text,
    "joined": joined,
    "moment": moment,
    "money": format_money,
    "number": format_number,
    "percent": format_percent,
}


def render(template: str, *, nonce: str = "", **data: Any) -> str:
    """A whole page, in ASCII. ``nonce``: of a served page; files have digests in their policy."""
    page = _environment().get_template(template).render(nonce=nonce, **data)
    return _ascii(page)


def render_blocks(template: str, names: Iterable[str], **data: Any) -> dict[str, str]:
    """Some blocks of a page by name, in ASCII: what a live page replaces."""
    page = _environment().get_template(template)
    context = page.new_context(data)
    return {name: _ascii("".join(page.blocks[name](context))) for name in names}


def format_count(value: int | None) -> str:
    """A count with its thousands apart; None is unknown."""
    if value is None:
        return "unknown"
    return f"{value:,}"


def _ascii(page: str) -> str:
    # A page is right even where a server claims another encoding
    return page.encode("ascii", "xmlcharrefreplace").decode()


def render_markdown(template: str, **data: Any) -> str:
    """A text in Markdown; ``|`` in values is replaced, as it would end the cell of a table."""
    return _markdown_environment().get_template(template).render(**data)


@lru_cache(maxsize=1)
def _markdown_environment() -> Environment:
    return new_environment(
        lambda value: value.replace("|", "/") if isinstance(value, str) else value,
        keep_trailing_newline=True,
    )


@lru_cache
def sentences(template: str) -> Any:
    """The macros of a template of text, which are called one at a time."""
    # Imported here: answers that are only a table need no jinja2
    from deepvm.reports.compiled_templates import compiled_templates

    cache = compiled_templates("sentences")
    environment = new_environment(lambda value: value, bytecode_cache=cache)
    return environment.get_template(template).module


def new_environment(finalize: Callable[[Any], Any], **more: Any) -> Environment:
    """An environment for the templates of this package; ``finalize`` changes each value."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        **more,
    )
    environment.filters.update(_FILTERS)
    environment.globals["extra_source"] = EXTRA_SOURCE
    return environment


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = new_environment(_shown, autoescape=True)
    environment.filters.update(count=format_count)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals.update(asset=_asset, policy=_policy, version=__version__)
    macros = {"words": "job_words", "lab": "lab_cells", "ui": "ui.html", "chart": "chart.html"}
    for name, file in macros.items():
        environment.globals[name] = environment.get_template(f"{file}.j2").module
    return environment


def _shown(value: Any) -> Any:
    if type(value) is str:
        return visible(value)
    return value


def _asset(name: str) -> Any:
    from markupsafe import Markup

    return Markup((TEMPLATES / name).read_text("ascii"))


def _policy(style: str, script: str, nonce: str) -> str:
    rules = ["default-src 'none'", f"style-src {_source(style, nonce)}"]
    if script:
        rules.append(f"script-src {_source(script, nonce)}")
    if nonce:
        rules.append("connect-src 'self'")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _source(text: str, nonce: str) -> str:
    if nonce:
        return f"'nonce-{nonce}'"
    import base64  # only for files, and slow to import
    import hashlib

    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_DAY_S = 86_400
_SPANS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800]
_SPANS_S += [3600, 7200, 10_800, 21_600, 43_200]
_TICKS = 5  # At most so many spans between labels: on a telephone more would overlap


@dataclass(frozen=True)
class Scale:
    """An axis between two values."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], *, around: float) -> Scale:
        low = min([around, *values])
        high = max([around, *values])
        margin = 0.06 * (high - low) or 0.05 * abs(around) or 1.0
        return cls(low - margin, high + margin)

    @classmethod
    def up_to(cls, limit: float) -> Scale:
        # Four steps and a little: no fifth one because of rounding
        step = round_up(limit / 4)
        return cls(0.0, step * math.ceil(limit / step * 0.9999))

    def share(self, value: float) -> float:
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self, count: float = 3.5) -> list[tuple[float, str]]:
        """Round values with their labels, not many more than ``count``."""
        step = round_up((self.high - self.low) / count)
        # Ends that rounding puts a little beyond a label have it, too
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(n * step, _format_amount(n * step, step)) for n in range(first, last + 1)]


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)


def _format_amount(value: float, step: float) -> str:
    if not value:
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and step >= size / 10:
            return f"{value / size:g}{letter}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


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
        return min(max((at_s - self.start_s) / self.span_s, 0.0), 1.0)

    def elapsed(self, at_s: float | None) -> str:
        if at_s is None:
            return "-"
        return elapsed(at_s - self.start_s)

    def ticks(self) -> list[tuple[float, str]]:
        days_s = _DAY_S * round_up(self.span_s / _TICKS / _DAY_S)
        step = next((s for s in _SPANS_S if self.span_s / s <= _TICKS), days_s)
        count = int(self.span_s / step * 1.0001) + 1
        return [(i * step / self.span_s, _tick(i * step, step)) for i in range(count)]


def _tick(seconds: float, step: float) -> str:
    if not seconds:
        return "0"
    if step >= _DAY_S:
        return f"{seconds / _DAY_S:g} d"
    if step >= 3600 or (seconds >= 3600 and seconds % 3600 == 0):
        return f"{seconds / 3600:g} h"
    if step >= 60:
        return f"{seconds / 60:g} min"
    if seconds >= 60:
        return elapsed(seconds)
    return f"{seconds:g} s"
