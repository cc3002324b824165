"""What the pictures of simulated training runs hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.reports.simulation.simulations import bars_figure, lines_figure, print_results
from deepvm.simulator.engine.engine import PARTS
from deepvm.simulator.jobfile import preset, swept
from deepvm.simulator.monte_carlo import simulate

JOB = replace(
    preset("gpt-117m"),
    steps=5000,
    name="a name that is much longer than what fits above a picture " * 3,
)


@pytest.mark.parametrize("count", [1, 5, 12])
def test_bars_are_the_parts_of_the_overhead(count: int) -> None:
    answers = [
        simulate(JOB, parse_policy(f"static:{10 * k}"), runs=20, seed=1)
        for k in range(1, count + 1)
    ]
    figure = bars_figure(answers)
    (axes,) = figure.axes
    assert len(axes.patches) == 4 * count
    for number, answer in enumerate(answers):
        parts = answer.breakdown_s
        found = [axes.patches[part * count + number].get_height() for part in range(4)]
        assert found == pytest.approx([100 * parts[p] / parts["compute"] for p in PARTS[1:]])
        assert axes.texts[number].get_text() == f"{sum(found):.1f} %"
    low, high = axes.get_xlim()
    assert 0.6 / (high - low) < 0.25  # one bar alone is a bar, too
    figure.canvas.draw()
    names = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in zip(names, names[1:], strict=False))
    width = figure.bbox.x1
    boxes = [
        figure.legends[0].get_window_extent(),
        *(text.get_window_extent() for text in figure.texts),
    ]
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)


def test_bars_of_a_sweep_over_two_keys_have_names_that_do_not_touch() -> None:
    answers = [
        replace(simulate(job, parse_policy("thesis"), runs=2, seed=1), sweep=dict(values))
        for job, values in swept(replace(JOB, steps=200), ["vms=1:4", "missed=0.05:0.25:0.1"])
    ]
    figure = bars_figure(answers)
    figure.canvas.draw()
    names = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(names) == 12 and all(a.x1 < b.x0 for a, b in zip(names, names[1:], strict=False))


def test_bars_of_several_jobs_say_whose_they_are() -> None:
    jobs = [replace(JOB, steps=500, name=name) for name in ("one", "two")]
    answers = [simulate(job, parse_policy("thesis"), runs=5, seed=1) for job in jobs]
    figure = bars_figure(answers)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [
        "thesis\none",
        "thesis\ntwo",
    ]
    assert "steps" not in figure.axes[0].get_title() and "one, two" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("sweep", "label"), [("missed=0:0.5:0.25", "share of notices"), ("vms=1:4", "VMs")]
)
def test_lines_are_means_over_the_sweep(sweep: str, label: str) -> None:
    answers = [
        replace(simulate(job, parse_policy(name), runs=20, seed=1), sweep=dict(values))
        for job, values in swept(JOB, [sweep])
        for name in ("thesis", "adaptive")
    ]
    (axes,) = lines_figure(answers).axes
    assert axes.get_xlabel().startswith(label) and [line.get_label() for line in axes.lines] == [
        "thesis",
        "adaptive",
    ]
    for line, own in zip(axes.lines, (answers[::2], answers[1::2]), strict=True):
        assert list(line.get_xdata()) == [next(iter(a.sweep.values())) for a in own]
        means = [100 * (a.total_s.mean() / a.breakdown_s["compute"] - 1) for a in own]
        assert list(line.get_ydata()) == pytest.approx(means)
    # Policies that come to the same are both seen: the first is the wider one, and lies below.
    assert axes.lines[0].get_linewidth() > 1.5 * axes.lines[1].get_linewidth()
    if label == "VMs":
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_an_elastic_job_beside_another_has_a_part_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    elastic = replace(JOB, name="elastic", vms=3, elastic=True)
    answers = [simulate(job, parse_policy("thesis"), runs=20, seed=1) for job in (JOB, elastic)]
    print_results(answers)
    header, plain, other = capsys.readouterr().out.splitlines()[3:6]
    assert header.endswith("fewer VMs") and plain.endswith("-") and other.endswith("%")
