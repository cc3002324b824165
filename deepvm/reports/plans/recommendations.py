"""Recommendations as a report for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from deepvm.core.cluster.known_lives import history_words
from deepvm.core.cluster.cluster import Recommendation, Rejection
from deepvm.core.cluster.instances import INTERRUPTION_BANDS, Catalog, Market
from deepvm.core.spelling import listed
from deepvm.core.units import counted, format_bytes, format_seconds, format_usd
from deepvm.planner.infeasible import ALLOWED_BY, BY_NAME, Infeasible
from deepvm.planner.recommend import Recommendations, first_if_lives_change
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective, PolicyName
from deepvm.reports.plans.bills import bill_lines
from deepvm.reports.plans.outlooks import expected_cells, in_words, risk_of, share_words, simulated
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

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.planner.explain import WhyNot

CLOSE = 0.98
"""Of a deadline, from where on the mean says little about a single run: what is expected is right within 2 %."""
_LITTLE = 0.0005
"""A share that would be printed as 0.0 %."""
_NAMED = 6
"""Types named for one reason, at most."""
_MANY_DIGITS = 1e8


Place = Callable[[Catalog], str]
"""Where a catalog's machines are, in words."""


def print_report(
    found: Comparison, why: WhyNot | None, placement: Placement | None, now: datetime, *, wide: bool
) -> None:
    """Table, reasons, alternatives and sources on stdout, for a person."""
    best = found.answers[0]
    placed = [(p.recommendation, p.answer.catalog) for p in found.ranked]
    print_lines([request_words(best), ""])
    _print_table(placed, wide=wide, place=found.place if len(found.answers) > 1 else None)
    lost = "" if best.request.work else "the time lost to preemptions"
    sources = dict.fromkeys(line for a in found.answers for line in source_lines(a.catalog, now))
    lines = [
        *_reasons(best),
        *other_regions(found),
        *risk_lines(
            best[0],
            best.catalog,
            known=bool(best.request.work and best.request.work.mttp_s is not None),
        ),
        *zone_lines(best[0], best.catalog),
        *placement_lines(placement),
        *quota_lines(best, now),
        *bill_lines(best[0], lost),
    ]
    print_lines(["", *lines, *refused_lines(best.catalog), *sources])
    if why is not None:
        print_lines([""])
        print_why(why, best.catalog)


def request_words(answer: Recommendations) -> str:
    """What was asked for, in a sentence without its full stop."""
    request = answer.request
    size, job = (
        format_bytes(request.checkpoint_bytes),
        request.work is not None and request.training is None,
    )
    needs = (
        f"memory nodes for {request.buffers} x {size}"
        if request.training is None
        else f"a checkpoint is {size}"
    )
    best_by = {
        Objective.THROUGHPUT: "fastest training" + (" without preemptions" if job else ""),
        Objective.FLOPP: "most operations per dollar (Z)",
        Objective.COST_PER_WORK: "cheapest work",
        Objective.MAKESPAN: "shortest expected time",
        Objective.TOTAL_COST: "lowest expected bill",
    }[request.objective]
    if request.policy in (PolicyName.COST_FIRST, PolicyName.PERFORMANCE_FIRST):
        best_by = f"policy {request.policy.value}"
    elif request.policy is not PolicyName.DEEPVM:
        best_by += f", policy {request.policy.value}"
    limits = f"at most {request.budget.normalize():f} $/h"
    if request.work is not None and request.work.deadline_s is not None:
        limits += f", expected within {format_seconds(request.work.deadline_s)}"
    if request.work is not None and request.work.total_budget is not None:
        limits += f", expected to cost at most {request.work.total_budget.normalize():f} $"
    return f"Clusters for {limits}: {best_by}; {needs}"


def _placed(r: Recommendation, first: Recommendation) -> str:
    """A cluster, with its zone where it differs from that of the first."""
    zone, other = r.cluster.zone, first.cluster.zone
    return (
        f"{r.cluster} in {zone.zone}"
        if zone and (other is None or zone.zone != other.zone)
        else str(r.cluster)
    )


