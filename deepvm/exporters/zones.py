"""The zones in which the VMs of an exported plan may start."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.core.cluster.plan import Plan
from deepvm.core.units import format_usd


def choose_zones(plan: Plan, names: Sequence[str], *, limited: bool) -> tuple[Plan, list[str]]:
    """The plan in the named zones, else in all that are sound and within its budget; and notes.

    ``limited``: a price limit replaces the budget.
    """
    if names:
        return plan.in_zones(names), []
    notes = []
    sound = plan.sound()
    if plan.memory and sound != plan:
        reason = f"{plan.memory.instance_type} is not offered there"
        notes.append(f"left out: {_difference(plan, sound)}, because {reason}")
    if limited or sound.budget is None:
        return sound, notes
    cheap = sound.within_budget()
    if cheap != sound:
        budget = f"the {format_usd(sound.budget)} $/h that was asked for"
        reason = f"there it would cost more than {budget}; --zone or --max-price takes it anyway"
        notes.append(f"left out: {_difference(sound, cheap)}, because {reason}")
    return cheap, notes


def _difference(before: Plan, after: Plan) -> str:
    return ", ".join(str(z) for z in before.training.zones if z not in after.training.zones)
