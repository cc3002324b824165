"""Whatever is killed, the job ends with the right result, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.effort import THOROUGH
from support.jobs.kills import CHAIN, campaign, final_of
from support.jobs.runs import Home, until

STEPS = 250


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "chain.py").write_text(CHAIN)
    yield found
    found.end()


@pytest.mark.parametrize("seed", range(40 if THOROUGH else 1))
def test_it_ends_with_the_right_result(home: Home, seed: int) -> None:
    count = 1 + seed % 2
    job = home.job("kills", f"exec python chain.py {STEPS};", count=count, save_policy="static:25")
    killed = campaign(home, job, "kills", seed, kills=5)
    found = home.document("jobs", "show", "kills")
    assert found["state"] == "done", (found, killed)
    for rank in range(count):
        assert (home.result / f"final-{rank}").read_text() == final_of(STEPS), killed
    assert until(lambda: not home.processes(), 10)
    listed = home.document("jobs", "orphans")["orphans"]
    assert not listed
    assert found["cost_usd"] == pytest.approx(sum(m["usd"] for m in found["machines"]), abs=1e-7)
