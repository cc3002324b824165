"""What a machine may cost: by the limit that the user set, and for a request that is repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepvm.errors import RequestError
from deepvm.jobs.decisions.markets import most_of, most_usd_per_hour
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Role
from deepvm.jobs.jobfile import JobFile, changed
from deepvm.jobs.submission import world_of

SPOT = Pool("g4dn.xlarge", "us-east-1a", "spot", 0.16)
DEAR = replace(SPOT, zone="us-east-1b", usd_per_hour=0.30)
STEADY = Pool("g4dn.xlarge", "us-east-1", "on-demand", 0.526)
ANCHOR = Pool("m7g.large", "us-east-1", "on-demand", 0.0816)


def world(**terms: Any) -> JobState:
    return JobState(
        terms=JobLimits(**{"least": 4, "most": 4, **terms}), now_s=0.0, pools=(SPOT, DEAR)
    )


def cap(found: JobState, pool: Pool = SPOT, role: Role = Role.TRAINER) -> float | None:
    return most_usd_per_hour(found, pool, role)


def test_a_limit_that_was_not_requested_ends_no_machine() -> None:
    """A budget says what is bought at today's prices.

    AWS's own limit, the on-demand price, holds when they rise.
    """
    for terms in [{}, {"usd_per_hour": 0.64}, {"total_usd": 9.0, "usd_per_hour": 3.0}]:
        everything = world(**terms, anchor=(ANCHOR,), anchors=1, steady=(STEADY,), steadies=1)
        assert {cap(everything), cap(everything, STEADY), cap(everything, ANCHOR, Role.ANCHOR)} == {
            None
        }


def test_each_machine_has_a_share_in_proportion_to_its_price_as_in_exports() -> None:
    limited = world(
        usd_per_hour=2.0, max_price=2.0, anchor=(ANCHOR,), anchors=1, steady=(STEADY,), steadies=1
    )
    more = 2.0 / (0.0816 + 0.526 + 3 * 0.16)
    assert cap(limited) == pytest.approx(0.16 * more)
    assert cap(limited, DEAR) == cap(limited)  # whichever zone: together they keep to it
    assert cap(limited, STEADY) == pytest.approx(0.526 * more)
    assert cap(limited, ANCHOR, Role.ANCHOR) == pytest.approx(0.0816 * more)


def test_all_machines_at_their_limits_cost_what_the_limit_says() -> None:
    for limit in [1.1, 1.25, 4.0]:
        limited = world(
            usd_per_hour=limit,
            max_price=limit,
            anchor=(ANCHOR,),
            anchors=1,
            steady=(STEADY,),
            steadies=1,
        )
        shares = [cap(limited), cap(limited, STEADY), cap(limited, ANCHOR, Role.ANCHOR)]
        assert None not in shares
        spot, steady, anchor = (share or 0.0 for share in shares)
        assert 3 * spot + steady + anchor == pytest.approx(limit)


def test_no_machine_that_was_planned_is_above_its_own_limit() -> None:
    """What the planned prices cost is bought, whether on spot or, for the deadline, on demand."""
    least = 4 * 0.526 + 0.0816
    tight = world(
        usd_per_hour=least, max_price=least, anchor=(ANCHOR,), anchors=1, bought=(STEADY,)
    )
    for pool, role in ((SPOT, Role.TRAINER), (STEADY, Role.TRAINER), (ANCHOR, Role.ANCHOR)):
        found = cap(tight, pool, role)
        assert found is not None and found >= pool.usd_per_hour - 1e-9


def test_a_dearer_type_on_demand_that_the_budget_buys_may_cost_what_it_costs() -> None:
    dear = replace(STEADY, instance_type="g4dn.2xlarge", usd_per_hour=0.752)
    limited = world(usd_per_hour=3.2, max_price=3.2, bought=(STEADY, dear))
    found = cap(limited, dear)
    assert found is not None and 0.752 <= found <= 3.2 / 4 + 1e-9


def test_a_request_that_is_repeated_says_the_same() -> None:
    before = world(usd_per_hour=4.0, max_price=4.0, bought=(STEADY,))
    after = replace(before, on_demand=True)
    assert cap(after) == cap(before) and cap(after, STEADY) == cap(before, STEADY)


def test_a_job_that_buys_fewer_machines_splits_the_limit_among_these() -> None:
    flexible = world(least=1, most=8, usd_per_hour=0.5, max_price=0.5)  # buys 3 at 0.16
    assert cap(flexible) == pytest.approx(0.5 / 3)


def test_machines_of_ones_own_cost_nothing_and_have_no_limit(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("10.0.0.1\n10.0.0.2\n")
    for option in ("max_price", "usd_per_hour"):
        own = {
            "cloud": "ssh",
            "machines": {"hosts": "hosts.txt", "count": 2},
            "tiers": ["file:///shared"],
        }
        asked = JobFile.model_validate({"name": "a", "train": "true", "budget": {option: 3}, **own})
        found = world_of(asked, tmp_path, 0.0)
        assert (most_of(found), cap(found, found.pools[0])) == (2, None)


def job(**budget: Any) -> JobFile:
    machines = {"type": "g4dn.xlarge", "count": 4}
    return JobFile.model_validate(
        {"name": "a", "train": "true", "machines": machines, "budget": budget}
    )


def test_the_job_file_and_the_command_line_set_the_limit(tmp_path: Path) -> None:
    terms = world_of(job(max_price=5), tmp_path, 0.0).terms
    assert (terms.max_price, terms.usd_per_hour) == (5, 5)
    both = world_of(changed(job(usd_per_hour=4, total_usd=9), max_price=6), tmp_path, 0.0).terms
    assert (both.max_price, both.usd_per_hour, both.total_usd) == (6, 4, 9)


def test_a_limit_below_the_price_of_the_machines_is_refused_before_one_is_rented(
    tmp_path: Path,
) -> None:
    with pytest.raises(RequestError, match=r"budget.max_price.*buys 4 x g4dn.xlarge"):
        world_of(job(max_price=0.1), tmp_path, 0.0)


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_cannot_be_is_refused(limit: float) -> None:
    with pytest.raises(RequestError, match="max_price"):
        changed(job(), max_price=limit)
