"""All shapes, and whether a campaign has shown what is expected of one."""

from __future__ import annotations

from support.checkpoint.loops import (  # noqa: F401  each registers its shapes
    average_shapes,
    control_shapes,
    data_shapes,
    environment_shapes,
    optimizer_shapes,
    plain_shapes,
    random_shapes,
    two_optimizer_shapes,
)
from support.checkpoint.loops.campaign import Outcome
from support.checkpoint.loops.shape import SHAPES, Hooks, Shape, Steps

NO_OPTIMIZER = "belong to no optimizer that is known here"
"""In a warning about parameters that the loop itself updates, which is so in some shapes."""


def verdict(shape: Shape, outcome: Outcome) -> str:
    """What is wrong with the outcome; empty if it is as expected."""
    if outcome.error:
        return "the campaign could not be finished"
    if not any(outcome.starts):
        return "no attempt resumed from a checkpoint"
    if outcome.mode == "steps":
        if any(NO_OPTIMIZER not in text for text in outcome.warnings):
            return "a warning where everything is saved at one moment"
        if shape.steps is Steps.OWN_STATE:
            return "a local variable is not known to differ any more" if outcome.equal else ""
        return "" if outcome.equal else "differs"
    if shape.hooks is Hooks.UNSUITED:
        return ""
    if shape.hooks is Hooks.SILENT and outcome.warnings:
        return "a healthy loop is warned of"
    if not (outcome.equal or outcome.warned):
        return "differs in silence"
    return ""


__all__ = ["SHAPES", "verdict"]
