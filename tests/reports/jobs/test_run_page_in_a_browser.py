"""The page of a job in a real browser: it fits, nothing overlaps, nothing of a user acts, and one
can look closer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import FAINT, OVERLAPS, browser
from support.jobs import worlds

from deepvm.jobs.standing import JobStatus
from deepvm.reports.jobs.run_page import RunPage

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from browser()


JOBS = {
    "one": worlds.one_machine,
    "many": lambda: worlds.many(420, hours=24),
    "hostile": worlds.hostile,
    "new": lambda: worlds.standing([], [], [], end_s=0.0, over=False),
}


def opened(
    chromium: Any, tmp_path: Path, job: JobStatus, *, width: int = 1200, scheme: str = "light"
) -> Any:
    file = tmp_path / "run.html"
    file.write_text(RunPage(job).render())
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: (page.problems.append("a dialog"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: (
            page.problems.append(request.url) if "run.html" not in request.url else None
        ),
    )
    page.goto(file.as_uri())
    return page


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("hostile", 360, "light"),
        ("many", 1200, "dark"),
        pytest.param("many", 360, "dark", marks=pytest.mark.slow),
        pytest.param("new", 360, "light", marks=pytest.mark.slow),
        pytest.param("one", 360, "light", marks=pytest.mark.slow),
    ],
)
def test_it_fits_and_can_be_read(
    chromium: Any, tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    job = JOBS[name]()
    if name == "many":
        assert len(job.world.machines) > 200 and len(job.events) >= 2000
    page = opened(chromium, tmp_path, job, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(FAINT) == []
    assert page.problems == []
    page.close()


def test_what_the_pointer_is_on(chromium: Any, tmp_path: Path) -> None:
    page = opened(chromium, tmp_path, worlds.many(40))
    page.locator(".bar.member").nth(3).hover()
    tip = page.locator("#tip")
    assert "g4dn.xlarge, spot, us-east-1a" in tip.inner_text() and "end: " in tip.inner_text()
    chart = page.locator("#part-steps .lines")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    assert tip.inner_text().startswith("after ") and "step: " in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    assert page.problems == []
    page.close()


def test_a_tap_shows_the_same(chromium: Any, tmp_path: Path) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 700}, has_touch=True)
    file = tmp_path / "run.html"
    file.write_text(RunPage(worlds.one_machine()).render())
    page = context.new_page()
    page.goto(file.as_uri())
    page.locator(".bar.member").first.tap()
    assert "m1: g4dn.xlarge" in page.locator("#tip").inner_text()
    context.close()


def test_events_are_filtered(chromium: Any, tmp_path: Path) -> None:
    page = opened(chromium, tmp_path, worlds.many(40))
    rows, everything = (
        page.locator("#event-rows tr:visible"),
        page.locator("#event-rows tr").count(),
    )
    page.select_option("#group", "trouble")
    trouble = rows.count()
    assert (
        0 < trouble < everything
        and page.locator("#matches").inner_text() == f"{trouble} of {everything}"
    )
    page.fill("#search", "preemption notice")
    assert 0 < rows.count() < trouble
    page.fill("#search", "nothing has this")
    assert rows.count() == 0
    page.close()


def test_without_scripts_it_is_complete(chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(RunPage(worlds.many(40)).render())
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator(".bar").count() > 40 and page.locator("#event-rows tr").count() > 100
    assert page.locator("#filter").is_hidden()
    page.get_by_text("Machines as a table").click()
    assert page.locator("#part-machine-table table").is_visible()
    context.close()


def test_hostile_texts_are_texts(chromium: Any, tmp_path: Path) -> None:
    page = opened(chromium, tmp_path, worlds.hostile())
    assert page.locator("img").count() == 0 and "onerror=alert" in page.locator("h1").inner_text()
    page.locator("rect.bar").first.hover()
    assert "<img src=x" in page.locator("#tip").inner_text()  # as text
    assert page.locator("#tip img").count() == 0 and page.problems == []
    page.close()
