"""What to measure next, as the command that measures it: recommend picks its result up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepvm.core.training.speed import Training
    from deepvm.planner.measurement import NextMeasurement


def measure_command(found: NextMeasurement, training: Training) -> str:
    """The command for a run.

    Where ``profile scaling`` does not train the workload, that for steps timed elsewhere.
    """
    # Imported late: most answers advise no measurement
    from deepvm.catalog.published.workloads import presets
    from deepvm.planner.measurement import REPEATS
    from deepvm.profiling.workload.spec import DTYPES, PRESETS
    from deepvm.reports.pages import sentences

    command = sentences("measure.j2").command
    text: str = command(found, training, presets(), PRESETS, DTYPES, REPEATS)
    return " ".join(text.split())
