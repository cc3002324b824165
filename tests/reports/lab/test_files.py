"""All files that a lab writes: there, as their schemas say, the same each time, and without runs
that do not pass.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.golden import check_golden
from support.lab.made_folder import make
from support.schemas import check as check_schema

from deepvm.documents.build import document_of
from deepvm.errors import MissingExtraError
from deepvm.lab.checked import check
from deepvm.lab.results import SuiteResult
from deepvm.reports.lab import files as lab_files
from deepvm.reports.lab.files import FIGURES, LabSummary, write_all

WRONG, UNFINISHED = "tokens-gpt-tiny-late-ovl-s1", "tokens-gpt-tiny-base-deepvm-s2"
NAMES = {
    *("summary.csv", "detailed_table.csv", "analysis.md", "report.html"),
    *(
        f"tokens-gpt-tiny-{failure}_publishable.{form}"
        for failure in ("base", "late")
        for form in ("json", "md")
    ),
    *(
        f"figure-{name}.{form}"
        for name in ("2-goodput", "3-gain", "4-stall")
        for form in ("png", "svg")
    ),
}


def written(out: Path, *, draws: bool = False, drawn: Sequence[str] = ()) -> Sequence[SuiteResult]:
    """Write all files, with the figures if it ``draws``, else after they are ``drawn``."""
    summary = LabSummary.of(*check(out))
    with pytest.MonkeyPatch.context() as patch:
        if not draws:
            patch.setattr(lab_files, "write_figures", lambda *_: drawn)
        assert write_all(out, summary) == ""
    return summary.suites


@pytest.fixture(scope="module")
def with_a_wrong_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab's folder with all its files, of which one run does not pass."""
    out = make(tmp_path_factory.mktemp("lab"), wrong={WRONG})
    written(out)
    return out


def report_document(suites: Sequence[SuiteResult]) -> dict[str, Any]:
    return document_of("lab.LabReport", {"suites": suites})


def table(out: Path, name: str) -> list[dict[str, str]]:
    with (out / name).open(newline="") as file:
        return list(csv.DictReader(file))


def files(out: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in out.iterdir()
        if path.is_file() and path.name != "manifest.csv"
    }


def test_all_are_there_and_the_same_each_time(tmp_path: Path) -> None:
    written(make(tmp_path), draws=True)
    first = files(tmp_path)
    assert set(first) == NAMES and all(first.values())
    written(tmp_path, drawn=[f"{n}.{form}" for n in FIGURES for form in ("png", "svg")])
    assert files(tmp_path) == first


@pytest.mark.slow
def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    written(make(tmp_path), draws=True)
    first = files(tmp_path)
    written(tmp_path, draws=True)
    assert files(tmp_path) == first


def test_documents_are_as_their_schemas_say(tmp_path: Path) -> None:
    make(tmp_path, wrong={WRONG}, unfinished={UNFINISHED})
    suites = written(tmp_path)
    check_schema(document_of("lab.LabCheck", check(tmp_path)[0]), "lab")
    check_schema(report_document(suites), "lab-report")
    for failure in ("base", "late"):
        document = json.loads(
            (tmp_path / f"tokens-gpt-tiny-{failure}_publishable.json").read_text()
        )
        check_schema(document, "lab-suite")
        assert len(document["runs"]) == 18 and document["config"]["failures"].startswith("exit")
    for folder in (tmp_path / "runs").iterdir():
        for name, schema in (
            ("config", "lab-run"),
            ("supervisor", "lab-supervisor"),
            ("audit", "lab-audit"),
        ):
            check_schema(json.loads((folder / f"{name}.json").read_text()), schema)


def test_runs_that_do_not_pass_are_in_no_number(tmp_path: Path, with_a_wrong_run: Path) -> None:
    written(make(tmp_path))
    good, bad = (
        {(row["failure"], row["variant"]): row for row in table(out, "summary.csv")}
        for out in (tmp_path, with_a_wrong_run)
    )
    late = bad["late", "ovl"]
    assert (late["runs"], late["passed"], late["pairs"], late["audit"]) == ("3", "2", "2", "fail")
    assert late["goodput"] != good["late", "ovl"]["goodput"]
    assert {key: row for key, row in bad.items() if key != ("late", "ovl")} == {
        key: row for key, row in good.items() if key != ("late", "ovl")
    }
    rows = {row["run"]: row for row in table(with_a_wrong_run, "detailed_table.csv")}
    kept = [
        float(row["goodput"])
        for row in rows.values()
        if row["run"].startswith("tokens-gpt-tiny-late-ovl")
    ]
    assert float(late["goodput"]) == pytest.approx((kept[0] + kept[2]) / 2, abs=1e-6)
    assert rows[WRONG]["audit"] == "fail" and rows[WRONG]["reason"].startswith(
        "parameters: other parameters"
    )


