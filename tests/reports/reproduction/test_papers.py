"""Every verdict on the papers' figures, and that a wrong figure is seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.places import ROOT

from deepvm.errors import DataError, DeepVMError, RequestError, SimulationError
from deepvm.reports.reproduction import deepvm_figures, papers, thesis_figures
from deepvm.reports.reproduction.papers import PAPERS, parts_of, reproduce
from deepvm.reports.reproduction.printed import Kind, Value
from deepvm.reports.reproduction.published_figures import published_paper
from deepvm.reports.reproduction.verdicts import Reproduction, Verdict

FOLDER = ROOT / "data" / "reproduce"
COUNTS = {"deepvm": (85, 5, 5), "thesis": (16, 66, 11), "scaling": (31, 11, 0)}
"""Figures that are the same, close, and differ as known."""
KNOWN = {
    "deepvm": {
        "table-2, g4dn.xlarge",
        "table-4, mean of the rows, c",
        "figure-7, budgets > 2.5 $/h, NoScale < Cost-First",
        "figure-7, PW at which Performance-First falls",
        "table-7, Cost-First over 1st, cost",
    },
    "thesis": {
        "table-6.2, Adaptive, Alloc.",
        "table-6.2, Adaptive, Prep.",
        "table-6.2, Per-10, Recomp.",
        "table-6.2, Per-51, Recomp.",
        "table-6.2, Per-100, Comp.",
        "table-6.2, Per-100, Recomp.",
        "table-6.3, Per-100, Comp.",
        "table-6.3, Per-100, Recomp.",
        "table-6.3, Per-100, Total",
        "table-6.3, Per-100, Cost ($)",
        "closed-form, GPT-1.3B, Per-100",
    },
    "scaling": set(),
}


@pytest.fixture(scope="module")
def computed() -> dict[str, list[tuple[str, dict[str, Value]]]]:
    """What is computed for each paper, once."""
    return {name: list(load()()) for name, load in PAPERS.items()}


@pytest.fixture
def again(computed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same figures without computing them again; a test may change its copy."""
    own = {
        name: [(part, dict(values)) for part, values in parts] for name, parts in computed.items()
    }
    for name in PAPERS:
        monkeypatch.setitem(PAPERS, name, lambda name=name: lambda: iter(own[name]))
    return own


def named(found: Reproduction, verdict: Verdict) -> set[str]:
    return {
        f"{p.part.id}, {c.figure.name}"
        for p in found.parts
        for c in p.comparisons
        if c.verdict is verdict
    }


@pytest.mark.parametrize("name", PAPERS)
def test_verdicts(name: str, again: dict[str, Any]) -> None:
    (found,) = reproduce([name])
    assert tuple(found.counts.values()) == COUNTS[name]
    assert not found.unexpected
    assert named(found, Verdict.DIFFERS) == KNOWN[name]


@pytest.mark.parametrize("name", PAPERS)
def test_no_difference_is_said_to_be_known_that_is_none(name: str, again: dict[str, Any]) -> None:
    (found,) = reproduce([name])
    known = {
        f"{part.id}, {f.name}"
        for part in found.paper.parts
        for f in part.figures
        if f.known is not None
    }
    assert known == named(found, Verdict.DIFFERS)


def test_all_papers_and_progress(again: dict[str, Any]) -> None:
    told: list[int] = []
    found = reproduce(progress=told.append)
    assert [r.paper.name for r in found] == list(PAPERS)
    assert sum(told) == parts_of(list(PAPERS)) == sum(len(r.parts) for r in found)