def other_regions(found: Comparison) -> list[str]:
    """What the other regions have, one line for each."""
    best, lines = found.answers[0][0], []
    for answer in found.answers[1:]:
        region = found.place(answer.catalog)
        if not answer:
            reason = answer.infeasible.reason if answer.infeasible else "nothing is feasible"
            lines.append(f"Region {region}: {reason}.")
            continue
        r = answer[0]
        gap = (
            f", {1 - r.throughput / best.throughput:.1%} less throughput"
            if best.throughput > r.throughput
            else ""
        )
        lines.append(f"Region {region}: {r.cluster} at {format_usd(r.usd_per_hour)} $/h{gap}.")
    return lines


def _print_table(
    placed: Sequence[tuple[Recommendation, Catalog]],
    *,
    wide: bool = False,
    place: Place | None = None,
    units: str = "",
) -> None:
    """A row for each cluster.

    The narrowest terminal keeps what to rent and the job's time, or else the throughput.
    """
    job, spread = placed[0][0].outlook is not None, simulated(r.outlook for r, _ in placed)
    zones = not wide and len({r.cluster.zone.zone for r, _ in placed if r.cluster.zone}) > 1
    items = []
    for r, catalog in placed:
        zone = r.cluster.zone.zone if r.cluster.zone else "-"
        spot, on_demand = (
            " + ".join(
                f"{g.count} {g.instance.name}" for g in r.cluster.groups if g.market is market
            )
            or "-"
            for market in (Market.SPOT, Market.ON_DEMAND)
        )
        work = format_work(r.throughput) + (" (estimated)" if r.estimated else "")
        if r.prediction is not None:
            # Other catalogs need no speeds of models
            from deepvm.reports.text import in_short

            work = in_short(r.prediction.throughput)
        items.append(
            {
                Column("#", "right"): str(r.rank),
                **({} if place is None else {Column("region"): place(catalog)}),
                Column("architecture", drop=6): r.cluster.architecture,
                Column("spot VMs", wrap=False): spot,
                Column("on-demand VMs", drop=1, wrap=False): on_demand,
                **({Column("zone", drop=4): zone} if zones else {}),
                Column("$/h", "right", drop=3 if job else 0): format_usd(r.usd_per_hour),
                Column(units or "throughput", "right", drop=7 if job else 2): work,
                **(expected_cells(r.outlook, spread=spread) if job else {}),
                **(_wide_cells(r, zone) if wide else {}),
                Column("limited by", drop=5): ", ".join(b.constraint for b in r.binding) or "-",
            }
        )
    print_items(items, also="-o json")


def _wide_cells(r: Recommendation, zone: str) -> dict[Column, str]:
    band, risk = r.cluster.gpu.interruption_band, risk_of(r.cluster)
    return {
        Column("speed-up", "right", drop=11): f"{r.speedup:.2f}",
        Column("K(n)", "right", drop=12): f"{r.scaling_factor:.4f}",
        Column("FLOPP spot (op/$)", "right", drop=14): (
            "-" if r.flopp_spot is None else f"{r.flopp_spot:.4g}"
        ),
        Column("Z", "right", drop=16): f"{r.z:.1f}",
        Column("$/h per eFLOPS", "right", drop=13): (
            "-" if r.usd_per_work is None else _per_work(r.usd_per_work)
        ),
        Column("curve", drop=15): r.speedup_kind,
        Column("zone", drop=10): zone,
        # Dropped before the cluster's share: alone, the share of one VM would be taken for it.
        Column("VM interrupted a month", drop=9): "-" if band is None else INTERRUPTION_BANDS[band],
        Column("cluster interrupted a month", drop=8, wrap=False): (
            "-" if risk is None else share_words(risk)
        ),
    }


