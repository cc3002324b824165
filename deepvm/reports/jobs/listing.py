"""Jobs, their machines and their events, as tables and documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepvm.core.units import counted, format_seconds
from deepvm.documents.outputs.jobs import iso_time
from deepvm.jobs.decisions.world import Role
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.orphans import Orphan
from deepvm.jobs.standing import ELSEWHERE, GONE, JobLine
from deepvm.reports.jobs.events import clock, event_line
from deepvm.reports.jobs.money import print_money
from deepvm.reports.jobs.phases import slow_parts
from deepvm.reports.jobs.progress import lost_words, restart_words, steps_words
from deepvm.reports.jobs.validation import print_forecast, print_validation
from deepvm.reports.tables import Column, print_lines, print_table
from deepvm.services.jobs import HEAD

_LAST = 12


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
        what = {Role.ANCHOR.value: " to keep versions in memory", HEAD: " for the controller"}.get(
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
