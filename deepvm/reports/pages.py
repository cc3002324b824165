"""HTML pages from the jinja2 templates in ``templates/``, next to their styles and scripts.

``base.html.j2`` says how a page is written. Each page is one file that loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm.core.spelling import joined
from deepvm.core.units import counted, elapsed, format_seconds, utc_text
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


_FILTERS: dict[str, Callable[..., str]] = {
    "clock": clock,
    "counted": counted,
    "duration": format_seconds,
    "elapsed": elapsed,
    "iso": utc_text,
    "joined": joined,
    "number": format_number,
    "percent": format_percent,
}
"""Of pages and of texts."""


def render(template: str, *, nonce: str = "", **data: Any) -> str:
    """A whole page, in ASCII.

    Args:
        template: a file of ``templates/``.
        nonce: for a page that is served and asks its own server for news; a page in a file has
            the digests of its style and script in its policy instead.
        data: what the template shows. All text is escaped.
    """
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
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def format_paid(usd: float) -> str:
    """Dollars: cents from $1 on, four digits below."""
    if usd >= 1:
        return f"{usd:.2f} $"
    return f"{usd:.4f} $"


def format_utc(at_s: float) -> str:
    """A time in seconds since 1970."""
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


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
    return environment


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = new_environment(_shown, autoescape=True)
    environment.filters.update(count=format_count, usd=format_paid, utc=format_utc)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals.update(asset=_asset, policy=_policy)
    macros = {"words": "job_words", "lab": "lab_cells", "ui": "ui.html", "chart": "chart.html"}
    for name, file in macros.items():
        environment.globals[name] = environment.get_template(f"{file}.j2").module
    return environment


def _shown(value: Any) -> Any:
    """Text without control characters; markup of templates is a subclass of ``str``."""
    if type(value) is str:
        return visible(value)
    return value


def _asset(name: str) -> Any:
    """A style or script, as it is."""
    from markupsafe import Markup

    return Markup((TEMPLATES / name).read_text("ascii"))


def _policy(style: str, script: str, nonce: str) -> str:
    """What the page may do, as a browser reads it."""
    rules = ["default-src 'none'", f"style-src {_source(style, nonce)}"]
    if script:
        rules.append(f"script-src {_source(script, nonce)}")
    if nonce:
        rules.append("connect-src 'self'")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _source(text: str, nonce: str) -> str:
    if nonce:
        return f"'nonce-{nonce}'"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