def _job_lines(answer: Recommendations) -> list[str]:
    """Assumptions behind the expected time and bill."""
    work, first = answer.request.work, answer.configurations[0]
    if work is None or answer.reference is None or first.outlook is None:
        return []
    from deepvm.core.preemption.interruption_bands import BAND_SHARES, hits

    job, gpu, outlook = work.job, first.cluster.gpu, first.outlook
    alone = (
        f"{job.steps} steps of {job.step_s.mean:.4g} s,"
        f" {format_seconds(job.steps * job.step_s.mean)}"
    )
    means = (
        s.mean
        for s in (job.save_s, job.durable_s, job.allocation_s, job.preparation_s, job.grace_s)
    )
    save, durable, allocation, preparation, grace = (
        f"{s:.3g} s" if s < 1000 else format_seconds(s) for s in means
    )
    lines = [
        (
            f"The job {job.name} is {alone} on one {answer.reference.name} that is never preempted"
            f"{'' if work.measured_on else ', the cheapest type here (--measured-on names another)'}."
        ),
        (
            f"Assumed: a save takes {save} and is safe {durable} later; a new VM takes {allocation}"
            f" to come and {preparation} to prepare; notices come {grace} ahead. A job file gives"
            " your own figures."
        ),
    ]
    if outlook.preemptions and not (
        job.save_s.high and job.allocation_s.high and job.preparation_s.high
    ):
        lines.append("Doubt: what takes 0 s there makes preemptions look cheaper than they are.")
    if answer.reference.eflops_basis:
        basis = answer.reference.eflops_basis
        lines.append(
            f"Doubt: it rests on the estimated eFLOPS of {answer.reference.name}: {basis}."
        )
    life, band = work.life_s(gpu), gpu.interruption_band
    known = gpu.known_life if work.mttp_s is None else None
    source = (
        "" if work.mttp_s is not None or known is not None or band is None else ", by AWS's band"
    )
    if math.isinf(life):
        lines.append(
            f"No VM is ever preempted, by '--interruption-rate 0%'; saves by {work.policy_name}."
        )
    else:
        count = first.cluster.spot_count
        many = (
            f"{outlook.preemptions:.3g}"
            if outlook.preemptions < 100
            else f"{outlook.preemptions:.0f}"
        )
        lines.append(
            f"A spot {gpu.name} lives {format_seconds(life)} on average{source}; {count} of them"
            f" {'is' if count == 1 else 'are'} preempted {many} times in all, with saves by"
            f" {work.policy_name}."
        )
    if known is not None:
        lines.append(f"By your history, {history_words(gpu.name, known)}; the low end counts.")
    if source and band is not None:
        lines.append(
            f"Doubt: {INTERRUPTION_BANDS[band]} a month is of all zones and hours together, counted"
            f" as {100 * BAND_SHARES[band]:g} % gone after a"
            f" month{hits(BAND_SHARES[band], first.cluster.spot_count)}; at a busy hour a"
            f" {gpu.name} may live for hours. {_traces_say(answer)}"
        )
    if outlook.spread is not None:
        s = outlook.spread
        lines.append(
            f"Of {s.runs} simulated runs, half end within {format_seconds(s.p50_s)} and"
            f" {s.p50_usd:.2f} $, 95 % within {format_seconds(s.p95_s)} and {s.p95_usd:.2f} $"
            + ("." if s.late is None else f"; {100 * s.late:.1f} % miss the deadline.")
        )
    elif work.deadline_s is not None and outlook.total_s > CLOSE * work.deadline_s:
        lines.append(
            "Doubt: this is an average: about half of all runs will be late ('--simulate 500'"
            " counts them)."
        )
    return lines


def _traces_say(answer: Recommendations) -> str:
    """What :mod:`deepvm.core.preemption.gang_survival` says of the same VMs and time, and what comes first by it."""
    from deepvm.core.preemption.gang_survival import MOST_VMS
    from deepvm.simulator.survival.evidence import by_public_traces

    first = answer[0]
    outlook, count = first.outlook, first.cluster.spot_count
    if outlook is None or not math.isfinite(outlook.total_s) or not 0 < count <= MOST_VMS:
        return "'--mttp' sets your own figure."

    lasts, life = by_public_traces(first.cluster.gpu, count, outlook.total_s)
    who = "it lives" if count == 1 else f"all {count} live"
    each = format_seconds(life.value).replace(" ", "")
    low, value, high = (f"{100 * p:.0f}" for p in (lasts.low, lasts.value, lasts.high))
    return (
        f"By public traces, mostly of scarcer GPUs, {who} through {format_seconds(outlook.total_s)}"
        f" with {value} % ({low} to {high} %), as with '--mttp {each}'."
        f" {_first_by(answer, life.value)}; 'deepvm survive' says more."
    )


