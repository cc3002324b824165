"""``deepvm recommend`` and ``deepvm.recommend()`` give the same answer, word for word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import deepvm
from deepvm.cli.main import main
from deepvm.simulator.jobfile import read_job

JOB = "name: calm\nsteps: 20000\nstep_s: 20\nallocation_s: 60\npreparation_s: 60\nsave_s: 5\n"
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("--objective cost-per-work --top 5", {"objective": "cost-per-work", "top": 5}),
    ("--policy cost-first", {"policy": "cost-first"}),
    ("--checkpoint-size 300GB", {"checkpoint_size": "300GB"}),
    ("--work 100 --deadline 90h --simulate 5", {"work": 100, "deadline": "90h", "simulate": 5}),
    (
        "--job job.yaml --speedup ring --mttp 20min --top 1",
        {"speedup": "ring", "mttp": "20min", "top": 1},
    ),
]


@pytest.mark.parametrize(("words", "options"), REQUESTS, ids=lambda value: str(value)[:30])
def test_command_and_function_agree(
    words: str,
    options: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    if "job.yaml" in words:
        options = {**options, "job": read_job(Path("job.yaml"))}
    with pytest.raises(SystemExit):
        main(["recommend", "--pw", "3", "--catalog", "paper", "-o", "json", *words.split()])
    printed = capsys.readouterr().out
    said: list[str] = []
    answer = deepvm.recommend(deepvm.load_catalog("paper"), 3, say=said.append, **options)
    assert json.loads(printed) == json.loads(json.dumps(answer.to_dict()))
    assert bool(said) == ("job.yaml" in words)
