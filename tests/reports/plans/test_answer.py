"""The answer on one screen, and the reasons behind it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lognormal import probability_above

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.cluster import JobEstimate
from deepvm.core.lifetimes import START_S
from deepvm.core.training.speed import Training
from deepvm.core.units import Interval
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import compare
from deepvm.reports.plans import plan_view, words
from deepvm.reports.plans.answer import _warnings, print_answer
from deepvm.reports.plans.plan_view import Note, PlanView
from deepvm.reports.plans.report import print_report
from deepvm.services.keywords import recommend

PRICES = datetime(2026, 8, 10, tzinfo=timezone.utc)


@cache
def answered(
    budget: str, model: str = "llama-8b", tokens: str | None = None, **options: str
) -> Recommendations:
    workload = read_workload(model=model, tokens=tokens)
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    training = Training(workload, PublishedPerformance())
    return recommend(catalog, budget, training=training, solver="frontier", **options)  # type: ignore[arg-type]


def shown(
    answer: Recommendations, capsys: pytest.CaptureFixture[str], now: datetime = PRICES
) -> list[str]:
    print_answer(PlanView(compare([answer]), now))
    return capsys.readouterr().out.splitlines()


def rows_of(answer: Recommendations) -> list[plan_view.Row]:
    return PlanView(compare([answer]), PRICES).rows


def reasons(
    answer: Recommendations, capsys: pytest.CaptureFixture[str], *, wide: bool = False
) -> str:
    print_report(PlanView(compare([answer]), PRICES), wide=wide)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("budget", "model", "tokens"),
    [
        ("3", "resnet50", None),
        ("30", "llama-8b", "2B"),
        ("0.5", "bert-large", None),
        ("300", "llama-70b", None),
    ],
)
def test_it_fits_on_a_screen(
    budget: str, model: str, tokens: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(answered(budget, model, tokens), capsys, PRICES + timedelta(days=100))
    assert len(lines) <= 15 and max(map(len, lines)) <= 78


def test_value_and_interval_are_of_the_same_speed(capsys: pytest.CaptureFixture[str]) -> None:
    for r in answered("300", "llama-70b"):
        assert r.prediction is not None
        assert r.throughput == pytest.approx(r.prediction.throughput.value)


def test_the_best_value_is_the_first_where_others_save_little(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One T4 would train as much for 1 % less, and take half as long again."""
    best = answered("0.6", "bert-base")
    cheapest = answered("0.32", "bert-base")[0]
    assert 0.95 * best[0].usd_per_work < cheapest.usd_per_work < best[0].usd_per_work  # type: ignore[operator]
    assert cheapest.throughput < best[0].throughput / 1.5
    assert [label for label, _ in rows_of(best)] == ["fastest, best value, one GPU", "no spot"]


def test_a_baseline_has_no_best_value() -> None:
    found = answered("30", "resnet50", policy="performance-first")
    assert [label for label, _ in rows_of(found)][0] == "first by performance-first"
    each = [r.cluster.gpu.eflops for r in found]
    assert each == sorted(each, reverse=True), "5 % of a rank is no share of a speed"  # type: ignore[type-var]


def test_the_bill_at_a_good_and_at_a_bad_time() -> None:
    first = answered("30", "llama-8b", "2B")[0]
    assert (
        first.outlook is not None
        and first.prediction is not None
        and first.outlook.costs_usd is not None
    )
    low, high = first.outlook.costs_usd
    assert low < first.outlook.cost_usd < high
    kept, speed = first.prediction.kept, first.prediction.throughput
    ends = (
        (kept.high, speed.high, low),
        (kept.value, speed.value, first.outlook.cost_usd),
        (kept.low, speed.low, high),
    )
    for share, units_per_s, bill in ends:
        assert bill == pytest.approx(
            float(first.usd_per_hour) * (START_S + 2e9 / (share * units_per_s)) / 3600
        )
    steady = answered("30", "llama-8b", "2B").on_demand
    assert (
        steady is not None and steady.outlook is not None and steady.outlook.costs_usd is not None
    )
    assert steady.outlook.costs_usd[0] < steady.outlook.cost_usd < steady.outlook.costs_usd[1]


