"""Whether spot VMs can be had and live: table, document.

How forecasts came true: lines, a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from deepvm.core.preemption.interruption_bands import BANDS
from deepvm.core.units import counted, format_seconds, format_usd
from deepvm.reports.pictures import STYLES, drawing
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.core.interval import Interval
    from deepvm.simulator.survival.calibration import Judged
    from deepvm.simulator.survival.evidence import Answer, PriceEvidence
    from deepvm.simulator.survival.prior_fit import Prior

VERSION = "deepvm.survive/1"
_NEVER = 1e-4
"""Below it digits would claim to know more than anybody does."""


def document(found: Answer) -> dict[str, Any]:
    """JSON of ``deepvm survive``."""
    forecast, prior, own, prices = found.forecast, found.prior, found.own, found.prices
    return {
        "schema_version": VERSION,
        "instance_type": found.instance_type,
        "region": found.region,
        "zone": found.zone or None,
        "vm_count": forecast.vms,
        "for_s": forecast.for_s,
        "had": forecast.had.as_document(),
        "lasts": forecast.lasts.as_document(),
        "both": found.both.as_document(),
        "lasts_after_wait": forecast.waited.as_document(),
        "lasts_if_independent": forecast.independent,
        "life_for_work_s": found.life_for_work_s.as_document(),
        "evidence": {
            "interruption_band": found.band,
            "placement_score": found.score,
            "public_traces": {
                "pools": prior.pools,
                "gangs": prior.gangs,
                "lives": prior.lives,
                "days": prior.days,
                "source": prior.source,
                "as_of": prior.as_of,
            },
            "own_jobs": (
                None
                if own is None
                else {
                    "machines": len(own.lives),
                    "preemptions": own.preemptions,
                    "machine_s": sum(life.seconds for life in own.lives),
                    "gang": own.gang,
                    "refused": own.refused,
                }
            ),
            "prices": None if prices is None else _prices(prices),
        },
    }


def _prices(prices: PriceEvidence) -> dict[str, Any]:
    return {
        "source": prices.source,
        "as_of": prices.as_of,
        "days": prices.days,
        "limit_usd_per_hour": float(prices.limit_usd_per_hour),
        "limit_counts": prices.asked,
        "zones": [
            {
                "zone": z.zone,
                "usd_per_hour": float(z.newest),
                "p95_usd_per_hour": float(z.p95),
                "versions": z.versions,
                "versions_sold": z.sold,
                "windows": z.windows,
                "windows_below_limit": z.kept,
                "stays_below_limit": z.stays.as_document(),
            }
            for z in prices.zones
        ],
    }


def print_answer(found: Answer) -> None:
    """The probabilities, and what they rest on."""
    forecast = found.forecast
    time = format_seconds(forecast.for_s)
    where = found.region or "an unnamed region"
    where += f" ({found.zone})" if found.zone else ""
    print_lines(
        [f"{forecast.vms} x {found.instance_type} on the spot market of {where}, for {time}", ""]
    )
    rows = [
        ("all can be had when they are asked for", forecast.had),
        (f"then all live for {time}", forecast.lasts),
    ]
    if found.prices is not None and found.prices.asked:
        rows.append(
            (f"the price stays at or below {_usd(found.prices)}", found.prices.zones[0].stays)
        )
    rows.append(("all of this", found.both))
    print_items(
        [
            {
                Column("what"): what,
                Column("probability", "right"): _percent(p.value),
                Column("80 % interval", "right"): _range(p),
            }
            for what, p in rows
        ],
        also="-o json",
    )
    lines = [
        "",
        (
            f"If they come only after a wait, all live for {time} with"
            f" {_percent(forecast.waited.value)}."
        ),
    ]
    if forecast.vms > 1:
        lines.append(
            f"If losses were independent: {_percent(forecast.independent)}; in public traces VMs of"
            " a zone go together."
        )
    print_lines([*lines, "", "This rests on:", *(f"- {line}" for line in _evidence(found))])
    if found.prices is not None:
        print_lines([""])
        print_items(_zones(found.prices), also="-o json")


def _evidence(found: Answer) -> Iterator[str]:
    prior, own = found.prior, found.own
    where = prior.source.partition(": ")[2]
    yield (
        f"public traces ({where}): {prior.pools} pools of one VM and {prior.gangs} of several, "
        f"mostly V100 and K80, {prior.days:.0f} days"
    )
    if found.band is None:
        yield "interruption band: unknown, so counted as the worst"
    else:
        low, high = BANDS[found.band]
        share = (
            f"above {100 * low:.0f} %" if high is None else f"{100 * low:.0f}-{100 * high:.0f} %"
        )
        yield (
            f"interruption band: {share} a month; its rate beside the worst band's scales that of"
            " the traces"
        )
    if own is None:
        yield "your own jobs: none of this type"
    else:
        gang = f", {own.gang:.1f} together on average" if own.gang > 1 else ""
        hours = sum(life.seconds for life in own.lives) / 3600
        lived = (
            f"{counted(len(own.lives), 'VM')}, {hours:.1f} h,"
            f" {counted(own.preemptions, 'preemption')}{gang}"
        )
        yield f"your own jobs: {lived}; {own.refused} asked for in vain"
    if found.score is None:
        yield "placement score: not asked, or none for this zone"
    else:
        yield f"placement score: {found.score} of 10, of this type and others with its GPUs"
    mttp = format_seconds(found.life_for_work_s.value).replace(" ", "")
    yield f"for --work, this is --mttp {mttp} at {counted(found.forecast.vms, 'VM')}"


def _zones(prices: PriceEvidence) -> list[dict[Column, str]]:
    return [
        {
            Column("zone"): z.zone or "-",
            Column("$/h", "right"): format_usd(z.newest),
            Column("p95 $/h", "right", drop=2): format_usd(z.p95),
            Column("sold in", "right", drop=1): f"{z.sold} of {z.versions} versions",
            Column(f"at most {_usd(prices)}", "right"): f"{z.kept} of {z.windows} windows",
        }
        for z in prices.zones
    ]


def _usd(prices: PriceEvidence) -> str:
    return f"{format_usd(prices.limit_usd_per_hour)} $/h"


def _percent(share: float) -> str:
    if 0 < share < _NEVER:
        return f"below {100 * _NEVER:g} %"
    return f"{100 * share:.0f} %" if 0.01 <= share <= 0.99 else f"{100 * share:.2g} %"


def _range(interval: Interval) -> str:
    return f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %"


def judged_lines(judged: Sequence[Judged], prior: Prior) -> Iterator[str]:
    """Tables of ``docs/explain/survive.md``, in Markdown."""
    from deepvm.simulator.survival.calibration import (
        WAYS,
        brier,
        brier_had,
        brier_interval,
        coverage,
        coverage_later,
        reliability,
    )

    hours = sorted({j.hours for j in judged})
    gangs = sorted({j.nodes for j in judged})
    total = sum(j.lasted.size for j in judged)
    traces = len({j.trace for j in judged})
    yield (
        f"{prior.as_of}: {total} forecasts on {traces} traces of"
        f" {len({j.campaign for j in judged})} campaigns"
    )
    yield ""
    columns = ["all", *(f"{h} h" for h in hours), *(counted(n, "VM") for n in gangs), "had"]
    yield f"| Brier score | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for way in WAYS:
        groups = [judged, *([j for j in judged if j.hours == h] for h in hours)]
        groups += [[j for j in judged if j.nodes == n] for n in gangs]
        yield (
            f"| {way} | {' | '.join(f'{brier(group, way):.3f}' for group in groups)} |"
            f" {brier_had(judged, way):.3f} |"
        )
    yield ""
    for way in WAYS[1:]:
        low, high = brier_interval(judged, way, "band")
        yield f"{way} less band: 80 % of redrawn traces give {low:+.3f} to {high:+.3f}"
    lives, had, of = coverage(judged)
    yield (
        f"80 % intervals of 'prior' hold {lives} of {of} shares that lasted, {had} of {of}"
        " shares had"
    )
    lasted, of_lasted, had, of_had = coverage_later(judged)
    yield (
        f"80 % intervals of 'history' hold {lasted} of {of_lasted} later shares that lasted, {had}"
        f" of {of_had} had"
    )
    yield ""
    yield "| way | said | came true | forecasts |"
    yield "|---|---:|---:|---:|"
    for way in WAYS:
        for one in reliability(judged, way):
            yield f"| {way} | {100 * one.said:.0f} % | {100 * one.seen:.0f} % | {one.count} |"


def reliability_figure(judged: Sequence[Judged]) -> Figure:
    """How often forecasts came true, by their probability: a line for each way, dots as large as their bin."""
    from deepvm.simulator.survival.calibration import WAYS, brier, reliability

    with drawing(6.4, 5.2) as (figure, axes):
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.9, zorder=1)
        for way, style in zip(WAYS, STYLES, strict=True):
            bins = reliability(judged, way)
            said, seen = [b.said for b in bins], [b.seen for b in bins]
            axes.plot(
                said, seen, label=f"{way} (Brier {brier(judged, way):.3f})", zorder=2, **style.line
            )
            sizes = [8 + 60 * b.count / max(one.count for one in bins) for b in bins]
            axes.scatter(said, seen, s=sizes, color=style.color, marker=style.marker, zorder=3)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("forecast that all VMs live (probability)")
        axes.set_ylabel("share that came true")
        axes.legend(loc="upper left", frameon=False, handlelength=4.2, fontsize="small")
        total = sum(j.lasted.size for j in judged)
        figure.suptitle("Forecasts on traces that were held out")
        axes.set_title(f"{total} forecasts for 1, 4, 12 and 24 h", fontsize="small")
    return figure
