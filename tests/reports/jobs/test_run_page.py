"""The page of a job: complete without scripts and network, and nothing that it quotes can act."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from support.jobs import worlds
from support.web_pages import Page, read_page

from deepvm.core.units import elapsed
from deepvm.jobs.decisions.world import Head, Role
from deepvm.jobs.history.history import MACHINE, STATE, EventRow, Sample
from deepvm.jobs.history.job_report import final_document
from deepvm.jobs.history.timeline import DOWNTIME, Downtime, TrainingTimeline, losses, paid, phases
from deepvm.jobs.standing import GONE
from deepvm.reports import pages
from deepvm.reports.jobs.run_page import MAX_EVENTS, RunPage
from deepvm.reports.pages import TEMPLATES

SCRIPT = TEMPLATES / "jobs.js"


@pytest.fixture(scope="module")
def text() -> str:
    return RunPage(worlds.many(40)).render()


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return read_page(text)


def test_one_file_in_ascii_that_loads_nothing(text: str, page: Page) -> None:
    assert text.startswith("<!doctype html>\n<html ") and text.isascii() and len(text) < 400_000
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
    assert {e.attributes["href"] for e in page.elements if "href" in e.attributes} == {"#machines"}
    assert "url(" not in page.all("style")[0].text and "@import" not in page.all("style")[0].text


def test_the_policy_allows_this_script_and_this_style_alone(page: Page) -> None:
    (policy,) = [
        e for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    (script,), (style,) = page.all("script"), page.all("style")

    def digest(found: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()}'"

    assert (
        policy.attributes["content"]
        == f"default-src 'none'; style-src {digest(style.text)}; script-src {digest(script.text)}; "
        "base-uri 'none'; form-action 'none'"
    )


def test_nothing_of_a_user_can_act_and_no_secret_is_shown() -> None:
    text = RunPage(worlds.hostile()).render()
    page = read_page(text)
    assert not page.all("img") and len(page.all("script")) == 1
    assert "<img" not in text and "onerror=alert" in page.all("h1")[0].text
    assert "\x1b" not in page.all("body")[0].text and "\u202e" not in page.all("body")[0].text
    said = RunPage(worlds.one_machine()).render()
    assert "WANDB_API_KEY" in said and "planted-secret" not in said and "bucket.example/run" in said


def test_a_reader_without_scripts_has_it_all(page: Page) -> None:
    job = worlds.many(40)
    body = page.all("body")[0].text
    assert len([t for t in page.all("table")]) == 5
    machines = page.by_id("part-machine-table").text
    assert all(m["id"] in machines for m in job.document["machines"])
    assert f"${job.document['cost_usd']:.2f}" in body and "was saved" in body
    assert "checkpoint of step" in page.by_id("event-rows").text
    assert {e.attributes["id"] for e in page.elements if "hidden" in e.attributes} == {
        "tip",
        "filter",
    }


def test_headings_regions_and_pictures_have_names(page: Page) -> None:
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    assert [e.attributes["id"] for e in page.all("section")] == [
        "time",
        "machines",
        "steps",
        "money",
        "events",
        "file",
    ]
    for e in page.elements:
        assert set(str(e.attributes.get("aria-labelledby", "")).split()) <= set(ids)
        if e.attributes.get("role") in ("group", "img"):
            assert e.attributes["aria-label"]
        if e.attributes.get("role") == "group":
            assert e.attributes["tabindex"] == "0"


def test_a_job_that_goes_on() -> None:
    job = worlds.one_machine(over=False)
    job = replace(job, row=replace(job.row, state="running"), controller=GONE)
    text = RunPage(job).render(nonce="abc")
    assert "deepvm jobs resume resnet-7" in text and 'script nonce="abc"' in text
    assert "script-src 'nonce-abc'; connect-src 'self'" in html.unescape(text)
    live = read_page(text).by_id("live")
    assert (
        live.attributes["data-stream"] == "/jobs/resnet-7/events"
        and live.attributes["data-after"] == "5"
    )


def test_saves_that_fail_are_an_alarm() -> None:
    job = worlds.one_machine(over=False)
    said = "saves failed since step"
    assert said not in RunPage(job).render()
    failed = {"total": 9, "in_a_row": 8, "why": f"{worlds.HOSTILE} is full"}
    text = RunPage(
        replace(job, document={**job.document, "failed_saves": failed, "version": 90})
    ).render()
    assert (
        f"8 {said} 90, the newest checkpoint that is safe: " in text and worlds.HOSTILE not in text
    )
    read_page(text)


def test_a_job_of_which_nothing_is_known_yet() -> None:
    empty = worlds.standing([], [], [], end_s=0.0, over=False)
    text = RunPage(empty).render()
    assert "No machine has been asked for yet" in text and "No step has been seen yet" in text
    read_page(text)


def test_the_budget() -> None:
    for usd, said in [
        (None, ""),
        (0.005, "budget, $0.005"),
        (1000.0, "The budget of $1000 is far above"),
    ]:
        text = RunPage(worlds.one_machine(budget={"total_usd": usd})).render()
        assert said in text and ("line budget" in text) is (usd == 0.005)


def test_events_are_limited_and_new_ones_come_alone() -> None:
    job = worlds.one_machine()
    many = [replace(job.events[3], number=i) for i in range(1, MAX_EVENTS + 101)]
    page = RunPage(replace(job, events=many))
    assert (
        page.event_rows(0).count("<tr") == MAX_EVENTS
        and "100 older ones are left out" in page.render()
    )
    assert (
        page.event_rows(MAX_EVENTS + 98).count("<tr") == 2 and page.last_event == MAX_EVENTS + 100
    )


@pytest.mark.parametrize("over", [True, False])
def test_what_was_paid_by_when(over: bool) -> None:
    """The line ends at what the card says, with what heads cost, and that on demand at the report's
    figure.
    """
    job = worlds.many(40)
    start_s, now_s = worlds.START_S, job.world.now_s
    heads = (
        Head("head-1", 3.6, start_s, start_s + 900),
        Head("head-2", 3.6, start_s + 1000, now_s if over else None),
    )
    world = replace(job.world, heads=heads)
    document = final_document("resnet-7", start_s, world, job.events, {"g4dn.xlarge": 0.526})
    job = replace(job, world=world, document=document)
    bends = paid(world, start_s, RunPage(job).times.end_s)
    assert document["head_usd"] > 1 and bends[-1].usd == pytest.approx(
        document["cost_usd"], rel=1e-6
    )
    assert bends[-1].head_usd == pytest.approx(document["head_usd"])
    assert all(a.usd <= b.usd and a.x_s < b.x_s for a, b in zip(bends, bends[1:], strict=False))
    assert f"<dt>Paid</dt><dd><b>${bends[-1].usd:.2f}</b>" in RunPage(job).render()


def test_a_type_without_a_price_is_named() -> None:
    job = worlds.one_machine()
    document = final_document("resnet-7", worlds.START_S, job.world, job.events, {})
    text = RunPage(replace(job, document=document)).render()
    assert "the on-demand price of g4dn.xlarge is not known" in text and "was saved" not in text


def test_losses_are_where_steps_fall() -> None:
    samples = [Sample(1.0, 1, 5), Sample(2.0, 1, 9), Sample(3.0, 2, 4), Sample(4.0, 2, 6)]
    assert [(x.at_s, x.step, x.lost) for x in losses(samples)] == [(3.0, 4, 5)]


def test_phases_follow_one_another() -> None:
    job = worlds.many(60)
    trained = TrainingTimeline.of(job.events, RunPage(job).times.end_s, job.without)
    for machine in job.world.machines.values():
        found = list(phases(machine, worlds.START_S + 1e6, trained))
        assert all(a[2] == b[1] for a, b in zip(found, found[1:], strict=False))
        if machine.ended_s is not None and machine.launched_s is not None:
            assert found[0][1] == machine.requested_s and found[-1][2] == machine.ended_s
    noticed = worlds.machine(
        1, 0, launched_s=worlds.START_S + 5, noticed_s=worlds.START_S + 8, role=Role.TRAINER
    )
    assert [k for k, *_ in phases(noticed, worlds.START_S + 20, trained)] == [
        "waits",
        "warms",
        "noticed",
    ]


def row(at_s: float, kind: str, state: str, generation: int, machine: str = "") -> EventRow:
    return EventRow(worlds.START_S + at_s, kind, state, {"generation": generation, "id": machine})


def test_a_machine_that_is_ready_is_drawn_as_waiting_until_it_trains() -> None:
    """m1 waits for the trainers of m2, m3 for a version to join behind.

    Then m2 is lost, and the others wait.
    """
    events = [
        row(10, STATE, "forming", 1),
        row(11, "started", "forming", 1, "m1"),
        row(14, "started", "running", 1, "m2"),
        row(30, "safe", "saving", 1),
        row(31, STATE, "forming", 2),
        *(row(32, "started", "running", 2, m) for m in ("m1", "m2", "m3")),
        row(50, MACHINE, "forming", 2, "m2"),
        row(60, "started", "running", 3, "m1"),
        row(62, "started", "running", 3, "m3"),
        row(70, DOWNTIME, "running", 3),
        row(80, "ended", "done", 3, "m1"),
    ]
    trained = TrainingTimeline.of(
        events, worlds.START_S + 90, [Downtime(worlds.START_S + 65, worlds.START_S + 70)]
    )

    def drawn(number: int, ready_s: float) -> list[tuple[str, float, float]]:
        made = worlds.machine(
            number, 0, launched_s=worlds.START_S + 1, ready_s=worlds.START_S + ready_s
        )
        found = phases(made, worlds.START_S + 90, trained)
        return [
            (kind, a - worlds.START_S, b - worlds.START_S)
            for kind, a, b in found
            if kind not in ("waits", "warms")
        ]

    end = [
        ("idle", 50, 60),
        ("member", 60, 65),
        ("downtime", 65, 70),
        ("member", 70, 80),
        ("idle", 80, 90),
    ]
    assert drawn(1, 10) == [
        ("idle", 10, 14),
        ("member", 14, 31),
        ("idle", 31, 32),
        ("member", 32, 50),
        *end,
    ]
    assert drawn(3, 20) == [("idle", 20, 32), ("member", 32, 50), *end]
    loads = worlds.machine(5, 0, launched_s=worlds.START_S + 60, ready_s=worlds.START_S + 75)
    kinds = [kind for kind, *_ in phases(loads, worlds.START_S + 90, trained)]
    assert kinds == ["waits", "warms", "downtime", "warms", "idle"]
    assert drawn(4, 40) == [("idle", 40, 65), ("downtime", 65, 70), ("idle", 70, 90)]
    assert TrainingTimeline.of(events[:3], worlds.START_S + 20).runs == [
        (1, worlds.START_S + 14, worlds.START_S + 20)
    ]


def test_the_page_says_when_there_was_no_controller_and_who_waited() -> None:
    job = worlds.one_machine(over=False)
    away = Downtime(worlds.START_S + 20, worlds.START_S + 45)
    document = final_document(
        "resnet-7", worlds.START_S, job.world, job.events, {"g4dn.xlarge": 0.526}, [away]
    )
    text = RunPage(replace(job, without=[away], document=document)).render()
    page = read_page(text)
    assert (
        "no controller" in page.by_id("part-machines").text
        and "no controller25 s" in page.by_id("part-time").text
    )
    assert "no controller" in page.by_id("part-steps").text
    assert "25.0 s of it without a controller" in page.by_id("part-head").text
    assert 'class="bar downtime"' in text and 'class="bar idle"' in text and "ready, waits" in text
    usual = RunPage(worlds.one_machine()).render()
    assert (
        "no controller" not in read_page(usual).by_id("part-time").text
        and 'class="bar downtime"' not in usual
    )


def test_few_labels_for_any_time() -> None:
    for span_s in [0.5, 7, 59, 61, 240, 3600, 7300, 40_000, 200_000, 3e6, 4e7]:
        ticks = pages.Times(0.0, span_s).ticks()
        assert 2 <= len(ticks) <= 6 and len({label for _, label in ticks}) == len(ticks)
        assert all(len(label) <= 7 for _, label in ticks)


def test_few_labels_for_any_amount() -> None:
    for most in [1e-6, 0.0034, 0.5, 1, 7, 99, 1000, 172_480, 3e9]:
        rows, labels = zip(*pages.Scale.up_to(most).ticks(4), strict=True)
        assert (
            rows[-1] >= most * 0.999 and 2 <= len(rows) <= 6 and len(set(labels)) == len(labels)
        ), labels
        for value, label in zip(rows, labels, strict=True):
            size = {"k": 1e3, "M": 1e6, "G": 1e9}.get(label[-1], 1)
            assert float(label.rstrip("kMG")) * size == pytest.approx(value)


def test_times_in_python_and_in_the_script() -> None:
    for seconds, said in [
        (0, "0.0 s"),
        (12.34, "12.3 s"),
        (60, "1:00"),
        (245, "4:05"),
        (3600, "1:00:00"),
        (176_720, "2 d 1:05:20"),
    ]:
        assert elapsed(seconds) == said
        if shutil.which("node"):
            program = (
                f"{SCRIPT.read_text()}; console.log(JSON.stringify(runPage.elapsed({seconds})))"
            )
            assert json.loads(subprocess.check_output(["node", "-e", program], text=True)) == said


def test_the_script_finds_values_and_rows() -> None:
    if not shutil.which("node"):
        pytest.skip("needs node")
    program = f"""{SCRIPT.read_text()}
    const line = [[0, 0], [10, 100], [10, 40], [20, 80]];
    console.log(JSON.stringify([runPage.valueAt(line, 5), runPage.valueAt(line, 15),
      runPage.valueAt(line, 21),
      runPage.valueAt([], 1), runPage.matches("m2 was lost", "trouble", "LOST m2", "trouble"),
      runPage.matches("m2 was lost", "trouble", "", "versions"), 
      runPage.matches("m2 was lost", "trouble", "m3", "")]))"""
    found = json.loads(subprocess.check_output(["node", "-e", program], text=True))
    assert found == [50, 60, None, None, True, False, False]


def contrast(one: str, other: str) -> float:
    def light(color: str) -> float:
        digits = color if len(color) == 6 else "".join(c * 2 for c in color)
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_paper() -> None:
    style = SCRIPT.with_suffix(".css").read_text()
    for block in re.findall(r":root \{(.*?)\}", style, re.S):
        colors = dict(re.findall(r"--(\w+): #(\w+);", block))
        # Of texts
        for name in ("ink", "quiet", "blue", "orange", "red", "green", "violet", "amber"):
            assert min(contrast(colors[name], colors[p]) for p in ("paper", "shade")) >= 4.5, (
                name,
                colors,
            )
        for name in ("edge",):  # of shapes
            assert contrast(colors[name], colors["paper"]) >= 3, (name, colors)
