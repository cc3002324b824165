"""Pictures of simulated trainings: what the overhead is made of, and how it changes over a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.catalog.files import write_bytes
from deepvm.reports.pictures import STYLES, frame, new_figure, own_settings, picture_format, render, short
from deepvm.reports.simulations import value
from deepvm.simulator.results import Spread
from deepvm.simulator.state import PARTS
from deepvm.simulator.sweeps import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of the other pictures, in the roles of the thesis's figures: red, green, blue, purple.
_COLORS = {"recompute": "#D55E00", "save": "#009E73", "allocation": "#0072B2", "preparation": "#A8336F"}


def draw_answers(answers: Sequence[Answer], path: Path) -> None:
    """Save the picture of a comparison or a sweep as PNG or SVG, by the ending of the file's name.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    figure = lines_figure(answers) if len(answers[0].values) == 1 else bars_figure(answers)
    write_bytes(path, render(figure, form))


def bars_figure(answers: Sequence[Answer]) -> Figure:
    """Stacked bars of the overhead over the steps alone (Spotify thesis, Figures 6.1 and 6.2), one for each answer."""
    names = [a.results.policy for a in answers]
    if answers[0].values:
        names = [", ".join(f"{k} {value(k, v)}" for k, v in a.values) + f"\n{a.results.policy}" for a in answers]
    job = answers[0].results.job
    with own_settings():
        figure = new_figure(max(6.0, 2.2 + 1.1 * len(answers)), 4.6)
        axes = figure.add_subplot()
        base = np.zeros(len(answers))
        for part in PARTS[1:]:
            share = np.array([100 * a.results.breakdown_s[part] / a.results.breakdown_s["compute"] for a in answers])
            axes.bar(range(len(answers)), share, 0.6, bottom=base, label=part, color=_COLORS[part])
            base += share
        for place, total in enumerate(base):
            axes.annotate(f"{total:.1f} %", (place, total), (0, 3), textcoords="offset points", ha="center")
        axes.set_xticks(range(len(answers)), names)
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.margins(y=0.12)
        axes.set_xlim(min(-0.5, len(answers) / 2 - 2.0), max(len(answers) - 0.5, len(answers) / 2 + 1.0))
        figure.suptitle(f"What preemptions and saves cost: {short(job.name, 30)}")
        axes.set_title(f"{job.steps} steps, means of {answers[0].results.runs} runs", fontsize="small")
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
            spreads = [Spread.of(100 * (a.results.total_s / a.results.breakdown_s["compute"] - 1)) for a in own]
            style = STYLES[index % len(STYLES)]
            look: dict[str, Any] = {
                "color": style.color,
                "linestyle": style.dashes,
                "marker": style.marker,
                "markersize": 5,
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