def _first_by(answer: Recommendations, life_s: float) -> str:
    """What comes first if the bands of all types promise too much by as much as that of the first does, in words."""
    work, best = answer.request.work, answer[0]
    assert work is not None
    factor = life_s / work.life_s(best.cluster.gpu)
    other = first_if_lives_change(answer, factor)
    head = f"If spot VMs of all types live {_change(factor, 'longer', 'shorter', 'as long')},"
    if other is None:
        return f"{head} nothing is feasible"
    assert other.outlook is not None
    which = "the same cluster" if other.cluster == best.cluster else str(other.cluster)
    if not math.isfinite(other.outlook.total_s):
        return f"{head} {which} comes first, and never ends"
    return (
        f"{head} {which} comes first ({format_seconds(other.outlook.total_s)},"
        f" {other.outlook.cost_usd:.2f} $)"
    )


def _compared(other: Recommendation, first: Recommendation) -> str:
    """Expected time and bill of a cluster, compared with those of the first."""
    new, old = other.outlook, first.outlook
    if new is None or old is None:
        return ""
    text = f", {in_words(new)}"
    if not (
        math.isfinite(new.total_s) and math.isfinite(old.total_s) and old.total_s and old.cost_usd
    ):
        return text
    time = _change(new.total_s / old.total_s, "longer", "shorter", "as long")
    return (
        f"{text} ({time}, {_change(new.cost_usd / old.cost_usd, 'dearer', 'cheaper', 'as dear')})"
    )


def _change(ratio: float, more: str, less: str, same: str) -> str:
    share = abs(ratio - 1)
    if share < _LITTLE:
        return same
    if ratio >= 2:
        return f"{ratio:.1f} times as {'long' if more == 'longer' else 'dear'}"
    return f"{share:.1%} {more if ratio > 1 else less}"


def _reasons(answer: Recommendations) -> list[str]:
    first = answer.configurations[0]
    count, gpu = first.cluster.gpu_count, first.cluster.gpu
    lines = [
        f"Throughput is eFLOPS x S(n): {gpu.eflops:g} x {first.speedup:.4g}, where the"
        f" {first.speedup_kind} curve of {gpu.name} gives S({count}) = {first.speedup:.4g}."
    ]
    lines += _job_lines(answer)
    lines += [f"Limited by {b.constraint}: {b.reason}." for b in first.binding]
    if not first.binding:
        lines.append("Limited by nothing: no larger cluster of these types is better.")
    change = answer.next_change
    if change is None:
        lines.append(
            "More money: no budget buys a better cluster of these types under these limits."
        )
    else:
        gain = ""
        if change.gain is not None and answer.request.policy is PolicyName.DEEPVM:
            gain = (
                f", {change.gain:.1%} better"
                if change.gain >= _LITTLE
                else ", less than 0.1% better"
            )
        elif change.gain is not None:
            gain = f", throughput {change.gain:+.1%}"
        lines.append(
            f"More money: {format_usd(change.budget)} $/h buys"
            f" {_placed(change.recommendation, first)}{gain}."
        )
    if answer.nearly is not None:
        less, worth = answer.nearly.usd_per_hour, answer.nearly.throughput / first.throughput
        saved = 1 - float(less) / float(first.usd_per_hour)
        lines.append(
            f"Less money: {format_usd(less)} $/h, {saved:.0%} less, buys"
            f" {_placed(answer.nearly, first)} with {worth:.1%} of the"
            f" throughput{_compared(answer.nearly, first)}."
        )
    if answer.on_demand is not None:
        r, new, old = answer.on_demand, answer.on_demand.outlook, first.outlook
        better = new and old and new.total_s <= old.total_s and new.cost_usd <= old.cost_usd
        head = "Better without spot VMs" if better else "On demand alone"
        lines.append(
            f"{head}: {r.cluster} at {format_usd(r.usd_per_hour)} $/h{_compared(r, first)}."
        )
    elif answer.request.work is not None:
        lines.append("On demand alone: no cluster keeps within these limits.")
    for alternative in answer.alternatives:
        r = alternative.recommendation
        work = "" if r.usd_per_work is None else f", {_per_work(r.usd_per_work)} $/h per eFLOPS"
        lines.append(
            f"By {alternative.objective.value}: {_placed(r, first)} at {format_usd(r.usd_per_hour)}"
            f" $/h, throughput {format_work(r.throughput)}{work}{_compared(r, first)}."
        )
    lines += left_out(answer)
    lines += [f"Doubt: {doubt}." for doubt in doubts(answer)]
    if answer.doubt:
        lines.append(f"Not proven ({answer.status.value}): {answer.doubt}.")
    return lines


