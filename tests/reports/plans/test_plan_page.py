"""The page of an answer: complete without scripts and network; what it quotes stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from support.builders import catalog, cpu_type, gpu_type, paper
from support.planner.agreement import step_at
from support.web_pages import Page, read_page

import deepvm
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Gpu
from deepvm.core.cluster.provenance import Origin, Provenance
from deepvm.core.training.speed import Training
from deepvm.core.units import format_short
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import compare
from deepvm.planner.search.frontier import Frontier
from deepvm.reports.pages import TEMPLATES
from deepvm.reports.plans.plan_page import plan_page
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.words import cluster_words
from deepvm.services.keywords import recommend

NOW = datetime(2026, 11, 25, tzinfo=timezone.utc)
SCRIPT = TEMPLATES / "plan.js"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def written(
    answer: Recommendations, *others: Recommendations, command: str = "deepvm recommend --pw 3"
) -> str:
    return plan_page(PlanView(compare([answer, *others]), NOW), command)


def data_of(page: Page) -> Any:
    return json.loads(page.by_id("data").text)


@pytest.fixture(scope="module")
def trained() -> Recommendations:
    workload = read_workload(model="llama-8b", method="fsdp", tokens="2B")
    training = Training(workload, PublishedPerformance())
    return recommend(
        load_catalog("aws-us-east-1", prices="snapshot"), 30, training=training, solver="frontier"
    )


@pytest.fixture(scope="module")
def text(trained: Recommendations) -> str:
    return written(trained)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return read_page(text)


def test_one_small_file_in_ascii(text: str) -> None:
    assert text.startswith("<!doctype html>\n<html ") and text.isascii()
    assert len(text) < 300_000


def test_nothing_comes_from_elsewhere_and_nothing_else_can_run(page: Page) -> None:
    assert not {e.name for e in page.elements} & {
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
    assert {e.attributes["href"] for e in page.elements if "href" in e.attributes} == {"#answer"}
    assert "url(" not in page.all("style")[0].text and "@import" not in page.all("style")[0].text


def test_the_policy_allows_this_script_and_this_style_alone(page: Page) -> None:
    (policy,) = [
        e for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in str(policy.attributes["content"]).split("; "))
    data, script = page.all("script")
    (style,) = page.all("style")

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "script-src": digest(script.text),
        "style-src": digest(style.text),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert data.attributes["type"] == "application/json"
    elements = [e.name for e in page.elements]
    assert elements.index("meta") < elements.index("style")
    assert page.elements.index(policy) < page.elements.index(style)


def test_a_reader_without_scripts_has_the_answer(page: Page, trained: Recommendations) -> None:
    answer = next(
        t for t in page.all("table") if t.attributes.get("class") == "stacked answer"
    ).text
    for label in (
        "recommended",
        "best value",
        "no spot",
        "published",
        "derived",
        "lost to preemption",
        "time",
        "bill",
    ):
        assert label in answer
    best = trained[0]
    assert best.prediction is not None
    interval = best.prediction.throughput
    assert interval.in_short in answer
    assert cluster_words(best.cluster) in page.all("h1")[0].text
    hidden = {e.attributes.get("id") for e in page.elements if "hidden" in e.attributes}
    assert hidden == {"tip", "choose", "searching"}  # what scripts alone can fill


def test_headings_regions_and_labels(page: Page) -> None:
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    for e in page.elements:
        for name in ("aria-labelledby", "for"):
            assert set(str(e.attributes.get(name, "")).split()) <= set(ids), e
    assert len(page.all("h1")) == 1
    assert [e.attributes["id"] for e in page.all("section")] == [
        *("answer", "frontier", "types", "limits", "doubts", "sources", "repeat")
    ]
    assert page.all("html")[0].attributes["lang"] == "en"
    for group in (e for e in page.elements if e.attributes.get("role") == "group"):
        assert group.attributes["aria-label"] and group.attributes["tabindex"] == "0"


def test_each_step_stands_in_the_table_and_in_the_data(
    page: Page, trained: Recommendations
) -> None:
    found = trained.frontier
    assert [s["from"] for s in data_of(page)["steps"]] == [float(s.budget) for s in found.steps]
    (table,) = [t.text for t in page.all("table") if t.attributes.get("class") == "stacked steps"]
    assert all(cluster_words(s.recommendation.cluster) in table for s in found.steps)
    assert len(data_of(page)["machines"]) > 300


def test_every_gpu_type_has_its_fate(page: Page, trained: Recommendations) -> None:
    fates = page.by_id("fates").text
    for instance in trained.catalog:
        assert (instance.name in fates) == (instance.gpu is not None), instance.name
    for rejection in trained.rejections:
        if trained.catalog[rejection.instance_type].gpu is not None:
            assert rejection.reason in fates and rejection.detail in fates
    assert "it is the answer" in fates and "% slower" in fates and "cannot tell them apart" in fates
    heads = [e.text for e in page.all("th") if e.attributes.get("scope") == "row"]
    assert (
        heads.index("p5en.48xlarge") < heads.index("g4dn.xlarge") < heads.index("p6-b200.48xlarge")
    )


def test_limits_doubts_sources_and_how_to_ask_again(page: Page) -> None:
    assert (
        "Limited by budget" in page.by_id("limits").text and "38.9866" in page.by_id("limits").text
    )
    doubts = page.by_id("doubts").text
    assert (
        "no published run of llama-8b" in doubts and "--why" not in doubts and "days old" in doubts
    )
    sources = page.by_id("sources").text
    assert (
        "embedded snapshot" in sources and "2026-08-10T00:00:00Z" in sources and "107 d" in sources
    )
    assert page.all("code")[0].text.strip() == "deepvm recommend --pw 3"
    header = page.all("header")[0].text
    assert "llama-8b, sharded" in header and "Clusters for up to $30/h" in header
    assert f"deepvm {deepvm.__version__} at 2026-11-25T00:00:00Z" in page.all("footer")[0].text


def test_without_a_model_eflops_are_shown_without_intervals() -> None:
    page = read_page(written(recommend(paper(), 3)))
    (answer,) = [t for t in page.all("table") if t.attributes.get("class") == "stacked answer"]
    assert "eFLOPS" in answer.text and "interval" not in page.by_id("frontier").text
    assert "preemption" not in page.by_id("frontier").text
    assert "published" in answer.text and "lost to preemption" not in answer.text
    assert data_of(page)["unit"] == "eFLOPS"


def test_other_objectives_are_named() -> None:
    page = read_page(written(recommend(paper(), 3, objective="flopp")))
    assert "first by flopp" in page.by_id("answer").text and "lower Z" in page.by_id("fates").text
    page = read_page(written(recommend(paper(), 3, policy="cost-first")))
    assert "first by cost-first" in page.by_id("answer").text


def test_a_job_has_time_and_bill_or_never_ends() -> None:
    answer = recommend(paper(), 3, work=100, mttp="12h")
    page = read_page(written(answer))
    assert "bill" in page.by_id("answer").text and "time" in page.by_id("frontier").text
    first = answer[0]
    assert first.outlook is not None
    endless = replace(first, outlook=replace(first.outlook, total_s=math.inf, cost_usd=math.inf))
    page = read_page(written(replace(answer, configurations=(endless,))))
    assert "never" in page.by_id("answer").text and "inf" not in page.by_id("answer").text


def test_a_budget_that_buys_nothing_says_what_would_help() -> None:
    page = read_page(written(recommend(paper(), "0.3")))
    assert "Nothing is feasible for $0.3/h" in page.all("h1")[0].text
    assert "raise the budget" in page.by_id("answer").text
    assert page.by_id("chosen").attributes["visibility"] == "hidden"
    assert "0.3242" in page.by_id("limits").text


def test_no_cluster_at_any_price() -> None:
    page = read_page(written(recommend(catalog(gpu_type(eflops=None), cpu_type()), 3)))
    assert not page.all("svg") and "unprofiled" in page.by_id("fates").text


def test_other_regions_have_a_line() -> None:
    east = recommend(replace(paper(), region="east"), 3)
    west = recommend(replace(paper(), region="west"), 1)
    assert "Region west: " in read_page(written(east, west)).by_id("answer").text


def hostile_answer() -> Recommendations:
    """Every name that a file of a user may hold."""
    gpu, other = (
        gpu_type(f"a{HOSTILE}"),
        gpu_type(f"b{HOSTILE}", gpu=Gpu(HOSTILE), eflops=None, eflops_source=HOSTILE),
    )
    origin = Origin("spot", "live", NOW, HOSTILE, ((HOSTILE, 3),))
    about = Provenance(
        "file", NOW.date(), HOSTILE, (origin,), HOSTILE, (HOSTILE,), doubts=(HOSTILE,)
    )
    shop = catalog(
        gpu, other, cpu_type(f"c{HOSTILE}"), name=HOSTILE, region=HOSTILE, eflops_unit=HOSTILE
    )
    return recommend(replace(shop, provenance=about), 3, memory_node=f"c{HOSTILE}")


def hostile_model() -> Recommendations:
    """The same where a model is trained that a user named."""
    workload = read_workload(model="gpt2")
    workload = replace(workload, model=replace(workload.model, name=HOSTILE))
    gpu = gpu_type(f"a{HOSTILE}", gpu=Gpu("A100", memory_gib=40.0))
    return recommend(
        catalog(gpu, cpu_type(), name=HOSTILE),
        3,
        training=Training(workload, PublishedPerformance()),
    )


@pytest.mark.parametrize("answer", [hostile_answer, hostile_model])
def test_no_name_gets_out_of_its_place(answer: Callable[[], Recommendations]) -> None:
    found = answer()
    text = written(found, command=f"deepvm recommend --catalog {HOSTILE}")
    page = read_page(text)
    assert HOSTILE not in text and "<img" not in text
    assert not page.all("img") and len(page.all("script")) == 2
    assert not {n for e in page.elements for n in e.attributes if n.startswith("on")}
    assert page.by_id("fates").text.count(f"a{HOSTILE}") >= 1
    assert HOSTILE in page.all("code")[0].text and HOSTILE in page.all("header")[0].text
    data = data_of(page)
    assert data["types"] == [f"a{HOSTILE}"]


def in_node(expression: str, *values: object) -> Any:
    """What an expression of the page's script gives, with ``values`` as ``v``."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no JavaScript engine")
    script = json.dumps(f"{SCRIPT.read_text()};globalThis.p = planPage;")
    code = (
        f"require('vm').runInThisContext({script});"
        f"const v = {json.dumps(values)}; console.log(JSON.stringify({expression}));"
    )
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_slider_finds_the_planner_s_step(page: Page, trained: Recommendations) -> None:
    found: Frontier = trained.frontier
    budgets = [Decimal(i) / 7 for i in range(0, 7 * 60 + 1, 3)] + [s.budget for s in found.steps]
    expected = [found.steps.index(step) if (step := step_at(found, b)) else -1 for b in budgets]
    assert (
        in_node(
            "v[1].map((b) => p.stepAt(v[0], b))",
            data_of(page)["steps"],
            [float(b) for b in budgets],
        )
        == expected
    )


