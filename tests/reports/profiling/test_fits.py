"""The picture of a fit: points, the four laws, the band of the best, and where guessing begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.errors import RequestError
from deepvm.profiling.fit.speedup_fit import Fit, fit_curve
from deepvm.reports.pictures import render, save_picture
from deepvm.reports.profiling.measurements import fit_figure

SIZES = np.array([1.0, 2, 4, 8, 12, 16, 20])
NOISE = np.array([1, 1.03, 0.98, 1.02, 0.99, 0.97, 1.02])


@pytest.fixture(scope="module")
def fit() -> Fit:
    points = list(
        zip(SIZES.tolist(), (RingSpeedup(2.0, 0.09).speedup(SIZES) * NOISE).tolist(), strict=True)
    )
    return fit_curve(points, up_to=40, resamples=40)


def lines(figure: Any) -> dict[str, Any]:
    return {line.get_label().split(" (")[0]: line for line in figure.axes[0].get_lines()}


def test_points_laws_and_band(fit: Fit) -> None:
    figure = fit_figure(fit, name="mine.csv")
    found = lines(figure)
    assert found["measured"].get_xydata().tolist() == [list(p) for p in fit.points]
    for law in fit.laws:
        drawn = found[law.law.name].get_xydata()
        assert drawn[:, 0].tolist() == list(range(1, 41))
        assert drawn[:, 1] == pytest.approx(law.speedup(drawn[:, 0]))
    low, high = fit.band.at(np.array([40.0]))
    (band,) = figure.axes[0].collections
    box = band.get_paths()[0].get_extents()
    assert band.get_label() == "95 % band of alpha-beta"
    assert (box.x0, box.x1) == (1, 40)
    corners = band.get_paths()[0].vertices
    at_40 = corners[corners[:, 0] == 40][:, 1]
    assert (at_40.min(), at_40.max()) == pytest.approx((float(low[0]), float(high[0])))
    assert "mine.csv" in figure.get_suptitle()
    assert figure.axes[0].get_ylabel() == "speed-up over one VM, S(n)"


def test_where_guessing_begins_is_marked_only_when_it_is_shown(fit: Fit) -> None:
    (text,) = fit_figure(fit, name="a").axes[0].texts
    assert text.get_text().strip() == "beyond: a guess"
    near = fit_curve(fit.points, up_to=30, resamples=4)
    assert not fit_figure(near, name="a").axes[0].texts


def test_lines_are_told_apart_without_colour(fit: Fit) -> None:
    found = lines(fit_figure(fit, name="a"))
    dashes = {str(found[f.law.name]._unscaled_dash_pattern) for f in fit.laws}
    assert len(dashes) == 4


@pytest.mark.parametrize("form", [pytest.param("png", marks=pytest.mark.slow), "svg"])
def test_same_fit_same_bytes(fit: Fit, form: Any) -> None:
    first, second = (render(fit_figure(fit, name="a"), form) for _ in range(2))
    assert first == second


def test_another_ending_is_refused_and_nothing_written(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="ends in .png or .svg"):
        save_picture(fit_figure(fit, name="a"), tmp_path / "fit.pdf")
    assert not list(tmp_path.iterdir())
