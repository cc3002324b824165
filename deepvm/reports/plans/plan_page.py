"""An answer as one page for a browser (``recommend -o html``), by templates/plan_page.html.j2."""

from functools import partial

import numpy as np

from deepvm.catalog.signals.signal import age
from deepvm.core.units import format_short, format_time
from deepvm.planner.search.frontier import Frontier, Machines
from deepvm.records import dataclass
from deepvm.reports.pages import Scale, render, round_up
from deepvm.reports.plans import words
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import sentences
from deepvm.reports.plans.sources import doubts, source_lines

_WIDTH, _HEIGHT = 872, 348
_DOT_PX = 3
_SLIDER_STEPS = 500

Dot = list[float]  # A machine that is drawn: its type's number, VMs in each market, $/h and speed


@dataclass(frozen=True)
class FrontierChart:
    """What is drawn of a frontier: trusted machines, and in ``far`` those that are not trusted."""

    x: Scale
    y: Scale
    budget: float
    machines: list[Dot]
    far: list[Dot]

    @classmethod
    def of(cls, frontier: Frontier, budget: float) -> "FrontierChart":
        machines = frontier.machines
        last = float(machines.usd_per_hour.max(initial=0.0))
        x = Scale(0.0, min(float(frontier.most) or 1.0, max(last, budget) * 1.05) or 1.0)
        fastest = float(machines.effective[machines.trusted].max(initial=0.0))
        highs = [step.recommendation.kept_throughput.high for step in frontier.steps]
        y = Scale(0.0, max([*highs, fastest]) * 1.04 or 1.0)
        near, far = (_dots(machines, x, y, trusted=trusted) for trusted in (True, False))
        return cls(x, y, budget, near, far)

    @property
    def slider_step(self) -> float:
        """A round amount, $/h."""
        return round_up(self.x.high / _SLIDER_STEPS)


def _dots(machines: Machines, x: Scale, y: Scale, *, trusted: bool) -> list[Dot]:
    usd = machines.usd_per_hour
    speed = machines.effective
    inside = (usd <= x.high) & (speed > 0) & (speed <= y.high) & (machines.trusted == trusted)
    rows = np.flatnonzero(inside)
    across = _WIDTH * usd[rows] / x.high // _DOT_PX
    up = _HEIGHT * speed[rows] / y.high // _DOT_PX
    first = np.unique(np.stack([across, up]), axis=1, return_index=True)[1]
    figures = (machines.type_index, machines.spot, machines.on_demand, usd, speed)
    columns = [column[rows[np.sort(first)]].tolist() for column in figures]
    return [
        [*vms, float(f"{price:.5g}"), float(f"{rate:.5g}")]
        for *vms, price, rate in zip(*columns, strict=True)
    ]


def plan_page(view: PlanView, command: str) -> str:
    """The whole page, in ASCII; it is about the best region."""
    answer = view.answer
    return render(
        "plan_page.html.j2",
        view=view,
        answer=answer,
        workload=view.workload,
        frontier=answer.frontier,
        chart=FrontierChart.of(answer.frontier, float(answer.request.budget)),
        all_doubts=doubts(answer),
        w=words,
        age=age,
        say=partial(sentences, view),
        short=format_short,
        sources=source_lines(answer.catalog, view.now),
        time=format_time,
        types=sorted(
            answer.frontier.types, key=lambda t: (t.best is None, t.gap or 0.0, t.instance_type)
        ),
        command=command,
    )