def test_bills_in_words() -> None:
    for cost, costs, text in [
        (608.4, None, "$608"),
        (5.0, None, "$5.00"),
        (196.0, (192.4, 201.2), "$192-201"),
        (9.0, (9.0, 9.001), "$9.00"),
    ]:
        estimate = JobEstimate(1.0, cost, 0.0, costs_usd=costs)
        assert words.time_and_bill(estimate)[1] == text


def test_losses_in_words() -> None:
    first = answered("3", "resnet50")[0]
    assert first.prediction is not None
    for kept, text in (
        (Interval(0.963, 0.99, 0.9999), "0.0 to 3.7 %"),
        (Interval(0.754, 0.9, 0.998), "0.2 to 25 %"),
    ):
        losing = replace(first, prediction=replace(first.prediction, kept=kept))
        assert words.lost_words(losing) == text


@given(st.decimals(min_value="0.000001", max_value="100000", places=6))
def test_a_budget_as_budget_still_buys_it(usd: Decimal) -> None:
    cents = Decimal(words.as_budget(usd))
    assert usd <= cents < usd + Decimal("0.01")


def test_what_more_money_buys_is_worth_it() -> None:
    for budget, model in (("3", "resnet50"), ("300", "llama-70b"), ("0.5", "bert-large")):
        change = answered(budget, model).next_change
        assert change is not None and change.gain is not None and change.gain >= 0.05


def test_one_gpu_and_a_little_more_money_are_rows_where_there_is_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answered("300", "llama-70b", "10B")
    change = found.next_change
    assert change is not None and change.budget <= 600
    view = PlanView(compare([found]), PRICES)
    label = f"for ${words.as_budget(change.budget)}/h"
    assert view.more_rows == [(label, change.recommendation)]
    small = answered("3", "resnet50")
    (single, _) = PlanView(compare([small]), PRICES).more_rows
    assert single == ("one GPU", small.single_gpu)
    lines = shown(small, capsys)
    assert any(line.startswith("one GPU ") for line in lines) and len(lines) <= 15


def test_a_budget_above_twice_this_one_has_no_row() -> None:
    found = answered("3", "resnet50")
    assert found.next_change is not None
    for budget, rows in ((Decimal("6.00"), 2), (Decimal("6.01"), 1)):
        change = replace(found.next_change, budget=budget)
        view = PlanView(compare([replace(found, next_change=change)]), PRICES)
        assert len(view.more_rows) == rows


def test_warnings_without_room_are_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered("30", "llama-8b", "2B")
    first = replace(found[0], warnings=tuple(f"{letter} " * 40 for letter in "abcdef"))
    lines = shown(replace(found, configurations=(first, *found.configurations[1:])), capsys)
    (hidden,) = re.findall(r"^Next +--why \((\d) warnings\);", "\n".join(lines), re.MULTILINE)
    assert len(lines) <= 15 and int(hidden) + sum(line.startswith("! ") for line in lines) == 6
    late, other = Note("deadline", "late", "!"), Note("warning", "other", "!")
    assert _warnings([], [late, other]) == [("", "! --why has 2 warnings: deadline")]
    assert _warnings([late], [late])[1] == ("", "! --why has 1 more warning: deadline")
    assert _warnings([late], [other]) == [("", "! late")]  # in the line of what comes next


def test_the_next_budget_is_no_trap(capsys: pytest.CaptureFixture[str]) -> None:
    """For $1/h there are three T4 that gather a sharded model over Ethernet.

    Half a dollar more is a new world.
    """
    change = answered("1", "qwen2.5-1.5b", "100M").next_change
    assert change is not None and change.gain is not None and change.gain > 10 and change.budget < 2
    asked = answered("1", "qwen2.5-1.5b")
    assert "times the speed" in reasons(asked, capsys)


