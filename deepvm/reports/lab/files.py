"""The files of a matrix: figures 2 to 4 of ECRL, tables, a page, and what others may publish."""
# Means over suites take the seeds with which the reference, blocking and overlapped runs all pass
# (ECRL 5.9).

from __future__ import annotations

import contextlib
import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from operator import sub
from pathlib import Path
from statistics import fmean

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.units import format_time
from deepvm.documents.build import With, document_of, means, with_means
from deepvm.errors import DataError, MissingExtraError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.user_dirs import data_folder
from deepvm.lab.audit.gates import GATES
from deepvm.lab.checked import CheckedRuns, publishable
from deepvm.lab.matrix import CALM, SIZES
from deepvm.lab.records import ENVIRONMENT, Records, read_document
from deepvm.lab.results import BLOCKING, Cost, Estimate, SuiteResult, Variant, suites_of
from deepvm.records import dataclass
from deepvm.reports.documents import to_csv
from deepvm.reports.pages import Scale, render, render_markdown, sentences
from deepvm.reports.pictures import STYLES, Figure, drawing, legend, save_picture, short
from deepvm.services.schemas import Table, rows_as

DIVERGED = "training diverged: some losses are not numbers"
# Policies that others are compared with, in order of preference
REFERENCES = {
    "ref-blk": "blocking checkpoints, no failures (ECRL's reference)",
    "none": "neither checkpoints nor failures (ECRL's reference has blocking checkpoints)",
}


@dataclass(frozen=True)
class LabSummary:
    """Of the folder of a matrix; ``records``: with whether they pass all gates."""

    checked: CheckedRuns
    records: Sequence[tuple[Records, bool]]
    suites: Sequence[SuiteResult]

    @classmethod
    def of(cls, checked: CheckedRuns, records: Sequence[tuple[Records, bool]]) -> LabSummary:
        return cls(checked, records, suites_of(records))

    @cached_property
    def reference(self) -> str:
        return next(filter(self.has, REFERENCES), "")

    def has(self, variant: str) -> bool:
        return any(variant in suite.variants for suite in self.suites)

    @cached_property
    def configs(self) -> Sequence[JsonObject]:
        return [run.config for run, _ in self.records]

    def config_of(self, suite: SuiteResult) -> JsonObject:
        configs = [
            config
            for config in self.configs
            if config["dataset"]["name"] == suite.dataset and config["model"]["name"] == suite.model
        ]
        # A suite may have runs without failures only
        return next((c for c in configs if c["failure"] == suite.failure), configs[0])

    def schedule(self, suite: SuiteResult) -> str:
        if suite.failure == CALM:
            return "none"
        text: str = sentences("lab_cells.j2").schedule(self.config_of(suite))
        return text

    def reason(self, cost: Cost) -> str:
        """Why a run does not pass, and whether it has diverged; empty if it passes, and has not."""
        gates = self.checked.runs.get(cost.run, {})
        reasons = [f"{gate}: {reason}" for gate, reason in gates.items() if reason]
        if cost.diverged:
            reasons.append(DIVERGED)
        return "; ".join(reasons)

    def left_out(self, suite: SuiteResult) -> list[tuple[str, str]]:
        """Runs of a suite that do not count, with the reason."""
        return [(cost.run, self.reason(cost)) for cost in suite.costs if not cost.passed]

    @cached_property
    def finals(self) -> Mapping[str, str]:
        digests = {}
        for run, _ in self.records:
            # A run that did not get to its end has none
            with contextlib.suppress(DataError):
                digests[run.folder.name] = run.final
        return digests

    @cached_property
    def environment(self) -> Mapping[str, str]:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for run, _ in self.records:
            for item, value in read_document(run.folder / ENVIRONMENT).items():
                counts[item][str(value)] += 1
        runs = len(self.records)
        texts = {}
        for item, values in counts.items():
            text = next(iter(values))
            if values[text] != runs:
                text = "; ".join(f"{value} ({n} of {runs} runs)" for value, n in values.items())
            texts[item] = text
        return texts

    @property
    def made(self) -> str:
        attempts = [one for run, _ in self.records for one in run.supervisor["attempts"]]
        first = min((one["began"] for one in attempts), default=0.0)
        last = max((one["detected"] for one in attempts), default=0.0)
        return f"{_utc(first)} to {_utc(last)}"

    @property
    def part_of_data(self) -> dict[str, tuple[list[int], int]]:
        parts = {}
        for name, whole in SIZES.items():
            used = {c["dataset_size"] for c in self.configs if c["dataset"]["name"] == name}
            if used - {whole}:
                parts[name] = (sorted(used), whole)
        return parts


