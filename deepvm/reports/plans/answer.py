"""The default answer: what to rent, how fast that is, what it costs, and what to do next."""

import sys
from collections.abc import Sequence

from deepvm.catalog.clouds import cloud_of
from deepvm.catalog.signals.signal import age
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.units import counted, format_seconds
from deepvm.records import dataclass, replace
from deepvm.reports.plans import words
from deepvm.reports.plans.plan_view import (
    A_GRANT_TAKES_DAYS,
    NEW_ACCOUNT,
    Note,
    PlanView,
    Row,
    short_label,
    simulated_note,
)
from deepvm.reports.plans.sources import price_origins
from deepvm.reports.terminal import (
    WARNING,
    Column,
    paint,
    print_lines,
    table_text,
    width_of,
    without_controls,
    wrapped,
)

WIDTH = 78
_MAX_LINES = 15
_INDENT = 13  # of what "Your script" and its like say
_NARROW = 60  # columns of a terminal below which it is less
Sentence = tuple[str, str]  # its topic, if any, and what it says
_PARALLEL = {"ddp": "torchrun, DDP", "fsdp": "torchrun, FSDP", "lora": "torchrun, LoRA"}


def print_answer(view: PlanView) -> None:
    """At most 15 lines of at most 78 columns on stdout, where one region is asked for."""
    width = min(width_of(sys.stdout) or WIDTH, WIDTH)
    rows, sentences = _fitting(view)
    head = [line for text in _headline(view) for line in _wrap("", text, width)]
    lines = [*head, "", *_table(view, rows, width), ""]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if len(view.found.answers) > 1 or view.found.left_out or view.placement is not None:
        _print_places(view)
    for topic, text in sentences:
        for line in _wrap(topic, text, width):
            painted = paint(line, WARNING, sys.stdout) if line.startswith("! ") else line
            sys.stdout.write(f"{painted}\n")


@dataclass(frozen=True)
class _Draft:
    """How much an answer shows: rows, warnings, how to ask for a job, and all about quotas."""

    rows: int
    warnings: int
    job: bool = True
    quotas: bool = True


def _fitting(view: PlanView) -> tuple[list[Row], list[Sentence]]:
    """The plans of the table and what stands below it, as far as a screen has lines for them.

    What is left out is in the reasons.
    """
    notes = [note for note in view.cautions if note.mark]
    grave = sum(note.kind != "warning" for note in notes)
    everything = [*view.rows, *view.more_rows]
    least = len(view.rows) + [label for label, _ in view.more_rows].count(NEW_ACCOUNT)
    least += view.much_for_more_money and len(everything) > least
    counts = range(len(notes), -1, -1)
    gravest = min(grave, 1)
    drafts = [
        _Draft(rows, count)
        for rows in range(len(everything), least - 1, -1)
        for count in counts
        if count >= grave
    ]
    drafts += [_Draft(least, count, job=False) for count in counts if count >= gravest]
    drafts += [_Draft(rows, gravest, job=False, quotas=False) for rows in range(least, 0, -1)]
    drafts.append(_Draft(1, 0, job=False, quotas=False))
    room = sys.maxsize
    if len(view.found.answers) == 1:
        room = _MAX_LINES - 2 - _lines_of([("", text) for text in _headline(view)])
    for draft in drafts:
        rows = everything[: draft.rows]
        sentences = _sentences(view, draft)
        if len(_table(view, rows, WIDTH)) + _lines_of(sentences) <= room:
            break
    return rows, sentences


def _sentences(view: PlanView, draft: _Draft) -> list[Sentence]:
    """What stands below the table, each with its topic."""
    notes = [note for note in view.cautions if note.mark]
    hidden = notes[draft.warnings :]
    quotas = view.quota_sentence
    if not draft.quotas:
        quotas = quotas.partition(A_GRANT_TAKES_DAYS)[0]
    sentences = [
        *_warnings(notes[: draft.warnings], hidden),
        ("", _speeds(view)),
        *(("", str(note)) for note in view.cautions if not note.mark),
        *(("", str(note)) for note in simulated_note(view.rows[0][1])),
        ("To rent it", quotas),
        ("Your script", _script(view)),
        ("Your job", _job(view) if draft.job else ""),
        ("Next", _next_step(view, hidden, brief=not draft.quotas)),
    ]
    return [(topic, text) for topic, text in sentences if text]


def _lines_of(sentences: Sequence[Sentence]) -> int:
    """How many lines of the usual width they take."""
    return sum(len(_wrap(topic, text, WIDTH)) for topic, text in sentences)


def _table(view: PlanView, labeled: Sequence[Row], width: int) -> list[str]:
    """With shorter labels, and without speeds of a job, where rows would not be lines."""
    table: list[Column] = []
    for shorten, speeds in ((str, True), (short_label, True), (short_label, False)):
        rows = [_cells(shorten(label), r, view, speeds=speeds) for label, r in labeled]
        columns = dict.fromkeys(column for row in rows for column in row)
        table = [replace(c, cells=[row.get(c, "-") for row in rows]) for c in columns]
        if len(table_text(table, WIDTH, sys.stdout)) == len(rows) + 1:
            break
    return table_text(table, width, sys.stdout, also="-o json")


def _wrap(topic: str, text: str, width: int) -> list[str]:
    """Lines of a sentence after its topic, which on narrow terminals take all of their width."""
    indent = " " * (_INDENT if topic and width >= _NARROW else 2)
    if topic:
        text = f"{topic:<{_INDENT}}{text}"
    return wrapped(without_controls(text), width, indent)


