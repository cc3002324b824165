"""The page of a lab in a real browser: it fits a telephone, can be read in light and dark, and
loads nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import FAINT, OVERLAPS, browser
from support.lab.made_folder import make

from deepvm.lab.checked import check
from deepvm.reports.lab.files import LabSummary, write_all

pytestmark = pytest.mark.browser
LABS: dict[str, dict[str, Any]] = {
    "good": {},
    "bad": {
        "wrong": {"tokens-gpt-tiny-late-ovl-s1"},
        "unfinished": {"tokens-gpt-tiny-base-deepvm-s2"},
    },
    "one": {"seeds": (0,), "variants": ("none",)},
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from browser()


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, given in LABS.items():
        out = make(tmp_path_factory.mktemp(name), **given)
        write_all(out, LabSummary.of(*check(out)))
        found[name] = out
    return found


def opened(chromium: Any, out: Path, **how: Any) -> Any:
    page = chromium.new_page(**how)
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            page.problems.append(request.url) if "report.html" not in request.url else None
        ),
    )
    page.goto((out / "report.html").as_uri())
    return page


QUICK = [("good", 360, "light"), ("bad", 1200, "dark")]
"""Each width and each scheme once; all others in the thorough suite."""
EVERY = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in itertools.product(LABS, (360, 1200), ("light", "dark"))
]


@pytest.mark.parametrize(("name", "width", "scheme"), EVERY)
def test_it_fits_and_can_be_read(
    chromium: Any, labs: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    page = opened(
        chromium, labs[name], viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(FAINT) == []
    assert page.problems == []
    page.close()


def test_the_verdict_is_seen_without_scrolling(chromium: Any, labs: dict[str, Path]) -> None:
    page = opened(chromium, labs["bad"], viewport={"width": 360, "height": 640})
    for part in (page.locator("h1"), page.locator(".alarm")):
        box = part.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 640
    page.close()


def test_parts_of_a_run_are_drawn(chromium: Any, labs: dict[str, Path]) -> None:
    """Each bar is as wide as its share, and its parts follow one another."""
    page = opened(chromium, labs["good"], viewport={"width": 1200, "height": 800})
    area = page.locator("#suite-2 .plot").nth(1).locator(".area")
    kinds = {}
    for part in area.locator("rect").all():
        box = part.bounding_box()
        kinds.setdefault(round(box["y"]), []).append(
            (box["x"], box["width"], part.get_attribute("class"))
        )
    assert len(kinds) == 6
    for parts in kinds.values():
        for (x, width, _), (following, _, _) in zip(parts, parts[1:], strict=False):
            assert x + width == pytest.approx(following, abs=1.5)  # edges are a pixel wide
    longest = max(sum(width for _, width, _ in parts) for parts in kinds.values())
    assert longest == pytest.approx(area.bounding_box()["width"], rel=0.01)
    page.close()


def test_a_file_is_opened_from_the_page(chromium: Any, labs: dict[str, Path]) -> None:
    page = chromium.new_page()
    page.goto((labs["good"] / "report.html").as_uri())
    page.get_by_text("Folders of all 27 runs").click()
    page.get_by_role("link", name="tokens-gpt-tiny-late-ovl-s1").click()
    assert "rank_0.jsonl" in page.content()
    page.close()
