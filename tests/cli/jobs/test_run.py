"""What a job file rents: by type, by a plan, by a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.jobs.runs import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(found.jobs.parent))
    return found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"machines": {"type": "g4dn.xlarge", "count": {"min": 2, "max": 4}}}, "2 to 4 x g4dn.xlarge spot"),
        ({"machines": {"type": "g4dn.xlarge", "market": "on-demand"}}, "1 x g4dn.xlarge on-demand; up to 0.5260 $/h"),
        ({"anchor": {"type": "m7g.large"}}, "1 x g4dn.xlarge spot, 1 x m7g.large to keep versions in memory"),
        ({"machines": {}, "budget": {"usd_per_hour": 1}}, "$/h in local"),
    ],
)
def test_what_a_job_would_rent(home: Home, run: Run, more: dict[str, Any], said: str) -> None:
    code, out, err = run("run", str(home.job("plan", "python train.py", **more)), "--dry-run")
    assert code == 0 and said in out
    assert ("train a ResNet-50 fastest" in err) == bool(err) == ("budget" in more)
    assert not home.jobs.exists()


def test_a_plan_of_recommend(home: Home, run: Run) -> None:
    _, plan, _ = run("recommend", "--pw", "3", "--architecture", "tiering", "--catalog", "aws", "-o", "json")
    (home.folder / "plan.json").write_text(plan)
    job = home.job("planned", "python train.py", machines={"plan": "plan.json"})
    _, out, err = run("run", str(job), "--dry-run")
    assert "to keep versions in memory" in out, err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"machines": {"type": "g9.huge"}}, "machines.type"),
        ({"anchor": {"type": "huge"}}, "anchor.type"),
        ({"machines": {}, "budget": {"usd_per_hour": 0.001}}, "budget.usd_per_hour"),
        ({"machines": {"plan": "none.json"}}, "none.json"),
        ({"cloud": "mars"}, "cloud"),
    ],
)
def test_what_cannot_be_rented(home: Home, run: Run, more: dict[str, Any], said: str) -> None:
    code, _, err = run("run", str(home.job("bad", "python train.py", **more)))
    assert code in (2, 4) and said in err, err
    assert not home.jobs.exists()
