"""Jobs, their machines and their events, as tables and documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from deepvm.core.bill.bill import RentedVms, bill_of
from deepvm.core.bill.extras import Extras
from deepvm.core.bill.rates import Rates
from deepvm.core.cluster.instances import Market
from deepvm.core.units import counted, format_seconds
from deepvm.documents.build import With, document_of
from deepvm.documents.outputs.jobs import iso_time
from deepvm.documents.outputs.plans import Bill
from deepvm.jobs.decisions.price_caps import most_usd_per_hour
from deepvm.jobs.decisions.world import JobState, Pool, Role
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.orphans import Orphan
from deepvm.jobs.standing import ELSEWHERE, GONE, JobLine
from deepvm.reports.jobs.events import clock, event_line
from deepvm.reports.jobs.money import print_money
from deepvm.reports.jobs.phases import slow_parts
from deepvm.reports.jobs.progress import lost_words, restart_words, steps_words
from deepvm.reports.jobs.validation import print_forecast, print_validation
from deepvm.reports.tables import Column, print_lines, print_table

_LAST = 12
_HEAD = "head"
"""The role of the machine that runs the controller of a detached job."""


def print_jobs(jobs: Sequence[JobLine]) -> None:
    """The jobs as a table."""
    header = [Column("job"), Column("state"), Column("created", drop=1)]
    header += [Column(name, "right", drop=2) for name in ("steps", "preemptions", "machines")]
    body = [
        [
            job.name,
            state_words(job),
            iso_time(job.created_s),
            "unknown" if job.steps is None else str(job.steps),
            str(job.preemptions),
            str(job.machines),
            f"{job.cost_usd:.4f}",
        ]
        for job in jobs
    ]
    print_table([*header, Column("$", "right")], body, also="-o csv")


def state_words(job: JobLine) -> str:
    """The state of a job, and what is wrong with its controller and its versions."""
    said = {GONE: ", no controller", ELSEWHERE: ", controller elsewhere"}
    return (
        f"{job.state}{said.get(job.controller, '')}{', saves failed' if job.failed_saves else ''}"
    )


def saved_words(document: Mapping[str, Any]) -> Iterator[str]:
    """What is safe of a job, and what is not.

    Documents of an older deepvm say nothing of the latter.
    """
    saves = (
        ", ".join(f"{count} {reason}" for reason, count in document["saves"].items() if count)
        or "none"
    )
    version = document.get("version", 0)
    newest = (
        f"; the newest has {counted(version, 'step')}"
        if 0 < version < (document["steps"] or 0)
        else ""
    )
    gone = "; none is safe any more" if document.get("version") == 0 and saves != "none" else ""
    yield f"saved versions: {saves}{newest}{gone}"
    if (failed := document.get("failed_saves")) and failed["total"]:
        since = f", {failed['in_a_row']} since the newest version" if saves != "none" else ""
        last = f"{since}: {failed['why']}" if failed["in_a_row"] else ""
        yield f"{counted(failed['total'], 'save')} failed{last}"


def print_job(document: Mapping[str, Any], events: Sequence[EventRow]) -> None:
    """One job: in short, its machines, what happened last."""
    away_s, lost = document.get("downtime_s", 0.0), lost_words(document)
    took = ("; " if document["steps"] is None else " in ") + format_seconds(document["total_s"])
    preempted = (
        f"{counted(document['preemptions'], 'preemption')}, {document['notices']} with a notice"
    )
    lines = [
        (
            f"{document['name']}:"
            f" {document['state']}{', ' + document['why'] if document['why'] else ''}"
        ),
        f"{steps_words(document)}{took}, "
        + (f"{format_seconds(away_s, digits=3)} of it without a controller, " if away_s else "")
        + counted(document["generations"], "generation"),
        f"{preempted}; {lost}" if lost else preempted,
        *restart_words(document),
        *saved_words(document),
        *slow_parts(document),
        f"{document['cost_usd']:.4f} $ paid"
        + (
            f", {document['head_usd']:.4f} $ of it for the controller"
            if document.get("head_usd")
            else ""
        ),
    ]
    print_lines(lines)
    names = ("machine", "type", "market", "requested", "ready", "notice", "end", "why")
    header = [*(Column(name) for name in names), *_numbers("$")]
    body = [
        [
            m["id"],
            m["type"],
            m["market"],
            *(_clock(m[key]) for key in ("requested", "ready", "notice", "end")),
            m["end_reason"],
            f"{m['usd']:.4f}",
        ]
        for m in document["machines"]
    ]
    print_table(header, body)
    if "spent_usd" in document:
        print_money(document)
    print_forecast(document)
    if document.get("validation"):
        print_validation(document["validation"])
    for event in events[-_LAST:]:
        line = event_line(event)
        if line:
            print_lines([f"{clock(event.at_s)} {line}"])


def plan_document(
    name: str,
    world: JobState,
    head: Pool | None,
    names: Mapping[str, str],
    rates: Rates | None = None,
) -> dict[str, Any]:
    """What a job would rent, as a document; ``head``: for its controller.

    ``names``: of what it makes, by kind.

    ``rates``: what its cloud charges besides machines, None if unknown.
    """
    terms = world.terms
    groups = [
        (
            Role.TRAINER.value,
            world.pools,
            terms.least - terms.steadies,
            terms.most - terms.steadies,
        ),
        (Role.TRAINER.value, terms.steady, terms.steadies, terms.steadies),
        (Role.ANCHOR.value, terms.anchor, terms.anchors, terms.anchors),
        (_HEAD, () if head is None else (head,), 1, 1),
    ]
    machines: list[dict[str, Any]] = [
        {
            "role": role,
            "type": pool.instance_type,
            "zone": pool.zone,
            "market": pool.market,
            "least": least,
            "most": most,
            "usd_per_hour": pool.usd_per_hour,
            "most_usd_per_hour": (
                most_usd_per_hour(world, pool, Role(role)) if names and role != _HEAD else None
            ),
        }
        for role, pools, least, most in groups
        for pool in pools[:1]
    ]
    bought = [(pools[0].market, most) for _, pools, _, most in groups if pools]
    spot = sum(most for market, most in bought if market == Market.SPOT.value)
    dearest_usd = sum(
        most * max(p.usd_per_hour for p in pools) for _, pools, _, most in groups if pools
    )
    return {
        "schema_version": "deepvm.run-plan/1",
        "name": name,
        "usd_per_hour": round(dearest_usd, 8),
        "total_usd": terms.total_usd,
        "max_price": terms.max_price,
        "machines": machines,
        "pools": [
            {
                "type": p.instance_type,
                "zone": p.zone,
                "market": p.market,
                "usd_per_hour": p.usd_per_hour,
            }
            for p in world.pools
        ],
        "bill": (
            None
            if rates is None
            else _bill(spot, sum(n for _, n in bought) - spot, dearest_usd, rates)
        ),
        "names": [{"what": what, "name": name} for what, name in names.items()],
    }


def _bill(spot: int, on_demand: int, usd_per_hour: float, rates: Rates) -> dict[str, Any]:
    """What comes besides machines, counted as in a recommendation.

    Jobs do not say how large disks are.
    """
    vms = RentedVms(spot, on_demand, Decimal(str(round(usd_per_hour, 6))))
    return document_of(Bill, With(bill_of(vms, rates, Extras()), total_usd=None))


def print_plan(document: Mapping[str, Any]) -> None:
    """What a job would rent, where, and how it can be found."""
    first, *others = document["machines"]
    count = (
        f"{first['most']}"
        if first["least"] == first["most"]
        else f"{first['least']} to {first['most']}"
    )
    parts = [f"{count} x {first['type']} {first['market']}"]
    for group in others:
        what = {Role.ANCHOR.value: " to keep versions in memory", _HEAD: " for the controller"}.get(
            group["role"]
        )
        parts.append(f"{group['most']}" + (f" x {group['type']}{what}" if what else " on demand"))
    limit = "" if document["total_usd"] is None else f", {document['total_usd']:g} $ in all"
    rate = f"up to {document['usd_per_hour']:.4f} $/h in {first['zone']}"
    if first["most_usd_per_hour"] is not None:
        rate += (
            f", where prices may rise to {first['most_usd_per_hour']:.4f} $/h for each"
            f" {first['type']}"
        )
    lines = [f"{document['name']}: {', '.join(parts)}; {rate}{limit}"]
    if bill := document["bill"]:
        counted = ", ".join(item["name"] for item in bill["items"])
        left = ", ".join(part["name"] for part in bill["not_counted"])
        doubt = (
            "~"
            if bill["rates_of_region"] or any(item["official"] is False for item in bill["items"])
            else ""
        )
        sums = f"{doubt}{bill['usd_per_hour']:.4f} $/h + {bill['usd_once']:.2f} $"
        lines.append(f"besides machines: {sums} ({counted}); not counted: {left}")
    if len(pools := document["pools"]) > 1:
        asked = [f"{p['type']} in {p['zone']} ({p['usd_per_hour']:.4f} $/h)" for p in pools]
        lines.append(f"asked for in this order: {', '.join(asked)}")
    print_lines([*lines, *(f"{row['what']}: {row['name']}" for row in document["names"])])


def _numbers(*names: str) -> list[Column]:
    return [Column(name, "right") for name in names]


def print_orphans(orphans: Sequence[Orphan]) -> None:
    """Machines without a controller, as a table."""
    print_table(
        [Column("job"), Column("machine"), Column("since")],
        [[one.job, one.machine, iso_time(one.since_s)] for one in orphans],
    )


def _clock(time: str | None) -> str:
    return "" if time is None else time[11:19]
