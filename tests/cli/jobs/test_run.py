"""What a job file rents: by type, by a plan, by a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.jobs.runs import Home

LONG = "a" * 300  # No path can have such a name


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(found.jobs.parent))
    return found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"machines": {"type": "g4dn.xlarge", "count": {"min": 2, "max": 4}}},
            "2 to 4 x g4dn.xlarge spot",
        ),
        (
            {"machines": {"type": "g4dn.xlarge", "market": "on-demand"}},
            "1 x g4dn.xlarge on-demand; up to $0.53/h",
        ),
        (
            {"anchor": {"type": "m7g.large"}},
            "1 x g4dn.xlarge spot, 1 x m7g.large to keep checkpoints in memory",
        ),
        ({"machines": {}, "budget": {"usd_per_hour": 1}}, "/h in local"),
    ],
)
def test_what_a_job_would_rent(home: Home, run: Run, more: dict[str, Any], said: str) -> None:
    code, out, err = run("run", str(home.job("plan", "python own.py 5 0", **more)), "--dry-run")
    assert code == 0 and said in out
    assert ("train a ResNet-50 fastest" in err) == ("budget" in more)
    assert not home.jobs.exists()


def test_a_plan_of_recommend(home: Home, run: Run) -> None:
    _, plan, _ = run(
        "recommend", "--pw", "3", "--architecture", "tiering", "--catalog", "aws", "-o", "json"
    )
    (home.folder / "plan.json").write_text(plan)
    job = home.job("planned", "python own.py 5 0", machines={"plan": "plan.json"})
    _, out, err = run("run", str(job), "--dry-run")
    assert "to keep checkpoints in memory" in out, err


def test_a_dry_run_refuses_what_the_run_would(home: Home, run: Run) -> None:
    for more in ([], ["--dry-run"]):
        code, _, err = run("run", str(home.job("lost", "python nowhere.py")), *more)
        assert code == 2 and "there is no nowhere.py in it" in err
    code, _, err = run("run", str(home.job("both", "true")), "--validate", "--detach")
    assert code == 2 and "Error: --validate does not go with --detach" in err
    assert not home.jobs.exists()


@pytest.fixture
def planned(home: Home, run: Run, monkeypatch: pytest.MonkeyPatch) -> Home:
    """In a folder with a plan, of which it is not the current one, and a script."""
    _, plan, _ = run("recommend", "--pw", "0.4", "-o", "json")
    (home.folder / "plan.json").write_text(plan)
    monkeypatch.chdir(home.code)
    return home


def test_what_a_plan_with_a_command_would_rent(planned: Home, run: Run) -> None:
    plan = "../plan.json"
    code, out, err = run(
        "run", plan, "--total-usd", "5", "--dry-run", "--", "python", "own.py", "5", "0"
    )
    assert code == 0 and "simulated on this computer; --cloud aws rents" in err
    assert out.startswith("own: 1 x ") and out.endswith("/h in local, $5 in all\n")
    code, out, _ = run("run", plan, "--name", "mine", "--dry-run", "--", "torchrun", "My_Net.py")
    assert code == 0 and out.startswith("mine: 1 x ")
    assert run("run", plan, "--dry-run", "--", "torchrun", "My_Net.py")[1].startswith(
        "my-net: 1 x "
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["../plan.json"], 2, "this is a plan; add the command after it: -- python train.py"),
        (["../plan.json", "--", "python", "nowhere.py"], 2, "there is no nowhere.py"),
        (["../plan.json", "--total-usd", "0", "--", "python", "own.py"], 2, "--total-usd: 0.0"),
        (["../plan.json", "--steps", "0", "--", "python", "own.py"], 2, "--steps: 0"),
        (["../plan.json", "--outputs", LONG, "--", "python", "own.py"], 2, "--outputs: 'aaa"),
        (["../plan.json", "--", "x" * 10_001], 2, "command: 'xxx"),
        (["../plan.json", "--", ""], 2, "command: \"''\" (expected the command that trains"),
        (["../plan.json", "--", " ", "own.py"], 2, "command: \"' ' own.py\""),
        (["none.json", "--", "python", "own.py"], 2, "none.json"),
        (["own.py", "--", "python", "own.py"], 2, "a plan of 'deepvm recommend -o json'"),
        (["python", "own.py", "5"], 2, "no plan: deepvm run plan.json -- python own.py 5"),
        (["torchrun", "own.py"], 2, "no plan: deepvm run plan.json -- torchrun own.py"),
        (["../plan.json", "--", "python", "../own.py"], 2, "code and nothing else of this"),
        (["../plan.json", "--", "python", "-u", "x/../../own.py"], 2, "set 'code' in a job file"),
    ],
)
def test_plans_and_commands_that_cannot_be(
    planned: Home, run: Run, words: list[str], code: int, said: str
) -> None:
    found, out, err = run("run", *words)
    assert (found, out) == (code, "") and said in err, err
    assert not planned.jobs.exists()


def test_a_total_of_the_command_line_is_one_of_the_budget(home: Home, run: Run) -> None:
    job = home.job("cheap", "python own.py 5 0", budget={"total_usd": 9, "usd_per_hour": 1})
    assert ", $2 in all" in run("run", str(job), "--total-usd", "2", "--dry-run")[1]
    assert (
        run("run", str(job), "--total-usd", "2", "--dry-run", "-o", "json")[1].count(
            '"total_usd": 2.0'
        )
        == 1
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"machines": {"type": "g9.huge"}}, "machines.type"),
        ({"anchor": {"type": "huge"}}, "anchor.type"),
        ({"machines": {}, "budget": {"usd_per_hour": 0.001}}, "budget.usd_per_hour"),
        ({"machines": {"plan": "none.json"}}, "none.json"),
        ({"cloud": "mars"}, "cloud"),
        ({"code": LONG}, "there is no folder"),
        ({"train": f"python {LONG}.py"}, "a script that 'code: "),
        ({"outputs": [LONG]}, "outputs"),
    ],
)
def test_what_cannot_be_rented(home: Home, run: Run, more: dict[str, Any], said: str) -> None:
    job = home.job(**{"name": "bad", "train": "python train.py", **more})
    code, _, err = run("run", str(job))
    assert code in (2, 4) and said in err, err
    assert not home.jobs.exists()
