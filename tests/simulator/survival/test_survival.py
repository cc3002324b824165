"""Windows of traces, the prior that they give, forecasts that are judged, evidence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import survival_prior
from support.places import ROOT
from support.simulator.trace_files import REAL, needs_traces, write
from survival_calibration import (
    WAYS,
    Judged,
    brier,
    brier_had,
    brier_interval,
    coverage,
    coverage_later,
    judge,
    judged_lines,
    reliability,
    reliability_figure,
)
from survival_prior import Asked, asked, fit_prior, to_text, windows

from deepvm.catalog.market.stored_prices import StoredPrices
from deepvm.catalog.store import load_catalog
from deepvm.core.preemption.gang_survival import Lifetime, OwnPool
from deepvm.errors import DataError, RequestError
from deepvm.simulator.survival.evidence import PRIOR, answer, price_evidence, public_prior
from deepvm.simulator.traces.trace import Trace, read_traces

HOUR = 3600.0


def trace(*counts: int, gap_s: float = 1800.0, name: str = "a/t.json") -> Trace:
    return Trace(Path(name), gap_s, np.array(counts, dtype=np.int64))


def test_windows_by_hand() -> None:
    # Every hour is two ticks, so is the window
    found = windows(trace(2, 2, 2, 2, 1, 2, 2, 2, 2), HOUR)
    assert found.ticks.tolist() == [0, 2, 4, 6]
    assert found.had.tolist() == [True, True, False, True]
    assert found.lasted.tolist() == [True, False, False, True]
    assert found.lost.tolist() == [0, 1, 1, 0]
    assert windows(trace(1, 1), 24 * HOUR).had.size == 0


def test_what_a_user_has_seen_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival_prior, "ASKED_EVERY_S", 3 * 1800.0)
    first, second, third = asked(trace(2, 2, 1, 1, 0, 2, 1, 2, 2, 2, 2))
    assert first == Asked(3, (Lifetime(5400.0, False), Lifetime(3600.0, True)), 0)
    assert second == Asked(6, (Lifetime(1800.0, True),), 1)
    assert third == Asked(9, (Lifetime(5400.0, False),), 1)


def drawn(
    random: np.random.Generator, mean_h: float, days: float, nodes: int = 1, gap_s: float = 600.0
) -> list[int]:
    """Counts of machines that go together, are away for an hour, and come back."""
    found: list[int] = []
    while len(found) * gap_s < days * 86_400:
        found += [nodes] * max(int(random.weibull(0.5) * mean_h / 2 * HOUR / gap_s), 1)
        found += [0] * int(HOUR / gap_s)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, ...]:
    folder, random = tmp_path_factory.mktemp("traces"), np.random.default_rng(7)
    for campaign in ("one", "two", "three"):
        for pool in range(3):
            write(
                folder / campaign / f"{pool}.json",
                drawn(random, float(random.gamma(3, 4)), 20),
                600,
            )
        write(folder / campaign / "gang.json", drawn(random, 12.0, 20, nodes=8), 600)
    return read_traces([folder])


@pytest.fixture(scope="module")
def judged(made: tuple[Trace, ...]) -> list[Judged]:
    return judge(made, [1, 4])


def test_the_prior_finds_what_the_traces_were_drawn_from(made: tuple[Trace, ...]) -> None:
    found = fit_prior(made)
    assert (found.pools, found.gangs) == (9, 3)
    # Mean life 12 h, of shape 1/2: r = sqrt(2/12), about.
    assert found.belief.rate.shape / found.belief.rate.per_sqrt_h == pytest.approx(0.45, abs=0.2)
    assert min(found.belief.loss_correlations) > 0.95
    share = found.belief.availability.had / (
        found.belief.availability.had + found.belief.availability.missed
    )
    assert share == pytest.approx(
        np.mean([t.counts.mean() for t in made if t.nodes == 1]), abs=0.01
    )
    with pytest.raises(DataError, match="3 are needed"):
        fit_prior(made[:2])


@pytest.mark.system
def test_forecasts_are_judged_on_what_they_have_not_seen(
    made: tuple[Trace, ...], judged: list[Judged]
) -> None:
    assert len(judged) == 24
    assert brier(judged, "prior") < brier(judged, "band")
    gangs = [j for j in judged if j.nodes == 8]
    assert brier(gangs, "prior") < brier(gangs, "independent")
    low, high = brier_interval(judged, "prior", "band")
    assert low < brier(judged, "prior") - brier(judged, "band") < high < 0
    for way in WAYS:
        bins = reliability(judged, way)
        assert sum(b.count for b in bins) == sum(j.lasted.size for j in judged)
        assert [b.said for b in bins] == sorted(b.said for b in bins)
    lives, had, of = coverage(judged)
    assert 0 < lives <= of == 24 >= had
    # What a held-out trace does changes nothing of what is said of it beforehand.
    other = [replace(t, counts=np.ones_like(t.counts)) if t is made[0] else t for t in made]
    first = next(j for j in judged if j.trace == made[0].path)
    again = next(j for j in judge(other, [1]) if j.trace == made[0].path)
    assert first.forecast == again.forecast
    with pytest.raises(DataError, match="of one folder"):
        judge([t for t in made if t.path.parent == made[0].path.parent])


@needs_traces
@pytest.mark.slow
def test_the_public_prior_is_that_of_the_public_traces() -> None:
    known = public_prior()
    found = replace(fit_prior(read_traces([REAL])), source=known.source, as_of=known.as_of)
    assert json.loads(to_text(found)) == json.loads(to_text(known)), (
        f"scripts/calibrate_survival.py writes {PRIOR}"
    )


@needs_traces
@pytest.mark.slow
def test_it_beats_the_band_on_public_traces() -> None:
    judged = judge(read_traces([REAL]))
    scores = {way: brier(judged, way) for way in WAYS}
    assert scores["history"] < scores["prior"] < scores["independent"] < scores["band"]
    assert scores["prior"] < 0.22
    # That all can be had, against a plan that takes it for certain.
    had = [brier_had(judged, way) for way in ("history", "prior", "independent", "band")]
    assert had == sorted(had)
    assert had[1] < 0.25 < 0.4 < had[-1]
    assert brier_interval(judged, "prior", "band")[1] < -0.2
    assert all(abs(b.said - b.seen) < 0.08 for b in reliability(judged, "history"))
    lives, could, of = coverage(judged)
    assert 0.7 < lives / of < 0.9
    assert 0.7 < could / of < 0.9
    # The page has what the script says, line by line.
    said = list(judged_lines(judged, public_prior()))
    page = (ROOT / "docs" / "internals" / "explain" / "survive.md").read_text(encoding="utf-8")
    for way in WAYS:
        assert next(line for line in said if line.startswith(f"| {way} | 0.")) in page
    for one in reliability(judged, "history"):
        assert f"| {100 * one.said:.0f} % | {100 * one.seen:.0f} % | {one.count} |" in page
    assert f"hold {lives} of {of} (" in page
    assert f"{could} of {of} (" in page
    lasted, of_lasted, had_later, of_had = coverage_later(judged)
    assert f"hold {lasted} of {of_lasted} (" in page
    assert f"{had_later} of {of_had} (" in page
    assert 0.7 < lasted / of_lasted < 0.9
    assert 0.65 < had_later / of_had < 0.9


def stored(*points: tuple[float, str], zone: str = "use1-az1") -> StoredPrices:
    now = datetime(2026, 11, 20, tzinfo=timezone.utc)
    changes = [(int((now - timedelta(hours=h)).timestamp()), p) for h, p in points]
    hours = (40, *range(2, len(points)), 0)
    return StoredPrices(
        "a clone",
        "aws",
        "us-east-1",
        30,
        changes={("g4dn.xlarge", zone): changes},
        times=[int((now - timedelta(hours=h)).timestamp()) for h in hours],
        sold=Counter({("g4dn.xlarge", zone): len(points)}),
    )


def test_what_stored_prices_say() -> None:
    kind = load_catalog("aws-us-east-1", prices="snapshot").by_name["g4dn.xlarge"]
    history = stored((40, "0.20"), (22, "0.40"), (18, "0.20"))
    found = price_evidence(history, kind, 4 * HOUR, "", Decimal("0.3"))
    assert found is not None
    (zone,) = found.zones
    # Dear from hour 18 to 22: the ends of two windows of ten
    assert (zone.kept, zone.windows) == (8, 10)
    assert (zone.newest, zone.p95) == (Decimal("0.20"), Decimal("0.40"))
    default = price_evidence(history, kind, 4 * HOUR, "", None)
    assert default is not None
    assert default.limit_usd_per_hour == kind.on_demand_usd_per_hour
    assert default.zones[0].kept == 10
    pool = ("g4dn.xlarge", "use1-az1")
    gone = replace(history, gone={pool: [history.changes[pool][0][0] + 1]})
    missed = price_evidence(gone, kind, 4 * HOUR, "", None)
    assert missed is not None
    assert missed.zones[0].kept == 5  # not sold until hour 22, which is within the fifth window
    assert price_evidence(history, kind, HOUR, "use1-az9", None) is None
    with pytest.raises(RequestError):
        price_evidence(history, replace(kind, on_demand_usd_per_hour=None), HOUR, "", None)


def test_an_answer_puts_it_together() -> None:
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    kind = catalog.by_name["g4dn.xlarge"]
    plain = answer(catalog, kind, 4, 4 * HOUR)
    own = answer(catalog, kind, 4, 4 * HOUR, own=OwnPool((Lifetime(1800.0, True),) * 20))
    assert own.forecast.lasts.value < plain.forecast.lasts.value
    prices = price_evidence(stored((40, "0.20"), (20, "0.40")), kind, 4 * HOUR, "", Decimal("0.3"))
    assert prices is not None
    capped = answer(catalog, kind, 4, 4 * HOUR, prices=prices)
    assert capped.both.value == pytest.approx(plain.both.value * prices.zones[0].stays.value)
    assert (
        answer(catalog, kind, 4, 4 * HOUR, prices=replace(prices, asked=False)).both == plain.both
    )


def test_the_scripts_lines_and_picture(
    made: tuple[Trace, ...], judged: list[Judged], request: pytest.FixtureRequest
) -> None:
    lines = list(judged_lines(judged, fit_prior(made)))
    assert any(line.startswith("| band | 0.") for line in lines)
    assert any("80 % intervals of 'prior' hold" in line for line in lines)
    figure: Callable[..., object] = reliability_figure
    pytest.importorskip("matplotlib")
    assert figure(judged) is not None