def _cells(label: str, r: Recommendation, view: PlanView, *, speeds: bool) -> dict[Column, str]:
    assert view.workload is not None and r.prediction is not None
    cells = {
        Column("", wrap=False): label,
        Column("cluster"): words.cluster_words(r.cluster),
        Column("GPUs", drop=2): words.gpu_words(r.cluster),
        Column("$/h", "right"): f"{r.usd_per_hour:,.2f}",
    }
    if speeds or r.outlook is None:
        column = Column(view.workload.units, "right", drop=0 if r.outlook is None else 1)
        cells[column] = words.thousands(r.prediction.throughput.value)
    if r.outlook is not None:
        cells[Column(view.amount, wrap=False)] = ", ".join(words.time_and_bill(r.outlook, digits=2))
    return cells


def _headline(view: PlanView) -> list[str]:
    """One line, or two of which the second says how old prices are."""
    assert view.workload is not None
    text = view.workload.model.name
    if view.assumed:
        text += " (assumed)"
    if view.amount:
        text += f", {view.amount},"
    text += f" {words.limits_words(view.answer.request)}"
    catalog = view.answer.catalog
    if view.cloud is None:
        text += f" with catalog {catalog.name}"
    else:
        text += f" on {view.cloud.title} {catalog.region}"
    others = len(view.found.answers)
    if others > 1:
        text += f", best of {others} {'clouds' if view.found.of_several_clouds else 'regions'}"
    if view.price_age is None:
        return [text]
    age = f"prices are {view.price_age} days old"
    for aged in (f"{text}; {age}", f"{text}; prices {view.price_age} d old"):
        if len(aged) <= WIDTH:
            return [aged]
    return [f"{text};", age]


def _speeds(view: PlanView) -> str:
    label, first = view.rows[0]
    assert view.workload is not None and first.prediction is not None
    speed = first.prediction.throughput
    how = "were measured" if first.prediction.source == "measured" else "are estimates"
    ends = f"{words.thousands(speed.low)}-{words.thousands(speed.high)} {view.workload.units}"
    for name in (f'"{short_label(label)}"', "row 1"):
        text = f"Speeds {how}: 4 of 5 runs of {name} land at {ends}."
        if len(text) <= WIDTH:
            break
    return text


def _script(view: PlanView) -> str:
    """What a training script must do on the first plan."""
    label, first = view.rows[0]
    assert view.workload is not None
    gpus, vms = first.cluster.gpus, first.cluster.gpu_count
    duties = []
    if gpus > 1:
        where = f" on {vms} VMs" if vms > 1 else ""
        how = f"{where} ({_PARALLEL[view.workload.method.value]})"
        duties.append(f'use {gpus} GPUs{how} for "{short_label(label)}"')
    if first.cluster.spot_count:
        notice = "can be reclaimed at any time"
        if view.cloud is not None:
            notice = f"get {format_seconds(view.cloud.rules.grace_s)} notice"
        reason = f"spot VMs {notice} (deepvm help checkpoints)"
        duties.append(f"save checkpoints: {reason}")
    if not duties:
        return "needs no change: one GPU, and no spot VM"
    return f"must {' and '.join(duties)}"


def _job(view: PlanView) -> str:
    """How to ask for the user's own training."""
    assert view.workload is not None
    if view.amount:
        return ""
    if view.assumed:
        budget = words.plain_usd(view.answer.request.budget)
        work = "--epochs 90 --dataset-size 1.28M"
        if len(budget) > 1:
            work = "--samples 115M"
        return f"deepvm recommend {budget} --model vit-b {work}"
    if view.workload.model.unit == "tokens":
        return "add --tokens 2B for its time and bill"
    return "add --epochs 90 --dataset-size 1.28M for its time and bill"


def _next_step(view: PlanView, hidden: Sequence[Note], *, brief: bool) -> str:
    """What to do with the plan; ``run`` and most exports do not rent reserved VMs."""
    command = "run"
    if any(group.instance.reserved for group in view.answer.configurations[0].cluster.groups):
        command = "export plan.json --to torchrun --output-dir launch"
    elif not cloud_of(view.answer.catalog.name).has_api:
        command = "export plan.json --to skypilot --output-dir launch"
    if brief or command == "run":
        command = f"{command.split()[0]} --help"
    why = "--why explains"
    if hidden and not _kinds(hidden):
        why = f"--why ({counted(len(hidden), 'warning')})"
    return f"{why}; -o json > plan.json, then deepvm {command}"


def _warnings(shown: Sequence[Note], hidden: Sequence[Note]) -> list[Sentence]:
    """The gravest first, and how many more there are, where one of these has a name."""
    lines = [("", str(note)) for note in shown]
    if kinds := _kinds(hidden):
        more = counted(len(hidden), "more warning" if shown else "warning")
        lines.append(("", f"! --why has {more}: {', '.join(kinds)}"))
    return lines


def _kinds(notes: Sequence[Note]) -> list[str]:
    names = dict.fromkeys(note.kind.replace("-", " ") for note in notes)
    return [name for name in names if name != "warning"]


def _print_places(view: PlanView) -> None:
    """What other regions or clouds offer."""
    from deepvm.reports.plans.report import sentences  # jinja2 is slow to load
    from deepvm.reports.text import print_text

    print_lines(sentences(view, "placement"))
    if not view.found.of_several_clouds:
        print_lines(sentences(view, "regions"))
    print_text(
        "plan_clouds",
        found=view.found,
        units=view.workload and view.workload.units,
        cloud_of=cloud_of,
        age=age,
        now=view.now,
        price_origins=price_origins,
        w=words,
    )
