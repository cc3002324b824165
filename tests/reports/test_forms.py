"""Answers of the Python API as documents, data frames, tables of HTML, and in a line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas
import pytest
from support.schemas import check

import deepvm
from deepvm.catalog.published.performance import SOFTWARE
from deepvm.cli.main import main
from deepvm.core.answer import Answer
from deepvm.errors import MissingExtraError, RequestError
from deepvm.planner.explain import WhyNot
from deepvm.reports.forms import Views

PAPER = deepvm.load_catalog("paper")
SNAPSHOT = deepvm.load_catalog("aws-us-east-1", prices="snapshot")
JOB = "name: calm\nsteps: 1000\nstep_s: 2\nmttp_s: 3600\nspot_usd_per_hour: 1\n"


class Case(NamedTuple):
    """An answer, how it begins in a line, and the words that print the same."""

    answer: Callable[[], Answer]
    begins: str
    words: str


CASES = {
    "recommend": Case(
        lambda: deepvm.recommend(PAPER, 3),
        "<Recommendations: 1: 17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand), $2.8526/h; 2"
        " more>",
        "recommend --pw 3 --catalog paper",
    ),
    "infeasible": Case(
        lambda: deepvm.recommend(PAPER, "0.3"),
        "<Recommendations: nothing is feasible within $0.3/h: ",
        "recommend --pw 0.3 --catalog paper",
    ),
    "compare": Case(
        lambda: deepvm.compare([deepvm.recommend(PAPER, 3)]),
        "<Comparison of us-east-1: best 17 x g4dn.xlarge",
        "recommend --pw 3 --catalog paper",
    ),
    "explain": Case(
        lambda: deepvm.explain(PAPER, 3, "g5.xlarge"),
        "<WhyNot: The best cluster with g5.xlarge",
        "explain g5.xlarge --pw 3 --catalog paper",
    ),
    "sweep": Case(
        lambda: deepvm.sweep(PAPER, ["0.3", 3]),
        "<Sweep of paper: 8 rows, $0.3 to $3/h, 4 infeasible>",
        "sweep --pw 0.3,3 --catalog paper",
    ),
    "predict": Case(
        lambda: deepvm.predict("H100", 64, model="llama-8b", method="fsdp"),
        "<TrainingSpeed: llama-8b on 64 x H100: 3.",
        "performance predict --gpu H100 --gpus 64 --model llama-8b --method fsdp",
    ),
    "gpus": Case(
        lambda: deepvm.gpus(SNAPSHOT, "T4*", model="resnet50"),
        "<Gpus for resnet50: ",
        "gpus --catalog aws-us-east-1 --offline --gpu T4* --model resnet50",
    ),
    "simulate": Case(
        lambda: deepvm.simulate(Path("calm.yaml"), "every:10min", runs=5),
        "<Results of 5 runs: calm, every:600: ",
        "simulate --job calm.yaml --policy every:10min --runs 5",
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.chdir(tmp_path)
    Path("calm.yaml").write_text(JOB)
    return CASES[request.param]


def test_the_document_is_the_one_of_the_command_line(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*case.words.split(), "-o", "json"])
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(case.answer().to_dict())) == printed
    check(printed, printed["schema_version"].removeprefix("deepvm.").removesuffix("/1"))


def test_a_line_says_the_answer(case: Case) -> None:
    shown = repr(case.answer())
    assert (
        shown.startswith(case.begins)
        and shown.endswith(">")
        and len(shown) <= 240
        and "\n" not in shown
    )


def test_the_columns_of_a_frame_are_those_of_csv(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*case.words.split(), "-o", "csv"])
    header, *rows = capsys.readouterr().out.splitlines()
    frame = case.answer().to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert (list(frame.columns), len(frame)) == (header.split(","), len(rows))
    pandas.testing.assert_frame_equal(frame, deepvm.to_frame(case.answer()))


def test_a_table_has_the_rows(case: Case) -> None:
    shown, frame = case.answer()._repr_html_(), case.answer().to_frame()
    if not len(frame):
        assert shown == f"<p>{case.answer().infeasible.reason}</p>"
        return
    header = re.findall(r"<th>([^<]*)</th>", shown)
    assert len(header) == min(8, len(frame.columns)) and set(header) <= set(frame.columns)
    assert ("more columns" in shown) is (len(frame.columns) > 8)
    assert shown.count("<tr>") == len(frame) + 1 and "None" not in shown and "nan" not in shown


def test_types_of_columns() -> None:
    frame = deepvm.recommend(PAPER, 3).to_frame()
    assert (frame["usd_per_hour"].dtype, frame["estimated"].dtype, frame["vm_count"].dtype) == (
        "float64",
        bool,
        "int64",
    )
    rows = deepvm.sweep(PAPER, ["0.01", 1, 3])
    frame = rows.to_frame()
    assert frame["pw_usd_per_hour"].tolist() == [float(r.budget) for r in rows]
    assert frame["throughput"].isna().sum() == sum(r.recommendation is None for r in rows)


def test_html_shows_text_as_text() -> None:
    hostile = "<script>alert('x')</script>&"
    why = WhyNot(replace(PAPER, name=hostile), hostile, hostile)
    shown = why._repr_html_()
    assert hostile not in shown and "<script" not in shown and shown.count("&lt;script&gt;") == 2
    assert "<b>" not in Views(dict, lambda: (["<b>"], [])).html()


def test_long_tables_are_cut_and_say_so() -> None:
    shown = Views(dict, lambda: (["n"], [[n] for n in range(60)])).html()
    assert shown.count("<tr>") == 51 and "and 10 more rows" in shown


def test_rows_are_a_sequence() -> None:
    found = deepvm.sweep(PAPER, [1, 3], ["deepvm"])
    assert (
        len(found) == 2
        and [r.budget for r in found] == [1, 3]
        and found[1] is found[-1]
        and len(found[:1]) == 1
    )


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[pandas\]'"):
        deepvm.recommend(PAPER, 3).to_frame()
    assert deepvm.recommend(PAPER, 3)._repr_html_()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(RequestError, match=r"gpu: 'H10O'.*did you mean H100"):
        deepvm.predict("H10O", model="llama-8b")
    with pytest.raises(RequestError, match="gpus: 0 "):
        deepvm.predict("H100", 0, model="llama-8b")
    with pytest.raises(RequestError, match="gpu: 'K80'"):
        deepvm.gpus(SNAPSHOT, "K80", model="resnet50")
    with pytest.raises(RequestError, match="a Catalog, such as"):
        deepvm.gpus("aws", model="resnet50")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="policy"):
        deepvm.simulate("gpt-1.3b", "sometimes")


def test_gpus_are_as_fast_as_the_software() -> None:
    first = [
        deepvm.gpus(SNAPSHOT, "H100", model="llama-8b", method="lora", software=s).rows[0]
        for s in SOFTWARE
    ]
    speeds = dict(
        zip(SOFTWARE, (row.speed.interval.value for row in first if row.speed), strict=True)
    )
    assert speeds["transformers"] < speeds["eager"] < speeds["compiled"]
    with pytest.raises(RequestError, match="software"):
        deepvm.gpus(SNAPSHOT, software="fast", model="llama-8b")
