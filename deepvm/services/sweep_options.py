"""The options of ``explain`` and ``sweep``; separate, so that ``recommend`` need not load them."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any

from deepvm.core.options import BUDGET, option
from deepvm.services.plan_options import PlanFlags, runs_option


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExplainFlags(PlanFlags):
    """The options of ``explain``."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepFlags(PlanFlags):
    """The options of ``sweep``, which takes several budgets and several policies."""

    pw: str = option(
        MISSING,
        "Budgets in $/h: 0:10:0.1, or a comma-separated list.",
        "LOW:HIGH:STEP",
        group=BUDGET,
    )
    policy: Any = option(
        [],
        "Only this policy of 'recommend'; repeatable; default: all.",
        "NAME",
        complete="complete_policy",
    )
    simulate: str | None = runs_option("Also simulate the best clusters: p5, p50, p95.")