def left_out(answer: Recommendations) -> list[str]:
    """The types that were not considered, one line for each reason; many of one GPU as that GPU."""
    groups: dict[str, list[Rejection]] = {}
    for rejection in answer.rejections:
        groups.setdefault(rejection.reason, []).append(rejection)
    lines = []
    for reason, rejections in groups.items():
        names = [r.instance_type for r in rejections]
        if reason == "unprofiled" and len(names) > _NAMED:
            names = _by_gpu(names, answer.catalog)
        if reason == "reserved":  # the user's own pools: each with its end
            lines += [
                f"Not considered ({reason}): {r.instance_type}: {r.detail}." for r in rejections
            ]
            continue
        lines.append(f"Not considered ({reason}): {listed(names, _NAMED)}.")
        if reason == "unprofiled":
            estimates = any(answer.catalog[r.instance_type].eflops_basis for r in rejections)
            instead = ", or '--estimates' allows estimates" if estimates else ""
            lines.append(
                "To consider them: 'deepvm profile eflops --save' on such a VM measures"
                f" it{instead}."
            )
        elif reason == "no-wheels":
            models = sorted({gpu.name for n in names if (gpu := answer.catalog[n].gpu)})
            lines.append(
                f"To consider them: '--gpu {models[0]}', with a PyTorch that you have built for it."
            )
        elif reason in ALLOWED_BY:
            ways = ", or ".join(f"'{way}'" for way in dict.fromkeys((ALLOWED_BY[reason], BY_NAME)))
            lines.append(f"To consider them: {ways}.")
    return lines


def _by_gpu(names: Sequence[str], catalog: Catalog) -> list[str]:
    """``L4 (10 types)``, the GPUs with most types first."""
    gpus = (catalog[name].gpu for name in names)
    counts = Counter("?" if g is None else f"{g.name}{' x n' if g.count > 1 else ''}" for g in gpus)
    return [
        f"{m} ({counted(n, 'type')})"
        for m, n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))
    ]


def format_work(throughput: float) -> str:
    """A throughput in the catalog's unit; FLOP/s, which have a dozen digits, in four of them."""
    return f"{throughput:.1f}" if throughput < _MANY_DIGITS else f"{throughput:.4g}"


def _per_work(usd: float) -> str:
    return f"{usd:.6f}" if usd > 1 / _MANY_DIGITS else f"{usd:.4g}"


def sentence(why: Infeasible) -> str:
    """Why there is no configuration and what to change, as two sentences."""
    return f"{why.reason[:1].upper()}{why.reason[1:]}. To change that: {why.advice}."


def print_why(why: WhyNot, catalog: Catalog, now: datetime | None = None) -> None:
    """The answer to "why not this type?" on stdout.

    With ``now`` also where the prices come from.
    """
    print_lines([f"Why not {why.instance_type}? {why.verdict}."])
    if why.best is not None:
        print_lines([""])
        _print_table([(why.best, catalog)], units=why.units)
        limits = [f"Limited by {b.constraint}: {b.reason}." for b in why.best.binding]
        doubts_of = [f"Doubt: {warning}." for warning in why.best.warnings]
        print_lines(
            [
                "",
                *limits,
                *doubts_of,
                *risk_lines(why.best, catalog),
                *zone_lines(why.best, catalog),
            ]
        )
    if now is not None:
        print_lines([*([] if why.best is not None else [""]), *source_lines(catalog, now)])
