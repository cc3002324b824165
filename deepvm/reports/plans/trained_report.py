"""``--why`` where a model is trained: ranked clusters, their sources, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.cluster.known_lives import history_words
from deepvm.core.cluster.cluster import Prediction, Recommendation
from deepvm.core.training.speed import Training
from deepvm.core.training.workload import Workload
from deepvm.core.units import counted, format_seconds, format_usd
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective
from deepvm.planner.workload.recovery import lives_of
from deepvm.reports.plans.answer import (
    bill_line,
    bill_words,
    cluster_words,
    deadline_line,
    gain_words,
    gpus_of,
    lost_words,
    measurement_lines,
    simulated_line,
    steps_of,
)
from deepvm.reports.plans.bills import bill_lines
from deepvm.reports.plans.recommendations import left_out, other_regions, print_why, request_words
from deepvm.reports.plans.sources import (
    doubts,
    placement_lines,
    quota_lines,
    refused_lines,
    risk_lines,
    source_lines,
    zone_lines,
)
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.reports.text import in_short, short

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.planner.explain import WhyNot

_WORTH_SAYING = 0.05
"""A gain in speed that is worth another option."""
_BY = {  # not by FLOPP, which leaves out what the memory nodes cost
    Objective.THROUGHPUT: "Fastest",
    Objective.COST_PER_WORK: "Cheapest training",
    Objective.MAKESPAN: "Soonest done",
    Objective.TOTAL_COST: "Lowest bill",
}


def print_trained_report(
    found: Comparison,
    why: WhyNot | None,
    placement: Placement | None,
    now: datetime,
    *,
    wide: bool = False,
) -> None:
    """Table, reasons, alternatives and sources on stdout."""
    best = found.answers[0]
    assert best.request.training is not None
    workload = best.request.training.workload
    placed = [(p.recommendation, p.answer.catalog) for p in found.ranked]
    print_lines([f"{request_words(best)}.", ""])
    several = len(found.answers) > 1
    items = [_cells(r, found.place(c) if several else "", workload, wide=wide) for r, c in placed]
    print_items(items, also="-o json")
    mttp = best.request.life_s is not None
    lines = [
        *_speed(best[0], best.request.training),
        *_without_checkpointing(best[0], best.request.training),
        *_steps(best[0], workload),
        *_preemptions(best),
        *(f"{line[:1].upper()}{line[1:]}" for line in simulated_line(best[0])),
        *(
            f"{line.removeprefix('! ').capitalize()}."
            for line in (*deadline_line(best), *bill_line(best))
        ),
        *_limits(best),
        *_others(best, workload),
        *left_out(best),
        *(f"Doubt: {doubt}." for doubt in doubts(best)),
        *([f"Not proven ({best.status.value}): {best.doubt}."] if best.doubt else []),
        *other_regions(found),
        *risk_lines(best[0], best.catalog, known=mttp),
        *zone_lines(best[0], best.catalog),
        *placement_lines(placement),
        *quota_lines(best, now),
        *bill_lines(best[0]),
        *refused_lines(best.catalog),
        *dict.fromkeys(line for a in found.answers for line in source_lines(a.catalog, now)),
        *measurement_lines(best),
    ]
    print_lines(["", *lines])
    if why is not None:
        print_lines([""])
        print_why(why, best.catalog)


def _cells(r: Recommendation, place: str, workload: Workload, *, wide: bool) -> dict[Column, str]:
    predicted = r.prediction
    assert predicted is not None
    speed, odds = predicted.throughput, predicted.faster_than_first
    cells = {
        Column("#", "right"): str(r.rank),
        **({Column("region"): place} if place else {}),
        Column("cluster", wrap=False): cluster_words(r.cluster),
        Column("$/h", "right"): f"{r.usd_per_hour:.2f}",
        Column(workload.units, "right"): in_short(speed),
        Column("odds vs 1", "right", drop=4): "-" if odds is None else f"{odds:.0%}",
        Column(_per_million(workload), "right", drop=5): _usd_per_million(r),
    }
    if r.outlook is not None:
        ends = math.isfinite(r.outlook.total_s)
        cells[Column("time", "right", drop=7)] = format_seconds(r.outlook.total_s, digits=3)
        cells[Column("bill", "right", drop=8)] = bill_words(r.outlook) if ends else "-"
    cells[Column("lost to preemption", "right", drop=2)] = lost_words(r)
    if wide:
        cells |= {
            Column("step", "right", drop=12): format_seconds(predicted.step_s.value, digits=3),
            Column("MFU", "right", drop=11): f"{predicted.mfu:.0%}",
            Column("batch a GPU", "right", drop=13): f"{predicted.batch_per_gpu:g}",
            Column("precision", drop=14): predicted.precision,
            Column("speed-up", "right", drop=15): f"{r.speedup:.2f}",
            Column("K(n)", "right", drop=16): f"{r.scaling_factor:.4f}",
        }
    cells[Column("limited by", drop=6)] = ", ".join(b.constraint for b in r.binding) or "-"
    cells[Column("source", drop=3)] = predicted.source
    return cells


def _per_million(workload: Workload) -> str:
    return f"$ per 1M {workload.model.unit}"


def _usd_per_million(r: Recommendation) -> str:
    return "-" if r.usd_per_work is None else f"{r.usd_per_work / 3600 * 1e6:.3g}"


def _speed(first: Recommendation, training: Training) -> Iterator[str]:
    workload = training.workload
    predicted, gpu, count = first.prediction, first.cluster.gpu, first.cluster.gpu_count
    assert predicted is not None and gpu.gpu is not None
    step, gpus = predicted.step_s, count * gpu.gpu.count
    who = f"{gpus} x {gpu.gpu.name} {'does' if gpus == 1 else 'do'}"
    yield (
        f"Speed: {who} a step of {_batch(predicted, gpus, workload)} in"
        f" {format_seconds(step.value, digits=3)} ({step.low:.3g} to {step.high:.3g} s in four runs"
        f" of five), at {predicted.mfu:.0%} of their peak in {predicted.precision}"
        f" (MFU){'; activations are recomputed' if predicted.checkpointing else ''}."
    )
    one = training.speeds.speed(gpu, workload, np.ones(1))
    if count > 1 and not isinstance(one, str):
        if one.fits[0]:
            times = predicted.throughput.value / float(one.throughput[0])
            yield (
                f"Scaling: {count} VMs are {times:.3g} times as fast as one, {times / count:.0%} of"
                f" {count} times."
            )
        else:
            yield f"Scaling: one such VM does not hold the model, {count} do."


def _steps(first: Recommendation, workload: Workload) -> Iterator[str]:
    steps = steps_of(first, workload)
    if steps is not None:
        yield f"Steps: {steps:,} of {workload.batch_in_all(gpus_of(first)):,.0f} samples."


def _without_checkpointing(first: Recommendation, training: Training) -> Iterator[str]:
    """That activations need not be computed again, where that was not asked for."""
    predicted, workload = first.prediction, training.workload
    if predicted is None or not predicted.checkpointing or workload.checkpointing is not None:
        return
    plain, vms = replace(workload, checkpointing=False), np.array([float(first.cluster.gpu_count)])
    found = training.speeds.speed(first.cluster.gpu, plain, vms)
    if isinstance(found, str) or not found.fits[0]:
        return
    gain = float(found.throughput[0]) / predicted.throughput.value - 1
    if gain >= _WORTH_SAYING:
        batch = workload.batch_on(gpus_of(first))
        passes = math.ceil(batch / float(found.micro_batch[0]) - 1e-9)
        how = (
            f", in {passes} passes of up to {counted(math.ceil(batch / passes), 'sample')}"
            if passes > 1
            else ""
        )
        yield (
            f"Tip: here activations fit into GPU memory{how}; not to compute them again is about"
            f" {gain:.0%} faster: --no-activation-checkpointing."
        )


def _batch(predicted: Prediction, gpus: int, workload: Workload) -> str:
    samples, most = workload.batch_in_all(gpus), predicted.batch_per_gpu
    text, each = (
        f"{'up to ' if most * gpus > samples else ''}{most:g} samples a GPU",
        workload.model.units_per_sample,
    )
    if predicted.micro_batch < most:
        text += f", {predicted.micro_batch:g} at once"
    in_all = f"{samples:,.0f} in all" if gpus > 1 else ""
    tokens = f"{samples * each:,.0f} tokens" if each > 1 else ""
    return f"{text} ({', '.join(filter(None, (in_all, tokens)))})" if in_all or tokens else text


def _preemptions(answer: Recommendations) -> Iterator[str]:
    first, request = answer[0], answer.request
    count, gpu, predicted = first.cluster.spot_count, first.cluster.gpu, first.prediction
    if not count or predicted is None:
        return
    lives = lives_of(gpu, request)
    if request.life_s is not None:
        lived = f"a spot VM lives {format_seconds(lives.usual_s, digits=3)} on average, as you say"
    elif gpu.known_life is not None:
        lived = history_words(gpu.name, gpu.known_life)
    else:
        band = (
            "AWS's band"
            if gpu.interruption_band is not None
            else "AWS's worst band, as its own is unknown"
        )
        lived = (
            f"a spot {gpu.name} lives {format_seconds(lives.bad_s, digits=3)} at a bad time (public"
            f" traces) and {format_seconds(lives.good_s, digits=3)} at a good one ({band}); ranked"
            f" by their geometric mean, {format_seconds(lives.usual_s, digits=3)}"
        )
    any_of = "" if count == 1 else f", and training stops when any of {count} goes"
    yield (
        f"Preemptions: {lived}{any_of}. Saves, restarts and lost work take"
        f" {lost_words(first)} of the time; '--mttp' sets your own figure."
    )


def _limits(answer: Recommendations) -> Iterator[str]:
    first, change = answer[0], answer.next_change
    yield from (f"Limited by {b.constraint}: {b.reason}." for b in first.binding)
    if not first.binding:
        yield "No larger cluster of these types is better."
    if change is None:
        better = "enough to be worth it" if answer.request.weighs_doubt else "a better cluster"
        up_to = " up to twice as high" if answer.request.weighs_doubt else ""
        yield f"More money: no budget{up_to} buys {better} under these limits."
        return
    gain = (
        "buys" if change.gain is None else f"{gain_words(change.gain, answer.request.objective)}:"
    )
    yield (
        f"More money: {format_usd(change.budget)} $/h {gain}"
        f" {cluster_words(change.recommendation.cluster)}."
    )


def _others(answer: Recommendations, workload: Workload) -> Iterator[str]:
    """What else could be rented: for less money, without spot VMs, by other measures."""
    first = answer[0]
    shown = [("Less money", answer.nearly), ("Without spot VMs", answer.on_demand)]
    shown += [
        (_BY[a.objective], a.recommendation) for a in answer.alternatives if a.objective in _BY
    ]
    for label, r in shown:
        if r is None:
            continue
        share = r.throughput / first.throughput if first.throughput else math.nan
        million = f"{_usd_per_million(r)} {_per_million(workload)}"
        yield (
            f"{label}: {cluster_words(r.cluster)} at {r.usd_per_hour:.2f} $/h,"
            f" {short(r.throughput)} {workload.units} ({share:.0%} of the first), {million}."
        )
