"""A whole page in one file: nothing is loaded, and nothing runs but the script and the style that come with it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepvm.reports.markup import Html, ascii_only, tag


@dataclass(frozen=True)
class PageTemplate:
    """Style and script of a page, and what else it may do.

    Attributes:
        script: empty for none. nonce: names them in the policy of a page that is served; a file
            that lies somewhere names their digests.
        connects: whether the script may ask the page's own server.
    """

    style: Html
    script: Html
    nonce: str = ""
    connects: bool = False

    @property
    def policy(self) -> str:
        """What the page may do, as a browser reads it."""
        script, style = (
            (f"'nonce-{self.nonce}'",) * 2
            if self.nonce
            else (_digest(self.script), _digest(self.style))
        )
        connect = "connect-src 'self'; " if self.connects else ""
        runs = f"script-src {script}; " if self.script else ""
        return (
            f"default-src 'none'; {connect}{runs}style-src {style}; base-uri 'none'; form-action"
            " 'none'"
        )

    def page(self, title: str, content: Sequence[Html]) -> str:
        """The page, in ASCII."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=self.policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", title),
            tag("style", self.style, nonce=self.nonce or None),
        )
        scripts = [tag("script", self.script, nonce=self.nonce or None)] if self.script else []
        body = tag("body", *content, *scripts)
        return f"<!doctype html>\n{ascii_only(tag('html', head, body, lang='en'))}\n"


def beside(module: str, name: str) -> Html:
    """A style or script that lies beside a module, in ASCII."""
    return Html((Path(module).parent / name).read_text("ascii"))


def _digest(text: str) -> str:
    """What a policy calls the only script, or the only style, that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