def test_where_no_run_passes_there_is_no_number(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,), wrong={"tokens-gpt-tiny-late-ovl-s0"})
    document = report_document(written(tmp_path, draws=True))
    late = document["suites"][1]
    assert late["variants"]["ovl"]["goodput"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert late["variants"]["ovl"]["stall_s"] is None and late["variants"]["ovl"]["audit"] == "fail"
    assert "ovl_over_blk" not in late["paired"] and "deepvm_over_blk" in late["paired"]
    check_schema(document, "lab-report")
    (row,) = (
        r for r in table(tmp_path, "summary.csv") if (r["failure"], r["variant"]) == ("late", "ovl")
    )
    assert row["goodput"] == row["stall_s"] == row["detect_s"] == ""


def test_what_nobody_else_says_is_in_the_markdown(with_a_wrong_run: Path) -> None:
    text = (with_a_wrong_run / "tokens-gpt-tiny-late_publishable.md").read_text()
    assert "Failures: exit 6, 10. 12 steps, a checkpoint every 4; ranks: 2" in text
    assert f"- `{WRONG}`: parameters: other parameters than those of the undisturbed run" in text
    assert "| ovl | 2 of 3 |" in text and ", 2 pairs |" in text


@pytest.mark.parametrize("name", ["analysis.md", "tokens-gpt-tiny-late_publishable.md"])
def test_texts_as_they_are_kept(with_a_wrong_run: Path, name: str) -> None:
    check_golden(f"lab-{name}", (with_a_wrong_run / name).read_text())


def test_without_matplotlib_all_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise MissingExtraError("plot", "matplotlib", "plot")

    monkeypatch.setattr(lab_files, "write_figures", missing)
    words = write_all(tmp_path, LabSummary.of(*check(make(tmp_path))))
    assert "figures 2 to 4 are not written" in words and "plot" in words
    assert set(files(tmp_path)) == {name for name in NAMES if not name.startswith("figure")}
    page = (tmp_path / "report.html").read_text()
    assert "they need matplotlib" in page and "figure-2" not in page and page.count("<svg") > 10


def test_a_matrix_without_blocking_or_a_reference(tmp_path: Path) -> None:
    """Nothing to compare with: goodputs remain."""
    written(make(tmp_path, variants=("none", "deepvm")), draws=True)
    text = (tmp_path / "analysis.md").read_text()
    assert (
        "No suite has blocking, overlapped and reference runs that pass with the same seed: no"
        " means." in text
    )
    row, _ = (r for r in table(tmp_path, "summary.csv") if r["variant"] == "deepvm")
    assert row["over_blocking"] == "" and not math.isnan(float(row["goodput"]))


def test_undisturbed_runs_alone_are_a_suite(tmp_path: Path) -> None:
    (suite,) = written(make(tmp_path, variants=("none", "ref-blk")), draws=True)
    assert suite.failure == "calm" and set(suite.variants) == {"none", "ref-blk"}
    assert "<h2" in (tmp_path / "report.html").read_text()


def test_a_training_that_diverged_is_a_finding(tmp_path: Path) -> None:
    """Its losses are NaN from some step on, in each attempt alike."""
    run = "tokens-gpt-tiny-late-ovl-s1"
    make(tmp_path)
    for log in (tmp_path / "runs" / run).glob("rank_*.jsonl"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        lost = [
            {**row, "loss": math.nan, "loss_hex": "nan"} if row["global_step"] >= 7 else row
            for row in rows
        ]
        log.write_text("".join(json.dumps(row) + "\n" for row in lost))
    suites = written(tmp_path)
    document = json.loads((tmp_path / "tokens-gpt-tiny-late_publishable.json").read_text())
    check_schema(document, "lab-suite")
    check_schema(report_document(suites), "lab-report")
    ovl = document["variants"]["ovl"]
    assert ovl["diverged"] == 1 and ovl["loss_difference"] == 0 and ovl["audit"] == "pass"
    (row,) = (one for one in table(tmp_path, "detailed_table.csv") if one["run"] == run)
    assert (
        row["loss_difference"] == ""
        and row["reason"] == "training diverged: some losses are not numbers"
    )
    for name in ("analysis.md", "tokens-gpt-tiny-late_publishable.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert (
            f"Training diverged, some losses are not numbers: {run}." in text
            and "1 diverged" in text
        )
        assert not re.search(r"\bnan\b", text)


def test_where_all_have_diverged_there_is_no_loss_difference(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,))
    for log in (tmp_path / "runs").glob("*/rank_*.jsonl"):
        log.write_text(re.sub(r'"loss": [-+.e0-9]+', '"loss": NaN', log.read_text()))
    written(tmp_path, draws=True)
    (line,) = (
        one
        for one in (tmp_path / "analysis.md").read_text().splitlines()
        if one.startswith("| loss difference")
    )
    assert line.startswith("| loss difference | - | - | - | - |")


def test_a_single_pair_is_marked(tmp_path: Path) -> None:
    """Nobody can tell a gain from chance by it."""
    written(make(tmp_path, seeds=(0,)))
    for name in ("analysis.md", "tokens-gpt-tiny-late_publishable.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert re.search(r"[0-9] \(n = 1\)", text) and "1 pair" not in text
