"""The page of a lab: the verdict first, complete without scripts and network, and nothing that it
quotes can act.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from support.lab.made_folder import make
from support.web_pages import Page, read_page

from deepvm.lab.audit.gates import GATES
from deepvm.lab.checked import check
from deepvm.reports.lab.files import LabSummary, lab_page, write_all

WRONG, UNFINISHED = "tokens-gpt-tiny-late-ovl-s1", "tokens-gpt-tiny-base-deepvm-s2"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def rendered(out: Path) -> str:
    return lab_page(LabSummary.of(*check(out)), ["figure-2-goodput.png"])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    return rendered(make(tmp_path_factory.mktemp("good")))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return read_page(
        rendered(make(tmp_path_factory.mktemp("bad"), wrong={WRONG}, unfinished={UNFINISHED}))
    )


@pytest.fixture(scope="module")
def page(good: str) -> Page:
    return read_page(good)


def test_each_gate_says_what_it_asks(page: Page) -> None:
    texts = {element.text.strip() for element in page.elements if element.name == "td"} - {""}
    assert {gate.__doc__ for gate in GATES.values()} <= texts


def test_one_small_file_in_ascii(good: str) -> None:
    assert good.startswith("<!doctype html>\n<html ") and good.isascii() and len(good) < 200_000


def test_nothing_comes_from_elsewhere_and_nothing_can_run(page: Page) -> None:
    assert not {e.name for e in page.elements} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    names = {name for e in page.elements for name in e.attributes}
    assert not {
        n
        for n in names
        if n.startswith("on") or n in ("src", "style", "action", "srcset", "xlink:href")
    }
    for link in page.all("a"):
        href = str(link.attributes["href"])
        assert not href.startswith(("/", ".")) and ":" not in href
    assert "url(" not in page.all("style")[0].text and "@import" not in page.all("style")[0].text


def test_the_policy_allows_this_style_alone(page: Page) -> None:
    (policy,) = [
        e for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    digest = base64.b64encode(hashlib.sha256(page.all("style")[0].text.encode()).digest()).decode()
    assert (
        policy.attributes["content"]
        == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_the_verdict_comes_first(page: Page, bad: Page) -> None:
    assert page.all("h1")[0].text == "27 of 27 runs pass all gates proven"
    assert bad.all("h1")[0].text == "25 of 27 runs pass all gates not proven"
    (alarm,) = [e for e in bad.all("p") if e.attributes.get("class") == "alarm"]
    assert alarm.text.startswith("2 runs did not resume correctly; gates that fail: ")
    assert (
        "bit for bit" in page.all("header")[0].text
        and "bit for bit" not in bad.all("header")[0].text
    )
    assert page.all("title")[0].text.startswith("27 of 27")


def test_each_gate_with_what_it_asks(page: Page, bad: Page) -> None:
    for name, gate in GATES.items():
        assert (
            name in page.by_id("gates").text
            and (gate.__doc__ or "").split("\n")[0] in page.by_id("gates").text
        )
    failing = next(t for t in bad.all("table") if t.attributes.get("class") == "failing").text
    assert f"{WRONG}parameters-other parameters than those of the undisturbed run" in failing
    assert f"{UNFINISHED}stepsparameters, storiesit has ended as failed" in failing


def test_each_suite_has_its_costs_and_recoveries(page: Page) -> None:
    assert [e.attributes["id"] for e in page.all("section")] == [
        *("gates", "warnings", "suite-1", "suite-2", "figures", "environment", "files")
    ]
    late = page.by_id("suite-2").text
    assert "tokens gpt-tiny late" in late and "Failures: exit 6, 10." in late
    for variant in ("none", "ref-blk", "ref-ovl", "blk", "ovl", "deepvm"):
        assert variant in late
    costs, recovery = (
        t for t in page.all("table") if t.text.strip().startswith("What ") and t.text in late
    )
    assert (
        "over blocking, paired" in costs.text and "3 pairs" in costs.text and " to " in costs.text
    )
    assert "detect, s" in recovery.text and "restore, s" in recovery.text
    # Two failures: detected in 0.05 s, restarted in 0.3 s, restored in 0.1 s
    assert "0.1000.6000.200" in recovery.text


def test_what_is_left_out_is_said_where_it_is_missing(bad: Page) -> None:
    assert (
        f"{WRONG}: parameters" in bad.by_id("suite-2").text
        and WRONG not in bad.by_id("suite-1").text
    )
    assert "2 of 3" in bad.by_id("suite-2").text
    assert (
        "Runs that do not pass all gates are in no number below: 2 of 27."
        in bad.by_id("warnings").text
    )


def test_the_reference_is_named(page: Page) -> None:
    assert (
        "The reference is ref-blk: blocking checkpoints, no failures" in page.by_id("warnings").text
    )


def test_links_lead_to_what_is_there(tmp_path: Path) -> None:
    out = make(tmp_path, seeds=(0,))
    write_all(out, LabSummary.of(*check(out)))
    found = read_page((out / "report.html").read_text())
    links = {str(e.attributes["href"]) for e in found.all("a")}
    assert {"summary.csv", "figure-4-stall.svg", "tokens-gpt-tiny-late_publishable.md"} <= links
    for link in links - {"#gates"}:
        assert (out / link).exists(), link


def test_headings_regions_and_labels(page: Page) -> None:
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids) and len(page.all("h1")) == 1
    for e in page.elements:
        assert set(str(e.attributes.get("aria-labelledby", "")).split()) <= set(ids)
        if e.attributes.get("role") in ("group", "img"):
            assert e.attributes["aria-label"]


def test_hostile_texts_are_texts(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,), matrix=HOSTILE)
    machine = tmp_path / "runs" / "tokens-gpt-tiny-late-ovl-s0" / "environment.json"
    machine.write_text(json.dumps({"CPU": HOSTILE}))
    text = rendered(tmp_path)
    assert HOSTILE not in text and "<img" not in text
    assert text.count("&lt;/script&gt;&lt;img") >= 2
    read_page(text)
