"""What a job would rent: what each machine may cost, and what comes besides machines."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support.jobs import worlds
from support.places import ROOT

from deepvm.catalog.published.cloud_rates import rates_of
from deepvm.documents.build import document_of
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.reports.terminal import table_text
from deepvm.reports.text import print_text, table_of
from deepvm.services.jobs import JobPlan

SPOT = Pool("g4dn.xlarge", "us-east-1a", "spot", 0.16)
ANCHOR = Pool("m7g.large", "us-east-1", "on-demand", 0.08)


def document(**terms: Any) -> dict[str, Any]:
    asked = JobLimits(**{"least": 4, "most": 4, "anchor": (ANCHOR,), "anchors": 1, **terms})
    world = JobState(terms=asked, now_s=0.0, pools=(SPOT,))
    names, rates = {"instances": "deepvm job m1"}, rates_of("aws", "us-east-1")
    return document_of("jobs.RunPlan", JobPlan("job", world, None, names, rates))


def test_machines_have_a_limit_where_the_user_set_one_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    free, limited = document(usd_per_hour=3.0), document(usd_per_hour=1.44, max_price=1.44)
    assert [m["most_usd_per_hour"] for m in free["machines"]] == [None, None]
    # All twice as dear
    assert [m["most_usd_per_hour"] for m in limited["machines"]] == pytest.approx([0.32, 0.16])
    print_text("run_plan", plan=free)
    assert "may rise" not in capsys.readouterr().out
    print_text("run_plan", plan=limited)
    assert "prices may rise to $0.32/h for each g4dn.xlarge" in capsys.readouterr().out


def test_what_comes_besides_machines_is_counted_as_in_recommendations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document()
    items = {item["name"]: item for item in found["bill"]["items"]}
    assert items["addresses"]["usd_per_hour"] == pytest.approx(5 * 0.005)
    assert items["boot"]["usd_once"] == pytest.approx((4 * 0.16 + 0.08) * 163.2 / 3600, abs=1e-6)
    assert {part["name"] for part in found["bill"]["not_counted"]} == {"disk", "egress", "bucket"}
    print_text("run_plan", plan=found)
    line = "besides machines: $0.03/h + $0.03 (addresses, boot); not counted: disk, egress, bucket"
    assert line in capsys.readouterr().out


def test_rates_of_another_region_are_printed_with_a_mark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = document()
    bill = {**plan["bill"], "rates_of_region": "us-east-1"}
    print_text("run_plan", plan={**plan, "bill": bill})
    assert "besides machines: ~$0.03/h" in capsys.readouterr().out


def test_a_validation_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"compute": 3000.0, "preparation": 10.0}
    forecast = {"total_s": 3600.0, "breakdown_s": parts, "lost_steps": 4, "preemptions": 2}
    fact = {"total_s": 3650.0, "breakdown_s": dict.fromkeys(parts, 300.0), "lost_steps": 0}
    found = {
        "forecast": {**forecast, "cost_usd": 1.5},
        "fact": {**fact, "preemptions": 2, "cost_usd": 1.6},
    }
    job = worlds.one_machine()
    print_text("job", document={**job.document, "validation": found}, events=job.events)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["total", "time,", "s", "3600.00", "3650.00", "-1.4", "%"] in rows
    assert ["lost", "steps", "4", "0", "-"] in rows
    assert ["cost,", "$", "1.500000", "1.600000", "-6.2", "%"] in rows


def test_a_machine_takes_two_lines_of_a_narrow_terminal_at_most() -> None:
    template = ROOT / "deepvm" / "reports" / "templates" / "job.txt.j2"
    (header,) = [t for t in template.read_text().splitlines() if t.startswith("| machine ")]
    times = "| 11:00:01 | 11:01:22 | 12:40:00 | 12:42:00 |"
    rows = [
        f"| {name} | g5.24xlarge | on-demand {times} no notice received | 12.3456 |"
        for name in ("resnet-7-1", "resnet-7-2")
    ]
    lines = table_text(table_of([header, *rows]), 80, io.StringIO())
    assert max(map(len, lines)) <= 80 and len(lines) <= 8
    assert any("g5.24xlarge" in line and "12:42:00" in line for line in lines)