def changed(tmp_path: Path, name: str, part: str, figure: str, published: str) -> Path:
    """A copy of the published figures in which one is another."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    raw = json.loads((tmp_path / f"{name}.json").read_text())
    figures = next(p for p in raw["parts"] if p["id"] == part)["figures"]
    old = figures[figure]
    figures[figure] = published if isinstance(old, str) else {**old, "published": published}
    (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "part", "figure", "published"),
    [
        ("deepvm", "table-7", "DeepVM 1st", "16 g4dn + 1 c5"),
        ("deepvm", "table-5", "10 Gbit/s", "21"),
        ("deepvm", "figure-5", "g3s.xlarge, largest", "66.2 %"),
        ("deepvm", "figure-5", "g4dn.xlarge, largest from 4 VMs", "< 9 %"),
        ("deepvm", "figure-7", "budgets with a better policy than DeepVM", "1"),
        ("deepvm", "examples", "PW 3, throughput", "1478.0"),
        ("thesis", "table-6.2", "Per-51, Total", "5d, 15:41:34"),
        ("thesis", "interval", "GPT-1.3B, steps of eq. 4.5", "31"),
        ("thesis", "interval", "GPT-1.3B, emergency save", "yes"),
        ("thesis", "text-6.3", "GPT-117M, Adaptive over on-demand", "2.60 %"),
        ("scaling", "table-4-fits", "ResNet-18, a", "0.1223"),
        ("scaling", "held-out", "ring, g3s.xlarge, 12 20 24 28 left out", "3.7 %"),
        ("scaling", "pollux-law", "ResNet-50, median", "< 4 %"),
    ],
)
def test_a_wrong_figure_is_seen(
    name: str, part: str, figure: str, published: str, tmp_path: Path, again: dict[str, Any]
) -> None:
    (found,) = reproduce([name], folder=changed(tmp_path, name, part, figure, published))
    assert [(p.id, c.figure.name, c.verdict) for p, c in found.unexpected] == [
        (part, figure, Verdict.DIFFERS)
    ]


def test_each_figure_would_be_seen_if_ours_were_another(again: dict[str, Any]) -> None:
    """No tolerance is so wide, and no known difference so loose, that half as much again passes."""
    for name, parts in again.items():
        bounds = {
            (part.id, f.name): f.published
            for part in published_paper(name).parts
            for f in part.figures
        }
        for part, values in parts:
            for figure, ours in values.items():
                kind = bounds[part, figure].kind
                if isinstance(ours, str):
                    values[figure] = f"{ours} more"
                elif kind in (Kind.BELOW, Kind.ABOVE):
                    values[figure] = float("nan")
                else:
                    values[figure] = 1.5 * ours + 1
        (found,) = reproduce([name])
        assert len(found.unexpected) == len(found.comparisons)


def test_a_known_difference_that_moves_is_not_expected_any_more(again: dict[str, Any]) -> None:
    values = dict(again["deepvm"])["figure-7"]
    values["PW at which Performance-First falls"] = 2.3
    (found,) = reproduce(["deepvm"])
    assert [c.why for _, c in found.unexpected] == ["not expected: the known difference is 2.2"]


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_other_seeds_of_the_simulation_have_the_same_verdicts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the thesis are not picked: a known difference may move by its tolerance alone."""
    monkeypatch.setitem(PAPERS, "thesis", lambda: lambda: thesis_figures.compute(10_000, seed))
    (found,) = reproduce(["thesis"])
    assert {f"{p.id}, {c.figure.name}" for p, c in found.unexpected} <= {
        "table-6.3, Per-10, Recomp."
    }
    assert named(found, Verdict.DIFFERS) >= KNOWN["thesis"]


def test_the_same_seed_gives_the_same_figures() -> None:
    assert list(thesis_figures.compute(200, 5)) == list(thesis_figures.compute(200, 5))


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(RequestError, match="deepvm or thesis or scaling"):
        reproduce(["acute"])


def test_parts_that_do_not_match_are_refused(tmp_path: Path, again: dict[str, Any]) -> None:
    extra = [*again["deepvm"], ("table-9", {})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PAPERS, "deepvm", lambda: lambda: iter(extra))
        with pytest.raises(DataError, match="no part 'table-9'"):
            reproduce(["deepvm"])
        patch.setitem(PAPERS, "deepvm", lambda: lambda: iter(extra[1:-1]))
        with pytest.raises(DataError, match="nothing computes table-2"):
            reproduce(["deepvm"])


def test_a_missing_library_is_found_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_scipy() -> Any:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    def never() -> Iterator[tuple[str, dict[str, Value]]]:
        raise AssertionError

    monkeypatch.setitem(PAPERS, "deepvm", lambda: never)
    monkeypatch.setitem(PAPERS, "scaling", no_scipy)
    with pytest.raises(ModuleNotFoundError):
        papers.reproduce(["deepvm", "scaling"])


def test_an_answer_in_doubt_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from deepvm.catalog.store import load_catalog

    recommend = deepvm_figures.recommend
    monkeypatch.setattr(
        deepvm_figures,
        "recommend",
        lambda *a, **k: replace(recommend(*a, **k), doubt="out of time"),
    )
    with pytest.raises(DeepVMError, match=r"catalog paper at 6.5 \$/h: out of time"):
        deepvm_figures.figure_6(load_catalog("paper"))


def test_a_simulation_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimulationError("makes no progress")
    monkeypatch.setattr(thesis_figures, "simulate_each", lambda cases, **_: [failed for _ in cases])
    with pytest.raises(SimulationError, match="makes no progress"):
        list(thesis_figures.compute())


def test_a_policy_that_never_falls() -> None:
    import numpy as np

    flat = {policy: np.ones(101) for policy in deepvm_figures.PolicyName}
    assert deepvm_figures.Figure7(flat).figures()["PW at which Performance-First falls"] == "never"
