"""The costs of a variant as columns: those of Markdown, of the page and of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deepvm.lab.results import BLOCKING, PARTS, Estimate, Variant

Columns = Mapping[str, Callable[[Variant], str]]
"""Cells by header."""
_COUNTS = {"restarts": "restarts", "checkpoints": "saved", "skipped": "skipped"}
_TIMES = {
    "drain_s": "drain, s",
    "write_s": "write, s",
    "snapshot_s": "snapshot, s",
    "background_s": "background write, s",
}
_PARTS = {f"{part}_s": f"{part}, s" for part in PARTS} | {"repeated_s": "repeated steps, s"}


def format_number(value: float | None, form: str) -> str:
    """A dash if it is unknown."""
    return "-" if value is None else format(value, form)


def format_interval(estimate: Estimate | None, digits: int) -> str:
    """A mean with its interval, or with the number of its values if they are too few for one."""
    if estimate is None:
        return "-"
    mean = f"{estimate.mean:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return f"{mean} (n = {estimate.n})"
    return f"{mean} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def format_pairs(ratio: Estimate) -> str:
    """A ratio with the number of pairs of runs."""
    text = format_interval(ratio, 3)
    return text if ratio.low is None else f"{text}, {ratio.n} pairs"


def _over_blocking(variant: Variant) -> str:
    if variant.name == BLOCKING:
        return "1"
    return "-" if variant.over_blocking is None else format_pairs(variant.over_blocking)


def format_runs(variant: Variant) -> str:
    """How many runs count."""
    return f"{len(variant.passing)} of {len(variant.costs)}"


def _loss(variant: Variant) -> str:
    difference = variant.mean("loss_difference")
    if not variant.diverged:
        return format_number(difference, ".6g")
    known = "" if difference is None else f"{difference:.6g}, "
    return f"{known}{variant.diverged} diverged"


def _means(headers: Mapping[str, str], form: str) -> Columns:
    return {
        header: lambda variant, name=name: format_number(variant.mean(name), form)  # type: ignore[misc]
        for name, header in headers.items()
    }


COSTS: Columns = {
    "runs that count": format_runs,
    "goodput, steps/s": lambda variant: format_interval(variant.estimate("goodput"), 3),
    "over blocking, paired": _over_blocking,
    **_means(_COUNTS, ".4g"),
    "stall, s": lambda variant: format_interval(variant.estimate("stall_s"), 3),
    **_means(_TIMES, ".3f"),
    "loss difference": _loss,
}
"""What checkpoints cost a run."""
RECOVERY: Columns = {
    **_means(_PARTS, ".3f"),
    "whole recovery, s per restart": lambda variant: format_interval(
        variant.estimate("recovery_s"), 2
    ),
}
"""What failures cost a run."""
