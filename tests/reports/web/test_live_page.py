"""The page of a job that runs, in a real browser: up to date, no token in its address, honest when
cut off.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.browser import Line, browser
from support.jobs import worlds
from support.jobs.site import Site, serving

from deepvm.jobs.history.history import PLACE, EventRow, History

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install playwright"
)
expect = sync_api.expect
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from browser()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    job = worlds.one_machine(over=False)
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        worlds.store(
            history, replace(job, world=replace(job.world, job=worlds.Job.RUNNING)), tmp_path
        )
    with serving(tmp_path) as found:
        yield found


def happens(tmp_path: Path, text: str) -> None:
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        world = history.world("resnet-7")
        now = replace(world, now_s=world.now_s + 1)
        history.commit(
            "resnet-7", world, now, [EventRow(now.now_s, "stop", "running", {"why": text})]
        )


def opened(context: Any, site: Site, line: Line) -> Any:
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: (page.problems.append("a dialog"), dialog.dismiss()))
    page.goto(site.link.replace(str(site.port), str(line.port)))
    return page


def test_it_keeps_itself_up_to_date_and_comes_back(
    chromium: Any, site: Site, tmp_path: Path
) -> None:
    line, context = Line(site.port), chromium.new_context()
    page = opened(context, site, line)
    assert page.url == f"http://127.0.0.1:{line.port}/"
    page.get_by_role("link", name="resnet-7").click()
    connection, rows = page.locator("#connection"), page.locator("#event-rows tr")
    expect(page.locator("#connection")).to_have_text("live", timeout=20_000)
    expect(rows).to_have_count(5)
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.get_by_text("Machines as a table").click()
    happens(tmp_path, "<b>while it looks</b>")
    expect(rows).to_have_count(6, timeout=10_000)
    assert "<b>while it looks</b>" in rows.first.inner_text()
    assert page.locator("#part-machine-table table").is_visible()  # what was opened stays open
    line.cut()
    expect(page.locator("#connection.stale")).to_be_visible(timeout=20_000)
    assert "stale" in connection.inner_text()
    for text in ("unheard one", "unheard two"):
        happens(tmp_path, text)
    line.up = True
    expect(page.locator("#connection")).to_have_text("live", timeout=20_000)
    expect(rows).to_have_count(8, timeout=10_000)
    assert [
        t in rows.nth(i).inner_text() for i, t in enumerate(("unheard two", "unheard one"))
    ] == [True, True]
    page.reload()
    assert rows.count() == 8 and page.problems == []
    page.go_back()
    assert "token" not in page.url
    context.close()
    line.close()


@pytest.mark.slow
def test_a_server_that_says_nothing_is_noticed(chromium: Any, site: Site) -> None:
    line, context = Line(site.port), chromium.new_context()
    page = opened(context, site, line)
    expect(page.locator("#connection")).to_have_text("live", timeout=20_000)
    page.evaluate("runPage.QUIET_MS = 7000")
    os.kill(site.process.pid, signal.SIGSTOP)
    expect(page.locator("#connection.stale")).to_be_visible(timeout=20_000)
    os.kill(site.process.pid, signal.SIGCONT)
    expect(page.locator("#connection")).to_have_text("live", timeout=20_000)
    context.close()
    line.close()


def test_another_browser_sees_nothing(chromium: Any, site: Site) -> None:
    context = chromium.new_context()
    page = context.new_page()
    # A status without any content
    with pytest.raises(sync_api.Error, match="HTTP_RESPONSE_CODE_FAILURE"):
        page.goto(f"http://127.0.0.1:{site.port}/jobs/resnet-7")
    context.close()


def test_no_other_script_runs_and_no_other_site_is_asked(chromium: Any, site: Site) -> None:
    context = chromium.new_context()
    line = Line(site.port)
    page = opened(context, site, line)
    page.evaluate("""() => {
      const made = document.createElement("script");
      made.textContent = "window.acted = true";
      document.body.append(made);
      document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.acted = true'>");
    }""")
    page.wait_for_timeout(300)
    assert page.evaluate("window.acted") is None
    asked = page.evaluate(f"fetch('http://localhost:{line.port}/').then(() => 'yes', () => 'no')")
    assert asked == "no"
    context.close()
    line.close()
