"""Plan and run page in a real browser, wide and narrow, light and dark, checked by axe.

``SCREENSHOTS=folder`` keeps a picture of each, to be looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import FAINT, browser
from support.jobs import worlds

from deepvm.reports.jobs.run_page import RunPage

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from browser()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    job = folder / "run.html"
    job.write_text(RunPage(worlds.many(40)).render())
    plan = folder / "plan.html"
    words = "recommend --pw 12 --offline --model llama-8b --method lora --tokens 20M -o html"
    with plan.open("w") as file:
        command = [sys.executable, "-m", "deepvm.cli.main", *words.split()]
        subprocess.run(command, stdout=file, check=True)
    return {"run": job, "plan": plan}


@pytest.mark.parametrize("name", ["run", "plan"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(
    chromium: Any, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(pages[name].as_uri())
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}-{width}-{scheme}.png", full_page=True)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(FAINT) == []
    for cut in page.query_selector_all("#time .wide"):
        assert cut.evaluate("e => e.scrollWidth <= e.clientWidth"), cut.get_attribute("aria-label")
    page.close()
