"""The files of published figures: what stands in them, with which reasons, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.places import ROOT

from deepvm.catalog.store import embedded_names
from deepvm.errors import DataError
from deepvm.reports.reproduction.papers import PAPERS
from deepvm.reports.reproduction.printed import Kind, Printed
from deepvm.reports.reproduction.published_figures import Figure, Part, Tolerance, published_paper

FOLDER = ROOT / "data" / "reproduce"
EVERY = [
    (paper, part, figure)
    for paper in PAPERS
    for part in published_paper(paper).parts
    for figure in part.figures
]
QUOTIENT = re.compile(r"([\d.]+) / ([\d.]+)")


def test_each_paper_has_a_file_and_each_file_a_paper() -> None:
    assert {path.stem for path in FOLDER.glob("*")} == set(PAPERS)
    assert not set(PAPERS) & set(embedded_names())  # none of them is a catalog


def test_provenance() -> None:
    """A paper, and for each part where it stands in it, or that this project states it."""
    for name in PAPERS:
        paper = published_paper(name)
        assert paper.name == name and paper.title and paper.note
        ids = [part.id for part in paper.parts]
        assert len(ids) == len(set(ids))
        for part in paper.parts:
            assert part.where and part.title and part.figures
            assert part.stated_by in ("paper", "deepvm")
            assert part.where.startswith("this project") == (part.stated_by == "deepvm")


def test_no_reason_is_missing() -> None:
    for _, _, figure in EVERY:
        if figure.tolerance is not None:
            assert figure.tolerance.reason and (figure.tolerance.relative is None) != (
                figure.tolerance.absolute is None
            )
        if figure.known is not None:
            assert figure.known.why and figure.known.ours.kind is figure.published.kind
            assert figure.published.text != figure.known.ours.text


def test_quotients_are_what_they_say() -> None:
    """A published figure that is a quotient of printed ones is that of the numbers in its source."""
    seen = 0
    for _, _, figure in EVERY:
        if found := QUOTIENT.fullmatch(figure.source):
            seen += 1
            assert figure.published.agrees(float(found[1]) / float(found[2])), figure.name
    assert seen >= 9


def test_runs_behind_speed_ups_are_those_of_the_embedded_rows() -> None:
    rows = (ROOT / "data" / "performance" / "published.csv").read_text()
    values = {float(line.rpartition(",")[2]) for line in rows.splitlines()[1:]}
    named = [v for p, _, f in EVERY if p == "scaling" and f.source for v in f.source.split(" / ")]
    throughputs = [float(v) for v in named if v not in ("8",)]
    assert len(throughputs) == 11 and all(
        any(abs(v - own) < 1e-9 for own in values) for v in throughputs
    )


def test_kinds_of_figures_in_use() -> None:
    assert {figure.published.kind for _, _, figure in EVERY} == set(Kind)


def changed(tmp_path: Path, change: Any) -> Path:
    raw = json.loads((FOLDER / "deepvm.json").read_text())
    change(raw)
    (tmp_path / "deepvm.json").write_text(json.dumps(raw))
    return tmp_path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda raw: raw.update(schema_version="deepvm.published/9"),
            "schema_version 'deepvm.published/9'",
        ),
        (lambda raw: raw.pop("title"), "KeyError: 'title'"),
        (lambda raw: raw["parts"][0].update(figures=7), "AttributeError"),
        (lambda raw: raw.update(parts=3), "TypeError"),
    ],
)
def test_a_file_that_is_none_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(said)) as error:
        published_paper("deepvm", changed(tmp_path, change))
    assert "deepvm.json" in str(error.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"deepvm\.json: no published figures \(No such file"):
        published_paper("deepvm", tmp_path)
    (tmp_path / "deepvm.json").write_text("{")
    with pytest.raises(DataError, match="JSONDecodeError"):
        published_paper("deepvm", tmp_path)


def test_tolerances_in_words() -> None:
    assert Tolerance("why", relative=0.003).show("") == "within 0.3 %"
    assert Tolerance("why", absolute=3).show(" %") == "within 3 points"
    assert Tolerance("why", absolute=0.0001).show("") == "within 0.0001"
    assert not Tolerance("why").allows(0.0, 1.0)


def test_the_first_rule_that_names_a_figure_counts(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["parts"] = [
            {
                "id": "x",
                "title": "X",
                "where": "section 1",
                "tolerances": [
                    {"of": "*, b", "relative": 0.1, "reason": "wide"},
                    {"of": "*", "absolute": 1, "reason": "narrow"},
                ],
                "figures": {
                    "one, a": "1",
                    "one, b": "2",
                    "two, b": {"published": "3", "tolerance": {"absolute": 9, "reason": "own"}},
                },
            }
        ]

    (part,) = published_paper("deepvm", changed(tmp_path, change)).parts
    assert [f.tolerance and f.tolerance.reason for f in part.figures] == ["narrow", "wide", "own"]
    assert part == Part("x", "X", "section 1", "paper", part.figures)
    assert part.figures[0] == Figure("one, a", Printed.read("1"), Tolerance("narrow", absolute=1))
