"""The pages hang together: no broken link, every page in the site's contents, every path that is
named exists.
"""

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
WHERE = re.compile(r" in \[`(deepvm/[\w/]+\.py)`\]\(\.\./\.\./\1\)")
PATH = re.compile(r"`((?:deepvm|tests|scripts|data|docs|notebooks)/[\w./-]*\w/?)`")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_no_link_is_broken() -> None:
    for page in sorted(PAGES):
        for link in LINK.findall(text_of(page)):
            target, _, anchor = link.partition("#")
            if re.match(r"https?:", target):
                continue
            file = (PAGES[page].parent / target).resolve() if target else PAGES[page]
            if file.suffix in (".svg", ".png", ".cff"):
                assert file.is_file(), f"{link}: no such picture"
                continue
            if file.is_relative_to(ROOT / "deepvm"):
                assert file.is_file() and not anchor, f"{link}: no such module"
                continue
            assert file in PAGES.values(), f"{link}: no such page"
            assert not anchor or anchor in anchors(file), f"{link}: no such heading"


@pytest.mark.parametrize("page", ["docs/internals/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_is_named_exists(page: str) -> None:
    paths = [path for path in PATH.findall(text_of(page)) if "NAME" not in path]
    assert len(paths) >= 10
    assert not [path for path in paths if not (ROOT / path).exists()]


def places(answer: str) -> list[tuple[str, str]]:
    """(file, name) of each name before " in FILE" in an answer of the table.

    Brackets only explain.
    """
    *pairs, _ = WHERE.split(re.sub(r" \([^()]*\)", "", answer))
    return [
        (file, name)
        for words, file in zip(pairs[::2], pairs[1::2], strict=True)
        for name in re.findall(r"`([A-Za-z_][\w.]*)`", words)
    ]


def is_in(file: str, dotted: str) -> bool:
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text()).body
    for part in dotted.split("."):
        named = [node for node in body if getattr(node, "name", "") == part]
        if not named:
            return False
        body = named[0].body  # type: ignore[attr-defined]
    return True


def test_every_answer_is_where_the_page_says() -> None:
    table = (
        text_of("docs/internals/architecture.md")
        .partition("## Where to look")[2]
        .partition("\n## ")[0]
    )
    answers = [row.split(" | ")[1] for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(answers) >= 10
    for answer in answers:
        assert places(answer) or "(../../CONTRIBUTING.md#recipes)" in answer, (
            f"{answer}: names nothing to look for"
        )
    assert not [
        (file, name) for answer in answers for file, name in places(answer) if not is_in(file, name)
    ]


def test_a_name_that_is_elsewhere_is_seen() -> None:
    file = "deepvm/io/file_lock.py"
    link = f"[`{file}`](../../{file})"
    answer = (
        f"`FileLock.take`, `FileLock._try` (by `flock`) and `lock` in {link}, after `this`;"
        f" `os_reason` in {link} too"
    )
    assert [name for _, name in places(answer) if not is_in(file, name)] == [
        "FileLock._try",
        "lock",
        "this",
        "os_reason",
    ]
    assert places("`FileLock` in `deepvm/io/file_lock.py`") == []


def test_every_page_is_in_the_contents() -> None:
    listed = set(re.findall(r"(?:- |: )([\w/.-]+\.md)", SITE.read_text()))
    for kind in ("cli", "api"):
        index = text_of(f"docs/reference/{kind}/index.md")
        listed |= {f"reference/{kind}/{page}" for page in re.findall(r"\]\(([\w.-]+\.md)", index)}
    below = {
        str(path.relative_to(ROOT / "docs"))
        for path in PAGES.values()
        if (ROOT / "docs") in path.parents
    }
    assert listed == below | {"index.md", "contributing.md", "changelog.md", "security.md"}


def test_the_site_is_built_strictly_and_read_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs deepvm[docs]")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "--quiet",
        "build",
        "--strict",
        "-f",
        str(SITE),
        "-d",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\"\s>]+)", text)
        loaded += re.findall(r"<link[^>]*\shref=\"?(https?:[^\"\s>]+)", text)
        assert not loaded, page