def _utc(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(int(seconds), timezone.utc))


OVERLAPPED = "ovl"


class AcceptedSuite(SuiteResult):
    """A suite's runs of the seeds with which its reference, blocking and overlapped runs pass."""

    def mean(self, variant: str, name: str) -> float | None:
        if variant not in self.variants:
            return None
        return self.variants[variant].mean(name)

    def change(self, variant: str, other: str) -> float | None:
        if variant not in self.variants or other not in self.variants:
            return None
        ratio = self.variants[variant].over(self.variants[other])
        return None if ratio is None else ratio.mean - 1

    @property
    def gains(self) -> dict[int, float]:
        return self.variants[OVERLAPPED].gains(self.variants[BLOCKING])

    @property
    def gain(self) -> Estimate:
        return self.over(BLOCKING)[OVERLAPPED]

    @property
    def gain_percent(self) -> float:
        return 100 * (self.gain.mean - 1)

    @property
    def saved_stall_s(self) -> float:
        stalls = [self.variants[name].known("stall_s") for name in (BLOCKING, OVERLAPPED)]
        return fmean(map(sub, *stalls))


@dataclass(frozen=True)
class Group:
    """Suites that means are taken over; a mean is unknown if it is of one of them."""

    suites: Sequence[AcceptedSuite]

    def mean(self, variant: str, name: str) -> float | None:
        return _mean([one.mean(variant, name) for one in self.suites])

    def change(self, variant: str, other: str) -> float | None:
        return _mean([one.change(variant, other) for one in self.suites])

    def difference(self, name: str) -> float | None:
        return subtract(self.mean(OVERLAPPED, name), self.mean(BLOCKING, name))

    @property
    def gain_by_seed(self) -> Estimate | None:
        """Per cent: suites are chosen, seeds are drawn."""
        gains = [one.gains for one in self.suites]
        # Means over different suites could not be compared
        seeds = set.intersection(*map(set, gains)) if gains else ()
        if len(seeds) < 2:
            return None
        means = [fmean(own[seed] for own in gains) for seed in sorted(seeds)]
        return Estimate.of([100 * (mean - 1) for mean in means])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if known and len(known) == len(values):
        return fmean(known)
    return None


def subtract(value: float | None, other: float | None) -> float | None:
    """None if one is unknown."""
    if value is None or other is None:
        return None
    return value - other


def accepted(summary: LabSummary) -> list[AcceptedSuite]:
    """Suites that means are taken over."""
    names = {summary.reference or BLOCKING, BLOCKING, OVERLAPPED}
    suites = []
    for suite in summary.suites:
        own = [suite.variants[name] for name in names if name in suite.variants]
        if len(own) < len(names):
            continue
        # Ratios are paired by seed: one counts where all of these runs pass
        seeds = set.intersection(*({cost.seed for cost in one.passing} for one in own))
        if seeds:
            runs = {v.name: Variant(v.name, [c for c in v.passing if c.seed in seeds]) for v in own}
            suites.append(AcceptedSuite(suite.dataset, suite.model, suite.failure, runs))
    return suites


def analysis(summary: LabSummary) -> str:
    """All tables as Markdown."""
    suites = accepted(summary)
    published = json.loads((data_folder() / "lab" / "ecrl-published.json").read_text())
    return render_markdown(
        "analysis.md.j2",
        summary=summary,
        published=published,
        all=Group(suites),
        Group=Group,
        ranking=sorted(suites, key=lambda one: -one.gain.mean),
        references=REFERENCES,
        subtract=subtract,
    )


_HATCHES = ("", "///", "...")  # From the fifth bar on, colors are used again with the next one
_WIDTH = 0.8  # Of the bars of a suite, which are 1 apart


