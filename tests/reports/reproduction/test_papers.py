"""Every verdict on the papers' figures, and that a wrong figure is seen."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deepvm.errors import DeepVMError, RequestError, SimulationError
from deepvm.planner.request import PolicyName
from deepvm.reports.reproduction import deepvm_figures, thesis_figures
from deepvm.reports.reproduction.papers import PAPERS, parts_of, reproduce
from deepvm.reports.reproduction.published_figures import Figure, Paper

COUNTS = {"deepvm": (85, 5, 5), "thesis": (16, 66, 11), "scaling": (31, 11, 0)}
"""Figures that are the same, close, and differ as known."""
KNOWN = {
    "deepvm": {
        "table-2, g4dn.xlarge",
        "table-4, mean of the rows, c",
        "figure-7, budgets > $2.5/h, NoScale < Cost-First",
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
def computed() -> dict[str, Paper]:
    """Each paper, computed once."""
    progress: list[int] = []
    reproductions = reproduce(progress=progress.append)
    assert sum(progress) == parts_of(PAPERS)
    return {paper.name: paper for paper in reproductions}


def figures_of(paper: Paper) -> dict[str, Figure]:
    return {f"{part.id}, {own.name}": own for part in paper.parts for own in part.figures}


def differing(paper: Paper) -> set[str]:
    return {name for name, own in figures_of(paper).items() if own.verdict == "differs"}


@pytest.mark.system
@pytest.mark.parametrize("name", PAPERS)
def test_verdicts(name: str, computed: dict[str, Paper]) -> None:
    reproduction = computed[name]
    assert tuple(reproduction.counts.values()) == COUNTS[name]
    assert not reproduction.unexpected
    known = {name for name, own in figures_of(reproduction).items() if own.known}
    assert differing(reproduction) == known == KNOWN[name]


@pytest.mark.system
def test_a_wrong_figure_is_seen(computed: dict[str, Paper]) -> None:
    for name, figure, published in [
        ("deepvm", "table-7, DeepVM 1st", "16 g4dn + 1 c5"),
        ("deepvm", "table-5, 10 Gbit/s", "21"),
        ("deepvm", "figure-5, g3s.xlarge, largest", "66.2 %"),
        ("deepvm", "figure-5, g4dn.xlarge, largest from 4 VMs", "< 9 %"),
        ("deepvm", "figure-7, budgets with a better policy than DeepVM", "1"),
        ("deepvm", "examples, PW 3, throughput", "1478.0"),
        ("thesis", "table-6.2, Per-51, Total", "5d, 15:41:34"),
        ("thesis", "interval, GPT-1.3B, steps of eq. 4.5", "31"),
        ("thesis", "text-6.3, GPT-117M, Adaptive over on-demand", "2.60 %"),
        ("scaling", "table-4-fits, ResNet-18, a", "0.1223"),
        ("scaling", "held-out, ring, g3s.xlarge, 12 20 24 28 left out", "3.7 %"),
        ("scaling", "pollux-law, ResNet-50, median", "< 4 %"),
    ]:
        own = figures_of(computed[name])[figure]
        assert not replace(own, published=published).expected, figure


def test_each_figure_would_be_seen_if_ours_were_another(computed: dict[str, Paper]) -> None:
    """No tolerance is so wide, and no known difference so loose, that half as much again passes."""
    for paper in computed.values():
        for name, own in figures_of(paper).items():
            other: Any = f"{own.ours} more"
            if not isinstance(own.ours, str):
                other = 1.5 * own.ours + 1
            if own.printed.kind in ("<", ">"):
                other = float("nan")
            assert not replace(own, ours=other).expected, name


@pytest.mark.system
@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_other_seeds_of_the_simulation_have_the_same_verdicts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the thesis are not picked: a known difference may move by its tolerance."""
    simulated = thesis_figures.simulated
    monkeypatch.setattr(thesis_figures, "simulated", lambda: simulated(10_000, seed))
    (reproduction,) = reproduce(["thesis"])
    unexpected = {f"{part.id}, {own.name}" for part, own in reproduction.unexpected}
    assert unexpected <= {"table-6.3, Per-10, Recomp."}
    assert differing(reproduction) >= KNOWN["thesis"]


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(RequestError, match="deepvm or thesis or scaling"):
        reproduce(["acute"])


def test_a_missing_library_is_found_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deepvm.reports.reproduction.scaling_figures", None)
    monkeypatch.delattr(thesis_figures, "interval")
    with pytest.raises(ModuleNotFoundError):
        reproduce(["thesis", "scaling"])


def test_an_answer_in_doubt_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recommend = deepvm_figures.recommend

    def doubtful(*arguments: Any, **options: Any) -> Any:
        return replace(recommend(*arguments, **options), doubt="out of time")

    monkeypatch.setattr(deepvm_figures, "recommend", doubtful)
    deepvm_figures.solved.cache_clear()
    with pytest.raises(DeepVMError, match="PW 3: out of time"):
        deepvm_figures.planned("PW 3", "price")


def test_a_simulation_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimulationError("makes no progress")
    monkeypatch.setattr(thesis_figures, "simulate_each", lambda cases, **_: [failed for _ in cases])
    with pytest.raises(SimulationError, match="makes no progress"):
        thesis_figures.simulated(1, 1)


def test_a_policy_that_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    rising = {PolicyName.DEEPVM: np.array([1.0, 1.0, 2.0])}
    monkeypatch.setattr(deepvm_figures, "throughputs", lambda _: rising)
    assert deepvm_figures.first_fall("deepvm") == "never"
