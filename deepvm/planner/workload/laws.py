"""Which curves belong to a model, known without loading what models need."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from deepvm.core.cluster.speedup import STEP_TIME, SpeedupCurve

if TYPE_CHECKING:
    from deepvm.core.training.curve import StepTimeSpeedup


def law_of(curve: SpeedupCurve) -> StepTimeSpeedup | None:
    """The curve, if it follows from the step-time law of a model."""
    if curve.kind == STEP_TIME:
        return cast("StepTimeSpeedup", curve)
    return None
