"""What a machine may cost: by the limit of prices, by what was planned, and for a request that is repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepvm.errors import RequestError
from deepvm.jobs.decisions.price_caps import most_usd_per_hour
from deepvm.jobs.decisions.world import Pool, Role, Terms, World
from deepvm.jobs.jobfile import JobFile, changed
from deepvm.jobs.submission import world_of

SPOT = Pool("g4dn.xlarge", "us-east-1a", "spot", 0.16)
DEAR = replace(SPOT, zone="us-east-1b", usd_per_hour=0.30)
STEADY = Pool("g4dn.xlarge", "us-east-1", "on-demand", 0.526)
ANCHOR = Pool("m7g.large", "us-east-1", "on-demand", 0.0816)


def world(**terms: Any) -> World:
    return World(terms=Terms(**{"least": 4, "most": 4, **terms}), now_s=0.0, pools=(SPOT, DEAR))


def cap(found: World, pool: Pool = SPOT, role: Role = Role.TRAINER) -> float | None:
    return most_usd_per_hour(found, pool, role)


def test_without_a_plan_or_a_limit_there_is_none() -> None:
    assert cap(world()) is None


def test_a_limit_is_split_among_spot_machines_once_the_others_are_paid() -> None:
    limited = world(usd_per_hour=2.0, max_price=2.0, anchor=(ANCHOR,), anchors=1, steady=(STEADY,), steadies=1)
    assert cap(limited) == pytest.approx((2.0 - 0.0816 - 0.526) / 3)
    assert cap(limited, DEAR) == cap(limited)  # whichever zone: together they keep to it


def test_all_machines_at_their_limits_cost_no_more_than_the_limit() -> None:
    limited = world(usd_per_hour=1.0, max_price=1.0, anchor=(ANCHOR,), anchors=1)
    share = cap(limited)
    assert share is not None and 4 * share + 0.0816 == pytest.approx(1.0)


def test_what_was_planned_lets_each_price_rise_by_a_fifth_at_least() -> None:
    assert cap(world(usd_per_hour=0.64)) == pytest.approx(0.16 * 1.2)
    assert cap(world(plan_usd_per_hour=3.0)) == pytest.approx(0.75)
    assert cap(world(plan_usd_per_hour=0.5)) == pytest.approx(0.16 * 1.2)  # prices have risen since


def test_on_demand_prices_are_a_fifth_above_the_catalogs_at_most() -> None:
    planned = world(usd_per_hour=3.0, anchor=(ANCHOR,), anchors=1)
    assert cap(planned, ANCHOR, Role.ANCHOR) == pytest.approx(0.0816 * 1.2)
    assert cap(planned, STEADY) == pytest.approx(0.526 * 1.2)


def test_a_request_that_is_repeated_says_the_same() -> None:
    before = world(usd_per_hour=4.0, max_price=4.0, bought=(STEADY,))
    assert cap(replace(before, on_demand=True)) == cap(before)


def test_a_job_that_buys_fewer_machines_splits_the_limit_among_these() -> None:
    flexible = world(least=1, most=8, usd_per_hour=0.5, max_price=0.5)  # buys 3 at 0.16
    assert cap(flexible) == pytest.approx(0.5 / 3)


def job(**budget: Any) -> JobFile:
    machines = {"type": "g4dn.xlarge", "count": 4}
    return JobFile.model_validate({"name": "a", "train": "true", "machines": machines, "budget": budget})


def test_the_job_file_and_the_command_line_set_the_limit(tmp_path: Path) -> None:
    terms = world_of(job(max_price=5), tmp_path, 0.0).terms
    assert (terms.max_price, terms.usd_per_hour) == (5, 5)
    both = world_of(changed(job(usd_per_hour=4, total_usd=9), max_price=6), tmp_path, 0.0).terms
    assert (both.max_price, both.usd_per_hour, both.total_usd) == (6, 4, 9)


def test_a_limit_below_the_price_of_the_machines_is_refused_before_one_is_rented(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"budget.max_price.*buys 4 x g4dn.xlarge"):
        world_of(job(max_price=0.1), tmp_path, 0.0)


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_cannot_be_is_refused(limit: float) -> None:
    with pytest.raises(RequestError, match="max_price"):
        changed(job(), max_price=limit)
