"""Pictures of simulated trainings: what the overhead is made of, and how it changes over a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.io.atomic_write import write_bytes
from deepvm.reports.pictures import STYLES, frame, new_figure, own_settings, picture_format, render, short
from deepvm.reports.simulation.simulations import by_job, shares, value
from deepvm.simulator.results import Spread
from deepvm.simulator.sweeps import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of the other pictures, in the roles of the thesis's figures: red, green, blue, purple; and grey.
_COLORS = {
    "fewer VMs": "#666666",
    "recompute": "#D55E00",
    "save": "#009E73",
    "allocation": "#0072B2",
    "preparation": "#A8336F",
}


def draw_answers(answers: Sequence[Answer], path: Path) -> None:
    """Save the picture of a comparison or a sweep as PNG or SVG, by the ending of the file's name.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    lines = len(answers[0].values) == 1 and len(by_job(answers)) == 1
    figure = lines_figure(answers) if lines else bars_figure(answers)
    write_bytes(path, render(figure, form))


def bars_figure(answers: Sequence[Answer]) -> Figure:
    """Stacked bars of the overhead over the steps alone (Spotify thesis, Figures 6.1 and 6.2), one for each answer."""
    names = [a.results.policy for a in answers]
    if answers[0].values:
        names = ["\n".join([*(f"{k} {value(k, v)}" for k, v in a.values), a.results.policy]) for a in answers]
    jobs = by_job(answers)
    if len(jobs) > 1:
        names = [f"{name}\n{short(a.results.job.name, 12)}" for name, a in zip(names, answers, strict=True)]
    steps = "" if len(jobs) > 1 else f"{answers[0].results.job.steps} steps, "
    with own_settings():
        figure = new_figure(max(6.0, 2.2 + 1.1 * len(answers)), 4.6)
        axes = figure.add_subplot()
        base = np.zeros(len(answers))
        parts = [shares(a.results) for a in answers]
        for part in (p for p in _COLORS if any(p in own for own in parts)):
            share = np.array([100 * own.get(part, 0.0) for own in parts])
            axes.bar(range(len(answers)), share, 0.6, bottom=base, label=part, color=_COLORS[part])
            base += share
        for place, total in enumerate(base):
            axes.annotate(f"{total:.1f} %", (place, total), (0, 3), textcoords="offset points", ha="center")
        axes.set_xticks(range(len(answers)), names)
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.margins(y=0.12)
        axes.set_xlim(min(-0.5, len(answers) / 2 - 2.0), max(len(answers) - 0.5, len(answers) / 2 + 1.0))
        figure.suptitle(f"What preemptions and saves cost: {short(', '.join(jobs), 30)}")
        axes.set_title(f"{steps}means of {answers[0].results.runs} runs", fontsize="small")
        frame(axes)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def lines_figure(answers: Sequence[Answer]) -> Figure:
    """Overhead over one key of a sweep (Figure 6.3), a line for each policy, with the 5 to 95 % of the runs."""
    key = answers[0].values[0][0]
    policies = list(dict.fromkeys(a.results.policy for a in answers))
    labels = {
        "mttp": "mean time to preemption of a VM (h)",
        "missed": "share of notices that do not come",
        "vms": "VMs",
    }
    scale = 3600.0 if key == "mttp" else 1.0
    job = answers[0].results.job
    with own_settings():
        figure = new_figure(7.0, 4.4)
        axes = figure.add_subplot()
        for index, policy in enumerate(policies):
            own = [a for a in answers if a.results.policy == policy]
            x = [a.values[0][1] / scale for a in own]
            # One and all shares over it are the total over the steps alone.
            alone = [a.results.total_s.mean() / (1 + sum(shares(a.results).values())) for a in own]
            spreads = [Spread.of(100 * (a.results.total_s / s - 1)) for a, s in zip(own, alone, strict=True)]
            style = STYLES[index % len(STYLES)]
            look: dict[str, Any] = {
                "color": style.color,
                "linestyle": style.dashes,
                "linewidth": style.width,  # the first is the widest: one with the same values lies on top of it
                "marker": style.marker,
                "markersize": style.size,
            }
            axes.plot(x, [s.mean for s in spreads], label=policy, **look)
            axes.fill_between(x, [s.p5 for s in spreads], [s.p95 for s in spreads], color=style.color, alpha=0.15, lw=0)
        axes.set_xlabel(labels.get(key, f"{key} (s)"))
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.set_ylim(bottom=0)
        if key == "vms":
            axes.locator_params(axis="x", integer=True)
        figure.suptitle(f"What preemptions cost: {short(job.name)}")
        axes.set_title(f"{job.steps} steps; means and 5 to 95 % of {answers[0].results.runs} runs", fontsize="small")
        frame(axes)
        figure.legend(loc="outside lower center", ncols=len(policies), frameon=False)
    return figure
