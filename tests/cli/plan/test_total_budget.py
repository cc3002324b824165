"""A total budget and a deadline without a budget per hour."""

from __future__ import annotations

import json

import pytest
from support.command import Run

WORK = ["--model", "vit-b", "--epochs", "90", "--dataset-size", "1.28M", "--offline"]
BOTH = ["--total-budget", "300", "--deadline", "7d"]


def test_the_students_question(run: Run) -> None:
    code, out, _ = run("recommend", *BOTH, *WORK)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 15 and max(map(len, lines)) <= 78
    assert lines[0].startswith("vit-b, 90 epochs, for up to $300 within 7 d on AWS us-east-1")
    assert "90 epochs" in lines[2] and "GPUs" in lines[2]
    labels = [line.split()[0] for line in lines[3:] if line[:1] not in ("", " ")]
    assert labels[:2] == ["cheapest", "fastest"]


def test_the_documents_say_which_budget_follows(run: Run) -> None:
    found = json.loads(run("recommend", *BOTH, *WORK, "-o", "json")[1])
    first = found["configurations"][0]
    assert found["request"]["pw_derived"] is True
    assert 0 <= found["request"]["pw_usd_per_hour"] - first["usd_per_hour"] < 0.01
    assert first["expected"]["total_cost_usd"] <= 300
    assert first["expected"]["makespan_s"] <= 7 * 86400
    (fast,) = [a for a in found["alternatives"] if a["objective"] == "makespan"]
    assert first["expected"]["total_cost_usd"] < fast["expected"]["total_cost_usd"] <= 300
    assert fast["expected"]["makespan_s"] < first["expected"]["makespan_s"]
    asked = json.loads(run("recommend", "--pw", "3", *WORK, "-o", "json")[1])
    assert "pw_derived" not in asked["request"]


def test_one_of_the_two_is_enough(run: Run) -> None:
    out = run("recommend", "--total-budget", "300", *WORK)[1]
    assert "for up to $300 on AWS" in out
    late = run("recommend", "--deadline", "7d", *WORK)[1]
    assert late.splitlines()[3].startswith("cheapest")


@pytest.mark.parametrize(
    "words",
    [
        "--pw 0.5",
        "--pw 400 --cloud lambda",
        "--pw 300 --model bert-large --cloud azure",
        "--pw 400 --model llama-70b --tokens 10B --cloud azure --simulate 20",
        "--pw 300 --model llama-70b --tokens 10B --cloud nebius",
        "--pw 30 --deadline 90d --total-budget 50000 --model llama-70b --tokens 10B",
        "--total-budget 300 --model vit-b --epochs 90 --dataset-size 1.28M --simulate 20",
    ],
)
def test_an_answer_has_15_lines_also_with_long_names_and_many_facts(words: str, run: Run) -> None:
    code, out, err = run("recommend", *words.split(), "--offline")
    lines = out.splitlines()
    assert code == 0 and len(lines) <= 15 and max(map(len, lines)) <= 78, out + err
    assert any(line.startswith("Next ") for line in lines)


def test_what_is_called_cheapest_is(run: Run) -> None:
    """A plan that is up to 5 % dearer and much faster may come first, but not by that name."""
    work = ("--model", "llama-8b", "--method", "lora", "--tokens", "2B", "--offline")
    limits = ("--total-budget", "300", "--deadline", "30d")

    def bill(*more: str) -> float:
        found = json.loads(run("recommend", *limits, *work, *more, "-o", "json")[1])
        return float(found["configurations"][0]["expected"]["total_cost_usd"])

    alone = bill("--instance-type", "g7e.48xlarge", "--max-nodes", "1")
    assert 1.01 * alone < bill() < 1.05 * alone
    text = run("recommend", *limits, *work)[1]
    assert "\nlow cost " in text and "cheapest" not in text


def test_no_measurement_is_advised_where_speed_does_not_count(run: Run) -> None:
    for objective, advised in (("total-cost", False), ("makespan", True)):
        words = ("--pw", "30", *WORK, "--objective", objective, "--why")
        assert ("Measure next" in run("recommend", *words)[1]) is advised


def test_a_job_of_years_is_called_out(run: Run) -> None:
    job = ("--model", "llama-70b", "--tokens", "10B", "--cloud", "nebius", "--offline")
    out = run("recommend", "--pw", "30", *job)[1]
    assert "a higher budget is needed" in out and len(out.splitlines()) <= 15
    assert "a higher budget is needed" not in run("recommend", "--pw", "300", *job)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--total-budget", "300"], "--model vit-b --epochs 90 --dataset-size 1.28M"),
        ([], "--pw: not given"),
        (["--total-budget", "0.01", *WORK], "o cluster is expected to finish"),
        (["--deadline", "1s", *WORK], "othing is expected to end within 1 s"),
    ],
)
def test_what_is_missing_is_named(words: list[str], said: str, run: Run) -> None:
    code, out, err = run("recommend", *words)
    assert code in (2, 3) and said in err + out


def test_a_bare_number_may_be_meant_as_a_total(run: Run) -> None:
    said = "300 was read as $300/h; a total for the whole job: --total-budget 300"
    assert said in run("recommend", "300", "--offline")[2]
    found = json.loads(run("recommend", "300", "--offline", "-o", "json")[1])
    assert said in found["doubts"]
    for words in (["--pw", "300"], ["30"]):
        assert "--total-budget" not in run("recommend", *words, "--offline")[2]
