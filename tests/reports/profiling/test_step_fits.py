"""The report of a step-time law and its picture: units, what dominates, lines, points, where
guessing begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepvm.core.training.roofline import REACH
from deepvm.core.training.steptime import Steps, StepTimeLaw
from deepvm.profiling.fit.points import StepQuestion
from deepvm.profiling.fit.step_fit import StepFit, fit_step_time
from deepvm.reports.pictures import render, short
from deepvm.reports.profiling.measurements import step_figure
from deepvm.reports.text import format_step, print_text

LAW = StepTimeLaw(0.05, 0.004, 0.04, 0.02, 0.3, 0.006, 3.0, 0.02)
SIZES = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (3, 12), (4, 4), (4, 16)]


def fitted(
    *asked: StepQuestion, batches: tuple[float, ...] = (8.0, 32.0, 128.0), law: StepTimeLaw = LAW
) -> StepFit:
    rows = np.array([(n, gpus, batch) for n, gpus in SIZES for batch in batches], dtype=np.float64)
    nodes, gpus, batch = rows.T
    return fit_step_time(Steps(nodes, gpus, batch, law.step_s(nodes, gpus, batch)), asked)


def print_step_fit(fit: StepFit, name: str) -> None:
    print_text("step_fit", fit=fit, name=short(name), reach=REACH)


def test_times_have_three_digits() -> None:
    for value, text in [
        (1234.0, "1234 s"),
        (1.0, "1 s"),
        (0.9999, "1 s"),
        (0.5, "500 ms"),
        (9.996e-4, "1 ms"),
        (5e-5, "50 us"),
        (2e-9, "0.002 us"),
    ]:
        assert format_step(value) == text


def test_the_report_says_what_dominates(capsys: pytest.CaptureFixture[str]) -> None:
    print_step_fit(fitted(StepQuestion(8, 32, 32.0)), "a.csv")
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "batch 8: " in words and "mostly synchronization" in words
    assert "batch 128: " in words and "mostly gradients" in words
    assert (
        "Warning: nodes=8,gpus=32,batch=32: more than 1.5 x what was measured, 4 VMs and 16 GPUs"
        in words
    )


def test_names_of_files_do_not_break_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    print_step_fit(fitted(), "a\nb" + "c" * 200 + ".csv")
    out = capsys.readouterr().out
    assert len(out.splitlines()[0]) <= 120 and "a b" in out.splitlines()[0]


def lines(figure: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_lines_points_and_band() -> None:
    fit = fitted()
    figure = step_figure(fit, name="mine.csv")
    (axes,) = figure.axes
    assert {"batch 8", "batch 32", "batch 128"} <= set(lines(figure))
    drawn = [line.get_xydata() for line in axes.get_lines()]
    marks = [line.get_xydata() for line in axes.get_lines() if line.get_linestyle() == "None"]
    points = {tuple(point) for line in marks for point in line.tolist()}
    assert points == set(zip(fit.steps.gpus.tolist(), fit.steps.step_s.tolist(), strict=True))
    curves = [line for line in drawn if len(line) == 16]  # 1 ... 16 GPUs
    assert len(curves) >= 3
    assert curves[0][0].tolist() == pytest.approx([1.0, 0.082], rel=0.02)
    (band,) = axes.collections
    assert band.get_label() == "80 % of batch 8"
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    assert "mine.csv" in figure.get_suptitle()
    assert "seconds" in axes.get_ylabel() and "GPUs" in axes.get_xlabel()


def test_steps_that_differ_much_are_on_a_logarithmic_scale() -> None:
    figure = step_figure(fitted(batches=(1.0, 1e5)), name="a")
    assert figure.axes[0].get_yscale() == "log"
    figure.canvas.draw()
    labels = [text.get_text().strip() for text in figure.axes[0].get_yticklabels()]
    assert all("$" not in label for label in labels) and any(
        label.endswith(" s") for label in labels
    )


def test_at_most_four_batches_are_drawn() -> None:
    named = [
        label
        for label in lines(step_figure(fitted(batches=tuple(range(1, 12))), name="a"))
        if "batch" in label
    ]
    assert len(named) == 4 and "batch 1" in named and "batch 11" in named


def test_where_guessing_begins_is_marked_only_when_it_is_shown() -> None:
    far = step_figure(fitted(StepQuestion(8, 32, 8.0)), name="a")
    assert [text.get_text().strip() for text in far.axes[0].texts] == ["beyond: a guess"]
    assert not step_figure(fitted(StepQuestion(5, 20, 8.0)), name="a").axes[0].texts


@pytest.mark.parametrize("form", [pytest.param("png", marks=pytest.mark.slow), "svg"])
def test_same_fit_same_bytes(form: Any) -> None:
    first, second = (render(step_figure(fitted(), name="a"), form) for _ in range(2))
    assert first == second
