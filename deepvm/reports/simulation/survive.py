"""Whether spot VMs can be had and live: a table, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepvm.core.preemption.interruption_bands import BANDS
from deepvm.core.units import counted, format_seconds, format_usd
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from deepvm.core.interval import Interval
    from deepvm.simulator.survival.evidence import Answer, PriceEvidence

_NEVER = 1e-4
"""Below it digits would claim more than is known."""


def print_answer(answer: Answer) -> None:
    """The probabilities, and what they rest on."""
    forecast = answer.forecast
    time = format_seconds(forecast.for_s)
    region = answer.region or "an unnamed region"
    zone = f" ({answer.zone})" if answer.zone else ""
    asked = f"{forecast.vms} x {answer.instance_type} on the spot market of {region}{zone}"
    print_lines([f"{asked}, for {time}", ""])
    print_items([_cells(*row) for row in _probabilities(answer)], also="-o json")
    waited = _percent(forecast.waited.value)
    lines = ["", f"If they come only after a wait, all live for {time} with {waited}."]
    if forecast.vms > 1:
        independent = _percent(forecast.independent)
        lines.append(
            f"If losses were independent: {independent}; in public traces VMs of a zone go together."
        )
    evidence = (f"- {line}" for line in _evidence(answer))
    print_lines([*lines, "", "This rests on:", *evidence])
    if answer.prices is not None:
        print_lines([""])
        print_items(_zones(answer.prices), also="-o json")


def _probabilities(answer: Answer) -> Iterator[tuple[str, Interval]]:
    forecast, prices = answer.forecast, answer.prices
    yield "all can be had when they are asked for", forecast.had
    yield f"then all live for {format_seconds(forecast.for_s)}", forecast.lasts
    if prices is not None and prices.asked:
        yield f"the price stays at or below {_usd(prices)}", prices.zones[0].stays
    yield "all of this", answer.both


def _cells(event: str, probability: Interval) -> dict[Column, str]:
    interval = f"{100 * probability.low:.0f}-{100 * probability.high:.0f} %"
    return {
        Column("event"): event,
        Column("probability", "right"): _percent(probability.value),
        Column("80 % interval", "right"): interval,
    }


def _evidence(answer: Answer) -> Iterator[str]:
    prior, own = answer.prior, answer.own
    source = prior.source.partition(": ")[2]
    yield (
        f"public traces ({source}): {prior.pools} pools of one VM and {prior.gangs} of several,"
        f" mostly V100 and K80, {prior.days:.0f} days"
    )
    if answer.band is None:
        yield "interruption band: unknown, so counted as the worst"
    else:
        low, high = BANDS[answer.band]
        share = f"above {100 * low:.0f}" if high is None else f"{100 * low:.0f}-{100 * high:.0f}"
        yield f"interruption band: {share} % a month, which scales the rate of the traces"
    if own is None:
        yield "your own jobs: none of this type"
    else:
        hours = sum(life.seconds for life in own.lives) / 3600
        lived = f"{counted(len(own.lives), 'VM')}, {hours:.1f} h"
        preempted = f"{counted(own.preemptions, 'preemption')}, {own.gang:.1f} VMs together"
        yield f"your own jobs: {lived}, {preempted}; {own.refused} requests refused"
    if answer.score is None:
        yield "placement score: not asked, or none for this zone"
    else:
        yield f"placement score: {answer.score} of 10, of this type and others with its GPUs"
    mttp = format_seconds(answer.life_for_work_s.value).replace(" ", "")
    yield f"for --work, this is --mttp {mttp} at {counted(answer.forecast.vms, 'VM')}"


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
    digits = ".0f" if 0.01 <= share <= 0.99 else ".2g"
    return f"{100 * share:{digits}} %"
