"""The pages hang together: no broken link, every page in the site's contents, every path that is named exists."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, text_of

SITE = ROOT / "mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME = re.compile(r"`([\w.]+)`(?: and `([\w.]+)`)? in `(deepvm/[\w/]+\.py)`")
PATH = re.compile(r"`((?:deepvm|tests|scripts|data|docs|notebooks)/[\w./-]*\w/?)`")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_no_link_is_broken(page: str) -> None:
    for link in LINK.findall(text_of(page)):
        target, _, anchor = link.partition("#")
        if re.match(r"https?:", target):
            continue
        file = (PAGES[page].parent / target).resolve() if target else PAGES[page]
        assert file in PAGES.values(), f"{link}: no such page"
        assert not anchor or anchor in anchors(file), f"{link}: no such heading"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_is_named_exists(page: str) -> None:
    paths = [path for path in PATH.findall(text_of(page)) if "NAME" not in path]
    assert len(paths) >= 10
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_every_name_in_the_questions_of_a_newcomer_is_where_the_table_says() -> None:
    table = text_of("docs/architecture.md").partition("## Questions of a newcomer")[2].partition("\n## ")[0]
    found = NAME.findall(table)
    assert len(found) >= 10
    for first, second, path in found:
        for dotted in filter(None, (first, second)):
            body: list[ast.stmt] = ast.parse((ROOT / path).read_text()).body
            for part in dotted.split("."):
                named = [node for node in body if getattr(node, "name", "") == part]
                assert named, f"{path} has no {dotted}"
                body = named[0].body  # type: ignore[attr-defined]


def test_every_page_is_in_the_contents() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)", SITE.read_text()))
    below = {str(path.relative_to(ROOT / "docs")) for path in PAGES.values() if (ROOT / "docs") in path.parents}
    assert listed == below | {"index.md", "contributing.md", "changelog.md"}


def test_the_site_is_built_strictly_and_read_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs deepvm[docs]")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "-f", str(SITE), "-d", str(tmp_path)]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\"\s>]+)", text)
        loaded += re.findall(r"<link[^>]*\shref=\"?(https?:[^\"\s>]+)", text)
        assert not loaded, page
