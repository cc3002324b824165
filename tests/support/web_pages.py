"""A page as a strict reader sees it: elements, attributes, and what is in scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

EMPTY = {"br", "input", "meta"}


@dataclass
class Element:
    """An element with the text that is directly or further down in it."""

    name: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """All elements of a page in their order; refuses what a browser would only guess at."""

    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {tag} {attrs}"
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in EMPTY:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1].name == tag, (
            f"</{tag}> ends <{self._open[-1].name if self._open else ''}>"
        )
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, name: str) -> list[Element]:
        return [e for e in self.elements if e.name == name]

    def by_id(self, name: str) -> Element:
        (found,) = [e for e in self.elements if e.attributes.get("id") == name]
        return found


def read_page(text: str) -> Page:
    """Parse a whole page."""
    page = Page()
    page.feed(text)
    page.close()
    assert not page._open
    return page
