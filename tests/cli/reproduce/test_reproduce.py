"""``deepvm reproduce``: tables, documents, exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command import Run
from support.effort import sampled
from support.places import GOLDEN_FOLDER, ROOT

from deepvm.errors import EXTRA_SOURCE
from deepvm.io import user_dirs

FIGURE = {
    "name",
    "published",
    "from",
    "published_value",
    "ours",
    "ours_printed",
    "difference",
    "relative_difference",
    "tolerance",
    "verdict",
    "expected",
    "why",
}


@pytest.mark.parametrize("paper", sampled(["deepvm", "thesis", "scaling"]))
def test_tables(paper: str, run: Run) -> None:
    """``WRITE_GOLDEN=1`` writes it anew."""
    code, out, err = run("reproduce", paper)
    assert (code, err) == (0, "")
    path = GOLDEN_FOLDER / f"reproduce-{paper}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(out)
    assert out == path.read_text()
    assert max(map(len, out.splitlines())) <= 100


def test_all_goldens_are_compared() -> None:
    assert {p.name for p in GOLDEN_FOLDER.glob("reproduce*")} == {
        f"reproduce-{paper}.txt" for paper in ("deepvm", "thesis", "scaling")
    }


def test_a_document(run: Run) -> None:
    code, out, err = run("reproduce", "deepvm", "-o", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema_version"] == "deepvm.reproduce/1"
    (paper,) = found["papers"]
    assert set(paper) == {"paper", "title", "note", "counts", "unexpected", "parts"}
    figures = [figure for part in paper["parts"] for figure in part["figures"]]
    assert all(set(figure) == FIGURE for figure in figures)
    assert sum(paper["counts"].values()) == len(figures) and paper["unexpected"] == 0
    table_vii = next(part for part in paper["parts"] if part["id"] == "table-7")
    assert (table_vii["where"], table_vii["stated_by"]) == ("section V-C3", "paper")
    cost = next(f for f in table_vii["figures"] if f["name"] == "Cost-First over 1st, cost")
    assert (cost["published"], cost["from"], cost["ours_printed"]) == (
        "1.1979",
        "0.2385 / 0.1991",
        "1.0672",
    )
    assert (cost["verdict"], cost["expected"]) == ("differs", True) and "checkpoints" in cost["why"]
    assert cost["difference"] == pytest.approx(cost["ours"] - 1.1979)
    assert cost["tolerance"]["relative"] == 0.03
    assert yaml.safe_load(run("reproduce", "deepvm", "-o", "yaml")[1]) == found


@pytest.mark.system
def test_rows(run: Run) -> None:
    code, out, err = run("reproduce", "scaling", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(rows)) == (0, 42)
    # Slow machines show progress
    assert not [line for line in err.splitlines() if " tables after " not in line]
    first = rows[0]
    assert (first["paper"], first["part"], first["figure"]) == (
        "scaling",
        "table-4-fits",
        "ResNet-18, a",
    )
    assert (first["published"], first["ours"], first["verdict"], first["expected"]) == (
        *("0.1222", "0.1222", "same"),
        "true",
    )
    assert {row["verdict"] for row in rows} == {"same", "close"}


def test_one_verdict_alone(run: Run) -> None:
    for verdict in ["same", "close", "differs"]:
        rows = list(
            csv.DictReader(
                io.StringIO(run("reproduce", "deepvm", "--only", verdict, "-o", "csv")[1])
            )
        )
        assert rows and {row["verdict"] for row in rows} == {verdict}
        found = json.loads(run("reproduce", "deepvm", "--only", verdict, "-o", "json")[1])[
            "papers"
        ][0]
        assert (
            sum(len(part["figures"]) for part in found["parts"])
            == len(rows)
            == found["counts"][verdict]
        )


def test_papers_without_such_figures_have_their_line_alone(run: Run) -> None:
    code, out, _ = run("reproduce", "scaling", "--only", "differs")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["paper", "scaling"]


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper prints 16 VMs first, and no file says that this is known."""
    folder = tmp_path / "reproduce"
    folder.mkdir()
    paper = json.loads((ROOT / "data" / "reproduce" / "deepvm.json").read_text())
    table = next(part for part in paper["parts"] if part["id"] == "table-7")
    assert table["figures"]["DeepVM 1st"]["published"] == "17 g4dn + 1 c5"
    table["figures"]["DeepVM 1st"]["published"] = "16 g4dn + 1 c5"
    (folder / "deepvm.json").write_text(json.dumps(paper))
    monkeypatch.setattr(user_dirs, "data_folder", lambda: tmp_path)


@pytest.mark.parametrize(
    ("more", "form"),
    [([], "table"), (["--only", "differs"], "table"), (["--only", "same"], "json"), ([], "csv")],
)
def test_an_unexpected_difference_is_exit_code_1_and_named(
    more: list[str], form: str, run: Run, wrong: Any
) -> None:
    code, out, err = run("reproduce", "deepvm", *more, "-o", form)
    assert code == 1
    assert err == "Not expected: table-7, DeepVM 1st: 17 g4dn + 1 c5, not 16 g4dn + 1 c5\n"
    if form == "json":
        assert json.loads(out)["papers"][0]["unexpected"] == 1
    elif form == "table":
        assert re.search(r"^DeepVM 1st .*  DIFFERS$", out, re.MULTILINE)
        assert "- DeepVM 1st: not expected, and no reason is known\n" in out


def test_a_paper_that_is_none(run: Run) -> None:
    code, out, err = run("reproduce", "acute")
    assert (code, out) == (2, "") and "acute" in err and "scaling" in err


@pytest.mark.slow
def test_fits_need_scipy_and_the_rest_does_not() -> None:
    code = (
        "import sys; sys.modules['scipy'] = None; from deepvm.cli.main import main;"
        " main(sys.argv[1:])"
    )
    for paper, expected in (("scaling", 2), ("all", 0), ("deepvm", 0)):
        words = [sys.executable, "-c", code, "reproduce", paper, "--only", "differs", "-o", "json"]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert ended.returncode == expected, ended.stderr
        assert (EXTRA_SOURCE.format("fit") in ended.stderr) == (paper != "deepvm")
        if paper == "all":
            assert "Note: scaling is left out" in ended.stderr
            assert [p["paper"] for p in json.loads(ended.stdout)["papers"]] == ["deepvm", "thesis"]


def test_progress(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepvm.cli import long_runs

    monkeypatch.setattr(long_runs, "_LINE_S", 0.05)
    code, _, err = run("reproduce", "scaling", "--only", "same")
    assert code == 0 and " of 8 tables" in err
