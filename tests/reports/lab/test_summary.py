"""Which runs count, what they are compared with, and what a reader is told first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.lab.made_folder import MACHINE, list_again, make

from deepvm.lab.checked import check
from deepvm.reports.lab.files import LabSummary, accepted
from deepvm.reports.pages import sentences


def summary(out: Path) -> LabSummary:
    return LabSummary.of(*check(out))


def warnings_of(found: LabSummary) -> list[str]:
    text: str = sentences("lab_cells.j2").warnings(found)
    return text.splitlines()


def change(out: Path, run: str, name: str, **values: Any) -> None:
    file = out / "runs" / run / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_the_reference_of_ecrl_comes_first(tmp_path: Path) -> None:
    assert summary(make(tmp_path / "all", seeds=(0,))).reference == "ref-blk"
    assert (
        summary(make(tmp_path / "calm", seeds=(0,), variants=("none", "blk"))).reference == "none"
    )


def test_seeds_count_where_all_pass(tmp_path: Path) -> None:
    found = summary(make(tmp_path, wrong={"tokens-gpt-tiny-late-ovl-s1"}))
    late = found.suites[1]
    *_, complete = accepted(found)
    assert complete.title == late.title
    assert {
        name: [cost.seed for cost in own.costs] for name, own in complete.variants.items()
    } == dict.fromkeys(("ref-blk", "blk", "ovl"), [0, 2])
    assert accepted(LabSummary(found.checked, found.records, [replace(late, variants={})])) == []
    assert found.left_out(late) == [
        (
            "tokens-gpt-tiny-late-ovl-s1",
            "parameters: other parameters than those of the undisturbed run",
        )
    ]
    ovl = late.variants["ovl"].estimate("goodput")
    assert ovl is not None and ovl.n == 2


def test_no_run_that_passes_is_no_number(tmp_path: Path) -> None:
    found = summary(
        make(tmp_path, wrong={f"tokens-gpt-tiny-late-ovl-s{seed}" for seed in range(3)})
    )
    assert found.suites[1].variants["ovl"].estimate("goodput") is None


def test_schedules_in_words(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,))
    run = "tokens-gpt-tiny-late-blk-s0"
    config = json.loads((tmp_path / "runs" / run / "config.json").read_text())
    torn = {**config["strikes"][0], "fault": "torn", "step": 8, "key": "torn-8-0"}
    disk = {"eio": {"share": 0.25, "mbps": None}, "slow": {"share": None, "mbps": 20.0}}
    assert summary(tmp_path).schedule(summary(tmp_path).suites[1]) == "exit 6, 10"
    change(tmp_path, run, "config.json", strikes=[*config["strikes"], torn], disk=disk)
    found = summary(tmp_path)
    assert found.schedule(found.suites[1]) == "exit 6, 10; torn 8; eio disk 25%; slow disk 20 MB/s"


def test_machines_that_differ_are_counted(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,))
    assert summary(tmp_path).environment == MACHINE
    change(tmp_path, "tokens-gpt-tiny-late-blk-s0", "environment.json", CPU="Another CPU")
    assert (
        summary(tmp_path).environment["CPU"]
        == "Example CPU (8 of 9 runs); Another CPU (1 of 9 runs)"
    )


def test_when_runs_were_made(tmp_path: Path) -> None:
    assert summary(make(tmp_path)).made == "2026-11-27T12:00:00Z to 2026-11-27T12:03:27Z"


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ((0,), "One seed: there are no intervals"),
        ((0, 1), "2 seeds: intervals are wide"),
        (range(5), ""),
    ],
)
def test_few_seeds_are_said(tmp_path: Path, seeds: Any, said: str) -> None:
    warnings = warnings_of(summary(make(tmp_path, seeds=tuple(seeds), variants=("none", "blk"))))
    assert [said in warning for warning in warnings] == ([True] if said else [])


def test_what_is_no_result_on_cifar_is_said(tmp_path: Path) -> None:
    make(tmp_path, variants=("none",), seeds=range(5))
    for folder in (tmp_path / "runs").iterdir():
        change(tmp_path, folder.name, "config.json", dataset={"name": "cifar10", "path": "made"})
    list_again(tmp_path)
    (warning,) = warnings_of(summary(tmp_path))
    assert (
        warning.startswith("cifar10 has 50000 samples, these runs had 4096")
        and "Nothing here is a result" in warning
    )


def test_runs_that_fail_are_said(tmp_path: Path) -> None:
    warnings = warnings_of(
        summary(make(tmp_path, seeds=range(5), wrong={"tokens-gpt-tiny-late-ovl-s1"}))
    )
    assert warnings == ["Runs that do not pass all gates are in no number below: 1 of 45."]