def goodput_figure(summary: LabSummary) -> Figure:
    """Figure 2: goodput of each variant over that of the reference. Raises MissingExtraError."""
    suites = [suite.over(summary.reference) for suite in summary.suites]
    names = [
        n for n in dict.fromkeys(name for own in suites for name in own) if n not in REFERENCES
    ]
    count = max(len(names), 1)
    with drawing(max(6.0, 1.2 + 0.4 * len(suites) * count), 3.8) as (figure, axes):
        width = _WIDTH / count
        for number, name in enumerate(names):
            # The bars of a suite stand around its tick
            left = (number - (len(names) - 1) / 2) * width
            bars = {n + left: ratios[name] for n, ratios in enumerate(suites) if name in ratios}
            axes.bar(
                list(bars),
                [ratio.mean for ratio in bars.values()],
                0.92 * width,
                label=name,
                color=STYLES[number % len(STYLES)].color,
                hatch=_HATCHES[number // len(STYLES) % len(_HATCHES)],
                edgecolor="white",
            )
            for x, ratio in bars.items():
                if ratio.low is not None:
                    axes.vlines(x, ratio.low, ratio.high, "black", linewidth=1.2)
        axes.axhline(1.0, color="0.3", linewidth=1.0)
        axes.set_xticks(range(len(suites)), _labels(summary.suites), rotation=20, ha="right")
        axes.set_ylabel(f"goodput over {summary.reference or 'reference'}")
        figure.suptitle("Goodput by suite and strategy")
        if names:
            legend(figure, min(len(names), 6), handlelength=2)
    return figure


def gain_figure(summary: LabSummary) -> Figure:
    """Figure 3: goodput of overlapped over that of blocking, with its interval."""
    # Horizontal bars are drawn from the bottom
    suites = accepted(summary)[::-1]
    with drawing(6.5, 1.1 + 0.4 * max(len(suites), 1)) as (figure, axes):
        for number, one in enumerate(suites):
            axes.barh(number, one.gain_percent, color=STYLES[0].color)
            if one.gain.low is not None and one.gain.high is not None:
                axes.hlines(number, 100 * (one.gain.low - 1), 100 * (one.gain.high - 1), "black")
        axes.set_yticks(range(len(suites)), _labels(suites))
        axes.axvline(0.0, color="0.3", linewidth=1.0)
        axes.set_xlabel("goodput of overlapped over blocking, %")
        figure.suptitle("Gain of overlapped over blocking")
    return figure


def stall_figure(summary: LabSummary) -> Figure:
    """Figure 4: stall that overlapped saves against what it gains. Raises MissingExtraError."""
    suites = accepted(summary)
    with drawing(6.5, 4.2) as (figure, axes):
        for number, one in enumerate(suites, 1):
            point = (one.saved_stall_s, one.gain_percent)
            label = f"{number} {one.title}"
            axes.plot(*point, "o", label=label, color=STYLES[0].color)
            axes.annotate(str(number), point, (5, 4), textcoords="offset points", fontsize=9)
        axes.axhline(0.0, color="0.3", linewidth=1.0)
        axes.set(
            xlabel="stall saved by overlapped, s a run", ylabel="goodput gained by overlapped, %"
        )
        figure.suptitle("Stall saved and goodput gained")
        if suites:
            legend(figure, 2, handlelength=0.0)
    return figure


def _labels(suites: Sequence[SuiteResult]) -> list[str]:
    return [short(suite.title, 32) for suite in suites]


# By the names of their files
FIGURES = {
    "figure-2-goodput": goodput_figure,
    "figure-3-gain": gain_figure,
    "figure-4-stall": stall_figure,
}


def write_figures(out: Path, summary: LabSummary) -> Sequence[str]:
    """Write all of them as PNG and SVG; returns the names of the files."""
    files = []
    for name, draw in FIGURES.items():
        figure = draw(summary)
        for file in (f"{name}.png", f"{name}.svg"):
            save_picture(figure, out / file)
            files.append(file)
    return files


PAGE = "report.html"


def write_all(out: Path, summary: LabSummary) -> str:
    """Write publishable files, tables, analysis, figures and the page; returns what is missing."""
    names = {publishable(suite, form) for suite in summary.suites for form in ("json", "md")}
    for old in out.glob("*_publishable.*"):  # of an earlier matrix in this folder
        if old.name not in names:
            old.unlink(missing_ok=True)
    figures: Sequence[str] = ()
    missing = ""
    try:
        # All other files can be written without matplotlib
        figures = write_figures(out, summary)
    except MissingExtraError as error:
        missing = f"figures 2 to 4 are not written: {error}"
    for name, text in _texts(summary):
        write_bytes(out / name, text.encode())
    write_bytes(out / PAGE, lab_page(summary, figures).encode())
    return missing


def _texts(summary: LabSummary) -> Iterator[tuple[str, str]]:
    for suite in summary.suites:
        config = summary.config_of(suite)
        facts = {
            "environment": summary.environment,
            "made": summary.made,
            "config": {**config, "failures": summary.schedule(suite)},
            "runs": _runs(summary, suite),
        }
        document = document_of("lab.PublishedSuite", With(suite, **facts))
        yield publishable(suite, "json"), f"{json.dumps(document, indent=1, allow_nan=False)}\n"
        text = render_markdown("suite.md.j2", summary=summary, suite=suite, config=config)
        yield publishable(suite, "md"), text
    yield "summary.csv", to_csv(*_summary(summary.suites))
    # A row for each run, with the reason if it does not pass
    header = ["dataset", "model", "failure", "variant", "seed", "run", "goodput"]
    header += [*means(), "audit", "reason"]
    runs = [run for suite in summary.suites for run in _runs(summary, suite)]
    yield "detailed_table.csv", to_csv(header, [[run[name] for name in header] for run in runs])
    yield "analysis.md", analysis(summary)


def _summary(suites: Sequence[SuiteResult]) -> Table:
    rows = []
    for suite in suites:
        ratios = suite.over(BLOCKING)
        for name, variant in suite.variants.items():
            own = {
                "suite": suite,
                "goodput": variant.estimate("goodput"),
                "ratio": ratios.get(name),
            }
            rows.append(document_of("lab.SummaryRow", with_means(variant, **own)))
    return rows_as("lab.SummaryRow", rows)


def _runs(summary: LabSummary, suite: SuiteResult) -> list[JsonDict]:
    return [
        {
            **vars(suite),
            **vars(cost),
            "audit": "pass" if cost.passed else "fail",
            "reason": summary.reason(cost),
            "final_sha256": summary.finals.get(cost.run),
        }
        for cost in suite.costs
    ]


# Of an interval, what is within this factor of the means is drawn: those of two or three pairs
# would hide everything else
_SHOWN_FACTOR = 2.0


def lab_page(summary: LabSummary, figures: Sequence[str] = ()) -> str:
    """The whole page, in ASCII. ``figures``: files of pictures to link to."""
    overall = {suite.title: suite.over(summary.reference) for suite in summary.suites}
    compared = accepted(summary)
    return render(
        "lab_page.html.j2",
        summary=summary,
        figures=figures,
        gates={name: (inspect.getdoc(gate) or "").split("\n")[0] for name, gate in GATES.items()},
        references=REFERENCES,
        publishable=publishable,
        times_of=times_of,
        overall={suite: ratios for suite, ratios in overall.items() if ratios},
        overall_scale=ratio_scale(one for ratios in overall.values() for one in ratios.values()),
        gains={one.title: one.gain for one in compared},
        points=[(o.saved_stall_s, o.gain_percent, o.title) for o in compared],
        ratio_scale=ratio_scale,
        Scale=Scale,
    )


def times_of(suite: SuiteResult) -> Mapping[str, Mapping[str, float]]:
    """Where the time of a run went, by variant."""
    names = {"compute": "compute", "recompute": "repeated", "save": "stall"}
    names |= {part: part for part in ("detect", "restart", "restore")}
    times = {}
    for variant in suite.variants.values():
        if variant.passing:
            seconds = {part: variant.mean(f"{name}_s") or 0.0 for part, name in names.items()}
            seconds["compute"] -= seconds["recompute"]
            rest_s = (variant.mean("wall_s") or 0.0) - sum(seconds.values())
            times[variant.name] = {**seconds, "rest": max(rest_s, 0.0)}
    return times


def ratio_scale(ratios: Iterable[Estimate]) -> Scale:
    """An axis with all ratios, 1, and what is drawn of their intervals."""
    estimates = list(ratios)
    means = [1.0, *(one.mean for one in estimates)]
    lowest = min(means) / _SHOWN_FACTOR
    highest = max(means) * _SHOWN_FACTOR
    ends = [end for one in estimates for end in (one.low, one.high) if end is not None]
    return Scale.of([*means, *(min(max(end, lowest), highest) for end in ends)], around=1.0)
