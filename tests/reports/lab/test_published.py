"""What ECRL has published: its rows give its means, and our tables of its rows are its tables."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.lab.made_folder import MACHINE
from support.places import ROOT, SHARED

from deepvm.lab.checked import CheckedRuns
from deepvm.lab.results import PARTS, Cost, SuiteResult, Variant
from deepvm.reports.lab.files import LabSummary, analysis

_PUBLISHED = json.loads((ROOT / "data" / "lab" / "ecrl-published.json").read_text())
published = SimpleNamespace(**_PUBLISHED)
SUITES = [SimpleNamespace(**suite) for suite in published.suites]
RECOVERY = [f"{part}_s" for part in PARTS]
RUN = Cost("", "", 0, True, 1.0, 100.0, 2, *[0.0] * 7, 3, 0, *[0.0] * 4, dict.fromkeys(RECOVERY, 2))


def cost(variant: str, goodput: float, stall_s: float, loss: float = 0.0) -> Cost:
    return replace(RUN, variant=variant, goodput=goodput, stall_s=stall_s, loss_difference=loss)


def record(one: Any, folder: Path) -> Any:
    steps = {"base": (400, 1200), "late": (800, 1400)}[one.failure]
    config = {
        "matrix": "exp4",
        "dataset": {"name": one.dataset},
        "dataset_size": 50_000,
        "model": {"name": one.model, "width": None, "norm": "batch", "dropout": 0.0},
        "failure": one.failure,
        "worlds": [[0, 4]],
        "virtual_shards": 0,
        "global_batch": 256,
        "steps": 1600,
        "checkpoint_every": 50,
        "max_inflight": 4,
        "launcher": "torchrun",
        "seed": 0,
        "strikes": [{"fault": "exit", "step": step} for step in steps],
        "disk": {},
    }
    return SimpleNamespace(config=config, folder=folder, supervisor={"attempts": []})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Our analysis of ECRL's own goodputs and stalls: rows of each table."""
    suites = [
        SuiteResult(
            *(one.dataset, one.model, one.failure),
            {
                run.variant: Variant(run.variant, [run])
                for run in (
                    cost("ref-blk", one.reference, 18.0),
                    cost("blk", one.blocking, one.blocking_stall_s),
                    cost("ovl", one.overlapped, one.overlapped_stall_s),
                )
            },
        )
        for one in SUITES
    ]
    folder = tmp_path_factory.mktemp("run")
    (folder / "environment.json").write_text("{}")
    records: Any = [(record(one, folder), True) for one in SUITES]
    text = analysis(LabSummary(CheckedRuns({}), records, suites))
    found: dict[str, list[list[str]]] = {}
    for part in text.split("\n## ")[1:]:
        rows = [
            line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")
        ]
        found[part.partition(":")[0]] = rows[1:]
    return found


def close(ours: str, paper: str, printed: str) -> None:
    """Ours of goodputs that were rounded to four digits; the paper's as it stands there."""
    assert paper == printed
    assert float(ours.rstrip("% p")) == pytest.approx(float(printed.rstrip("% p")), abs=2e-3)


def test_its_table_5(tables: dict[str, list[list[str]]]) -> None:
    rows = {row[0]: row[1:] for row in tables["Table 5"]}
    assert (
        rows["goodput, steps/s"][:3]
        == ["10.9284", "9.4560", "9.6433"]
        == rows["goodput, steps/s"][4:7]
    )
    close(rows["goodput, steps/s"][3], rows["goodput, steps/s"][7], "+1.9931%")
    for ours, paper, printed in zip(
        rows["over reference"][1:4],
        rows["over reference"][5:],
        ("-13.2466%", "-11.5026%", "+1.7440 pp"),
        strict=True,
    ):
        close(ours, paper, printed)
    for ours, paper, printed in zip(
        rows["stall, s"][1:4], rows["stall, s"][5:], ("18.0859", "7.8654", "-10.2205"), strict=True
    ):
        close(ours, paper, printed)


def test_its_table_6(tables: dict[str, list[list[str]]]) -> None:
    rows = tables["Table 6"]
    # In the same order
    assert [row[:2] for row in rows] == [[one.dataset, one.model] for one in SUITES]
    first = rows[0]
    assert first[2] == "late (exit 800, 1400)" and first[3:6] == ["14.5657", "12.2979", "12.7471"]
    for ours, printed in zip(
        first[6:10], ("+3.6527%", "-15.5693%", "-12.4854%", "-6.6940"), strict=True
    ):
        close(ours.removesuffix(" (n = 1)"), printed, printed)
    for row in rows:
        close(row[6].removesuffix(" (n = 1)"), row[11], row[11])
        close(row[9], row[12], row[12])


def test_its_table_7(tables: dict[str, list[list[str]]]) -> None:
    rows = tables["Table 7"]
    assert [(row[0], row[1]) for row in rows] == [
        *(("dataset", name) for name in ("cifar100", "cifar10")),
        *(("model", name) for name in ("resnet18", "resnet50")),
        *(("failure", name) for name in ("late", "base")),
    ]
    for row in rows:
        assert float(row[3].rstrip("%")) == pytest.approx(float(row[6].rstrip("%")), abs=1e-3)
        assert row[2] == "4" and float(row[4]) == pytest.approx(float(row[7]), abs=1e-4)


def test_its_machine_and_matrix(tables: dict[str, list[list[str]]]) -> None:
    machine = {row[0]: row[2] for row in tables["Table 2"]}
    assert machine["PyTorch"] == "2.10.0+cu128" and machine["memory"].startswith("125 GiB")
    assert {row[0]: row[2:5:2] for row in tables["Table 3"]} == {
        "data set": ["2", "2"],
        "model": ["2", "2"],
        "failures": ["2", "2"],
        "variant": ["3", "3"],
        "suites": ["8", "8"],
        "runs, those without failures once": ["8", "24"],
    }
    assert all(row[1] in ("controlled", "varied") for row in tables["Table 4"])
    assert set(published.machine) - {"GPUs"} <= set(MACHINE)


def test_rows_give_the_means() -> None:
    suites = SUITES
    goodputs = [
        [one.reference for one in suites],
        [one.blocking for one in suites],
        [one.overlapped for one in suites],
    ]
    assert [round(statistics.fmean(values), 4) for values in goodputs] == published.aggregate[
        "goodput"
    ][1]
    stalls = [[one.blocking_stall_s for one in suites], [one.overlapped_stall_s for one in suites]]
    assert [round(statistics.fmean(values), 4) for values in stalls] == published.aggregate[
        "stall_s"
    ][1][1:]


def test_figures_are_those_of_the_paper() -> None:
    paper = SHARED / "papers" / "ecrl.txt"
    if not paper.exists():
        pytest.skip("needs shared/papers/ecrl.txt beside the checkout")
    text = paper.read_text()
    aggregate = [v for _, values in published.aggregate.values() for v in values if v is not None]
    slices = [
        (100 * gain, stall, loss)
        for axis in published.slices.values()
        for gain, stall, loss in axis.values()
    ]
    for value in (*aggregate, *(abs(x) for row in slices for x in row), 100 * published.gain):
        assert f"{value:.4f}" in text
    for one in SUITES:
        row = re.search(
            rf"{one.reference:.4f}\t{one.blocking:.4f}\t{one.overlapped:.4f}\t([+-].*?)%.*", text
        )
        assert row and float(row[1]) == pytest.approx(100 * one.gain)