def test_a_bad_time_is_called_out_from_five_per_cent_on() -> None:
    best = answered("3", "resnet50")
    assert list(plan_view.bad_time_note(rows_of(best))) == []
    first = best[0]
    assert first.prediction is not None
    bad = replace(first, prediction=replace(first.prediction, kept=Interval(0.48, 0.9, 1.0)))
    (note,) = plan_view.bad_time_note([("fastest", bad), *rows_of(best)[1:]])
    plan = "5 x g4dn.xlarge on demand is faster"
    assert str(note) == f"! at a bad time, when spot VMs live for hours, {plan}"
    assert list(plan_view.bad_time_note([("", bad), *rows_of(best)[1:]], cheap=True)) == []


def test_a_deadline_that_a_slower_run_would_miss_is_called_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The time is that of a speed in the middle: just in time is late in half of the cases."""
    one = {"instance_type": "p5.48xlarge"}  # of which $30/h buy one
    time_s = next(iter(answered("30", "llama-8b", "2B", **one))).outlook.total_s  # type: ignore[union-attr]
    for factor, least, most in ((1.0001, 0.45, 0.55), (1.15, 0.1, 0.3), (2.2, 0.0, 0.01)):
        best = answered("30", "llama-8b", "2B", deadline=f"{time_s * factor}s", **one)
        late = best[0].outlook.late_probability  # type: ignore[union-attr]
        assert late is not None and least <= late <= most
        said = [line for line in shown(best, capsys) if "misses the deadline" in line]
        assert said == [] if late < 0.1 else f" in {late:.0%} of cases" in said[0]
        if said:
            assert f"{late:.0%} of cases" in reasons(best, capsys)


def test_old_prices_are_called_out(capsys: pytest.CaptureFixture[str]) -> None:
    best = answered("30", "llama-8b", "2B")
    ages = [line for line in shown(best, capsys, PRICES + timedelta(days=8)) if "days old" in line]
    assert ages == ["llama-8b, 2B tokens, for up to $30/h on AWS us-east-1; prices are 29 days old"]


def test_a_row_for_each_type() -> None:
    names = [r.cluster.gpu.name for r in answered("300", "llama-70b", None)]
    assert len(names) == len(set(names)) == 3


def test_reasons_speak_of_what_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    best = answered("300", "llama-70b")
    out = reasons(best, capsys)
    first = best[0]
    assert first.usd_per_work is not None and first.prediction is not None
    assert f"{first.usd_per_work / 3600 * 1e6:.3g}" in out and "$ per 1M tokens" in out
    assert f"Speed: {first.cluster.gpu_count * 8} x B300 do a step of 8 samples a GPU" in out
    assert f"{first.prediction.mfu:.0%} of their peak in bf16 (MFU)" in out
    assert "Scaling: 6 VMs are " in out and "training stops when any of 6 goes" in out
    assert "a spot p6-b300.48xlarge lives 4 h at a bad time (public traces)" in out
    assert "eFLOPS" not in out and "S(1)" not in out


def test_doubts_about_several_gpus_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = reasons(answered("300", "llama-70b"), capsys).splitlines()
    (line,) = (d for d in found if "no published run of llama-70b" in d)
    run = r"llama-70b with fsdp on [^:]*B200[^:]* or [^:]* in bf16"
    assert re.fullmatch(rf"Warning: no published run of {run} is known: derived .*", line)
    assert sum("plain PyTorch is counted" in d for d in found) == 1, (
        "of the request, not of each type"
    )


def test_wide_adds_what_the_step_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    head = next(
        line
        for line in reasons(answered("30"), capsys, wide=True).splitlines()
        if line.startswith("#")
    )
    assert {"MFU", "step", "precision", "K(n)"} <= set(re.split(r"\s{2,}", head))


def test_each_doubt_says_which_type_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    """Not "16 vCPUs read too little" below a first row that has 96."""
    best = answered("3", "resnet50")
    said = [
        line
        for line in reasons(best, capsys).splitlines()
        if line.startswith("Warning:") and "vCPUs" in line
    ]
    assert said and all(any(f"{r.cluster.gpu.name}: " in line for r in best) for line in said)


def test_one_screen_names_the_fastest_rival_that_nobody_can_tell_apart() -> None:
    best = answered("240.83", "efficientnet-v2-m")
    first, second, third = best.configurations[:3]
    assert first.prediction and second.prediction and third.prediction
    alike = [replace(r.prediction, faster_than_first=0.5) for r in (second, third) if r.prediction]
    slow, fast = (replace(r, prediction=p) for r, p in zip((second, third), alike, strict=True))
    fast = replace(
        fast, prediction=replace(alike[1], throughput=first.prediction.throughput.scaled(1.1))
    )
    (note,) = plan_view.rival_note(replace(best, configurations=(first, slow, fast)))
    assert str(note).startswith(f"~ {words.cluster_words(fast.cluster)} at ")


def test_fastest_is_said_of_nothing_slower_whatever_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for budget, model, options in (
        ("3", "llama-8b", {"method": "lora"}),
        ("7.67", "llama-8b", {"method": "fsdp"}),
    ):
        training = Training(read_workload(model=model, **options), PublishedPerformance())
        catalog = load_catalog("aws-us-east-1", prices="snapshot")
        most = max(
            r.kept_throughput.value
            for r in recommend(
                catalog, budget, training=training, solver="frontier", rank="plans", top=60
            )
            if r.prediction and r.prediction.trusted
        )
        for top in (1, 3):
            best = recommend(catalog, budget, training=training, solver="frontier", top=top)
            assert best.fastest is (most <= 1.01 * best[0].kept_throughput.value)
            assert shown(best, capsys)[3].startswith("recommended") is not best.fastest


def test_what_preemptions_leave_is_what_is_compared() -> None:
    first = answered("300", "llama-70b")[0]
    assert first.prediction is not None and first.prediction.kept.value < 0.995
    assert first.kept_throughput.value == pytest.approx(
        first.throughput * first.prediction.kept.value
    )
    assert first.kept_throughput.low == pytest.approx(
        first.prediction.throughput.low * first.prediction.kept.value
    )


def test_a_deadline_is_compared_with_training_alone() -> None:
    """A speed that is 10 % lower makes training 10 % longer, not the start before it."""
    one = {"instance_type": "p5.48xlarge"}  # of which $30/h buy one
    best = answered("30", "llama-8b", "2M", **one)  # 35 s of training after 5 minutes
    outlook, speed = best[0].outlook, best[0].prediction.throughput  # type: ignore[union-attr]
    assert outlook is not None
    due = START_S + 1.3 * (outlook.total_s - START_S)
    late = answered("30", "llama-8b", "2M", deadline=f"{due}s", **one)[0].outlook.late_probability  # type: ignore[union-attr]
    assert late == pytest.approx(1 - probability_above(speed, speed.value / 1.3), abs=1e-6)


def test_a_bill_that_may_exceed_its_limit_is_called_out(capsys: pytest.CaptureFixture[str]) -> None:
    bill = answered("30", "llama-8b", "2B")[0].outlook
    assert bill is not None and bill.costs_usd is not None
    for limit, said in ((bill.cost_usd * 1.01, True), (bill.costs_usd[1] * 1.01, False)):
        out = shown(answered("30", "llama-8b", "2B", total_budget=str(round(limit, 2))), capsys)
        assert any("it may be" in line and "more than" in line for line in out) is said


def test_a_job_of_a_few_steps_is_called_out(capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (shown(answered("30", "llama-8b", tokens), capsys) for tokens in ("2M", "2B"))
    assert "! that is 16 steps in all: is the amount right?" in " ".join(few)
    assert not any("steps in all" in line for line in many)
