"""The files of published figures: what stands in them, with which reasons, and what is refused."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from support.places import ROOT

from deepvm.catalog.store import embedded_names
from deepvm.reports.reproduction.papers import PAPERS
from deepvm.reports.reproduction.published_figures import (
    Figure,
    Paper,
    Part,
    PrintedFigure,
    Tolerance,
    read_paper,
    read_part,
)


class Uncomputed(ModuleType):
    """Every function of a paper's module, which computes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: f"{name}{arguments}"


def published_paper(name: str) -> Paper:
    raw = read_paper(name)
    parts = [read_part(Uncomputed(name), **part) for part in raw["parts"]]
    return Paper(raw["paper"], raw["title"], raw["note"], parts)


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
        if figure.known:
            assert figure.known_why and figure.published != figure.known
            assert (
                PrintedFigure.read(figure.known).kind == PrintedFigure.read(figure.published).kind
            )


def test_quotients_are_what_they_say() -> None:
    """A published quotient of printed figures is that of the numbers in its source."""
    seen = 0
    for _, _, figure in EVERY:
        if found := QUOTIENT.fullmatch(figure.source):
            seen += 1
            assert PrintedFigure.read(figure.published).agrees(float(found[1]) / float(found[2])), (
                figure.name
            )
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
    kinds = {PrintedFigure.read(figure.published).kind for _, _, figure in EVERY}
    assert kinds == {"", "<", ">", "time", "words"}


def test_tolerances_in_words() -> None:
    assert Tolerance("why", relative=0.003).show("") == "within 0.3 %"
    assert Tolerance("why", absolute=3).show(" %") == "within 3 points"
    assert Tolerance("why", absolute=0.0001).show("") == "within 0.0001"


def test_the_first_rule_that_names_a_figure_counts() -> None:
    rules = [
        {"of": "*, b", "relative": 0.1, "reason": "wide"},
        {"of": "*", "absolute": 1, "reason": "narrow"},
    ]
    figures = {"one, a": "1", "one, b": "2", "two, b": {"published": "3", "source": "6 / 2"}}
    part = read_part(Uncomputed("x"), figures, rules, "f", id="x", title="X", where="section 1")
    assert [f.tolerance and f.tolerance.reason for f in part.figures] == ["narrow", "wide", "wide"]
    assert part == Part("x", "X", "section 1", part.figures)
    narrow = Tolerance("narrow", absolute=1)
    assert part.figures[0] == Figure("one, a", "1", "f('one', 'a')", narrow)
