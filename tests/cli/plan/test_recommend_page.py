"""``recommend -o html``."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.command import Run
from support.web_pages import Page, read_page

SNAPSHOT = ("--prices", "snapshot", "--offline")


def table(page: Page, name: str) -> str:
    return next(t.text for t in page.all("table") if name in t.attributes.get("class", "").split())


def test_it_shows_what_the_screen_shows(run: Run) -> None:
    words = (
        "recommend",
        "--pw",
        "30",
        "--model",
        "llama-8b",
        "--method",
        "fsdp",
        "--tokens",
        "2B",
        *SNAPSHOT,
    )
    code, out, _ = run(*words, "-o", "html")
    page = read_page(out)
    assert code == 0 and len(out) < 300_000
    screen = run(*words)[1]
    answer = table(page, "answer")
    for cell in ("1 x p5.48xlarge spot", "no spot"):
        assert cell in screen and cell in answer
    assert "published" in answer and "published" in run(*words, "--why")[1]


def test_its_command_line_gives_the_same_page(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPVM_CATALOG", "paper")
    code, out, _ = run("recommend", "3", "--exclude", "g5.*", "-o", "html")
    assert code == 0
    again = read_page(out).all("code")[0].text
    assert again == "deepvm recommend --pw 3 --catalog paper --exclude 'g5.*' -o html"
    monkeypatch.delenv("DEEPVM_CATALOG")
    repeated = run(*shlex.split(again)[1:])[1]
    assert table(read_page(repeated), "answer") == table(read_page(out), "answer")


def test_nothing_feasible_is_a_page_too(run: Run) -> None:
    code, out, err = run("recommend", "--pw", "0.3", "--catalog", "paper", "-o", "html")
    assert code == 3 and "raise the budget" in err
    assert "Nothing is feasible" in read_page(out).all("h1")[0].text


def test_simulated_jobs_and_regions(run: Run) -> None:
    job = ("--work", "10", "--mttp", "12h", "--simulate", "5")
    code, out, _ = run("recommend", "--pw", "3", "--catalog", "paper", *job, "-o", "html")
    assert code == 0 and "bill" in table(read_page(out), "answer")
    code, out, _ = run(
        "recommend", "--pw", "3", "-r", "us-east-1", "-r", "us-west-2", *SNAPSHOT, "-o", "html"
    )
    assert (
        code == 0 and "--region us-east-1 --region us-west-2" in read_page(out).all("code")[0].text
    )


def test_names_of_files_stay_text(run: Run, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    _, out, _ = run("catalog", "show", "paper", "-o", "json")
    file = tmp_path / "shop.json"
    file.write_text(out.replace("g4dn.xlarge", name).replace('"T4"', f'"{name}"'))
    code, out, _ = run("recommend", "--pw", "3", "--catalog", file, "-o", "html")
    page = read_page(out)
    assert code == 0 and "<img" not in out and not page.all("img")
    assert f"17 x {name} spot" in page.all("h1")[0].text