def test_the_script_shows_numbers_as_the_page_does() -> None:
    values = [
        1.0,
        0.123456,
        12.3456,
        999.96,
        9994.0,
        9995.0,
        12345.6,
        998_000.0,
        999_600.0,
        1.5e6,
        2.34e9,
        5651.2,
    ]
    assert in_node("v[0].map(p.short)", values) == [format_short(v) for v in values]
    assert (
        in_node("p.machineWords(['g5'], v[0])", [0, 3, 1, 1.0, 2.0]) == "3 x g5 spot + 1 on demand"
    )
    assert in_node("p.machineWords(['g5'], v[0])", [0, 0, 2, 1.0, 2.0]) == "2 x g5"
    assert in_node("p.machineWords(['g5'], v[0])", [0, 2, 0, 1.0, 2.0]) == "2 x g5 spot"


def test_places_machines_words_and_comparisons_of_the_script() -> None:
    assert in_node("[p.place(v[0], 5), p.value(v[0], 55)]", [10, 10, 100]) == [55, 5]
    machines = [[0, 1, 0, 1.0, 1.0], [0, 2, 0, 2.0, 1.9]]
    axes = [10, 0, 100], [10, 100, 0]
    assert in_node("p.nearest(v[0], v[1], v[2], 19, 82, 7)", machines, *axes) == 1
    assert in_node("p.nearest(v[0], v[1], v[2], 50, 50, 7)", machines, *axes) == -1
    assert in_node(
        "[p.matches('g5.xlarge A10G', 'a10 G5'), p.matches('g5', 'g6'), p.matches('g5', '')]"
    ) == [*(True, False, True)]
    steps = [{"speed": 10, "usd": 1}, {"speed": 12, "usd": 3}, {"speed": 10, "usd": 0.5}]
    said = in_node(
        "[p.compared(v[0][1], v[0][0]), p.compared(v[0][2], v[0][0]), p.compared(v[0][0],"
        " v[0][0])]",
        steps,
    )
    head = "Against the plan for the request's budget: "
    assert said == [f"{head}20 % faster, 3.0 times the price.", f"{head}as fast, 50 % cheaper.", ""]


def test_the_script_makes_no_html_of_texts() -> None:
    code = SCRIPT.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|fetch|XMLHttp|import",
        code,
    )
    assert code.isascii() and "</" not in code and "<!--" not in code
