"""What a matrix has shown as a page for a browser: one file, no network, no scripts.

The verdict comes first.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

from deepvm.core.units import counted
from deepvm.lab.audit.gates import GATES
from deepvm.lab.audit.publication import publishable
from deepvm.lab.matrix import CALM
from deepvm.lab.records import RUNS
from deepvm.lab.results import Cost, Estimate, SuiteResult
from deepvm.reports.lab.analysis import accepted
from deepvm.reports.lab.figures import over_reference, stall_and_gain, suite_name
from deepvm.reports.lab.findings import (
    BASE,
    PARTS,
    REFERENCES,
    Findings,
    estimate,
    passing,
    ranks_words,
    recovery_s,
    variant_words,
)
from deepvm.reports.lab.lab_charts import bars, forest, keys, ratio_scale, scatter
from deepvm.reports.lab.results import (
    COUNTS,
    interval_words,
    loss_words,
    passed_words,
    variant_document,
)
from deepvm.reports.markup import Html, joined, table, tag
from deepvm.reports.page_frame import PageTemplate, beside
from deepvm.reports.plans.page_parts import listing, section, wide
from deepvm.reports.terminal import visible

PAGE = "report.html"
_SPENT: Mapping[str, tuple[str, Callable[[Cost], float]]] = {
    "compute": ("steps that count", lambda cost: cost.compute_s - cost.repeated_s),
    "recompute": ("steps done again", lambda cost: cost.repeated_s),
    "save": ("stalls of checkpoints", lambda cost: cost.stall_s),
    "detect": ("until a failure is seen", lambda cost: cost.detect_s or 0.0),
    "restart": ("until ranks are back", lambda cost: cost.restart_s or 0.0),
    "restore": ("restoring", lambda cost: cost.restore_s or 0.0),
}
"""Parts of a run's time that exclude one another, by style."""
_PROVEN = (
    "Each training used exactly the samples it should have, and ended with the parameters that it"
    " would have had without failures, bit for bit."
)
_RIGHT = (
    "Right of the line: more steps a second than blocking, with the same seed. Intervals that reach"
    " beyond the picture are cut off; the table has their ends."
)
_REST = ("rest", "the rest: first start, waits for other ranks, steps that failures cut off")


@dataclass(frozen=True)
class LabPage:
    """The page. ``figures``: files of pictures to link to. ``version``: of deepvm."""

    found: Findings
    figures: Sequence[str] = ()
    version: str = ""

    def render(self) -> str:
        """The whole page, in ASCII."""
        content = [
            tag("a", "Skip to the verdict", class_="skip", href="#gates"),
            tag("header", *self._head()),
            tag("main", *self._sections()),
            tag(
                "footer", tag("p", f"Written by deepvm {self.version}; runs of {self.found.made}.")
            ),
        ]
        return PageTemplate(beside(__file__, "lab_page.css"), Html("")).page(
            f"{self._verdict} - deepvm lab", content
        )

    @cached_property
    def _verdict(self) -> str:
        return passed_words(self.found.checked)

    def _head(self) -> Iterator[Html]:
        bad = bool(self.found.checked.failures)
        whole = not bad and not self.found.checked.left_out
        word = "proven" if whole else "not proven" if bad else "incomplete"
        badge = tag("span", word, class_=f"badge {'good' if whole else 'bad'}")
        yield tag("h1", self._verdict, " ", badge)
        if bad:
            runs = len(self.found.checked.runs) - self.found.checked.passed
            gates = ", ".join(dict.fromkeys(gate for _, gate, _ in self.found.checked.failures))
            yield tag(
                "p",
                f"{counted(runs, 'run')} did not resume correctly; gates that fail: {gates}.",
                class_="alarm",
            )
        elif whole:
            yield tag("p", _PROVEN)
        names = ", ".join(self.found.values(lambda config: config["matrix"]))
        yield tag(
            "p",
            visible(f"Matrix {names}: {counted(len(self.found.suites), 'suite')}."),
            class_="quiet",
        )

    def _sections(self) -> Iterator[Html]:
        yield section("gates", "Gates", *self._gates())
        yield section("doubts", "Before you use the numbers", listing(self._doubts()))
        for number, suite in enumerate(self.found.suites, 1):
            yield section(f"suite-{number}", visible(suite_name(suite)), *self._suite(suite))
        yield section("figures", "Figures over all suites", *self._figures())
        yield section("environment", "How the runs were made", *self._environment())
        yield section("files", "Files", *self._files())

    # --- verdict ----------------------------------------------------------------------------------

    def _gates(self) -> Iterator[Html]:
        checked = self.found.checked
        rows = []
        for name, gate in GATES.items():
            passed, failed = checked.of_gate(name)
            badge = _badge("fail" if failed else "pass")
            rows.append(
                [
                    name,
                    (inspect.getdoc(gate) or "").partition("\n")[0],
                    f"{passed}",
                    f"{failed}",
                    badge,
                ]
            )
        made = table(
            "Each run against each gate",
            ["gate", "what it asks", "passed", "failed", ""],
            rows,
            class_="gates",
        )
        yield wide(made, "Gates")
        if checked.failures:
            made = table(
                "What fails, and why",
                ["run", "gate", "fails, too", "reason"],
                self._failing(),
                class_="failing",
            )
            yield wide(made, "What fails", tall=True)

    def _failing(self) -> list[list[str]]:
        """A row for each run that fails: its first gate says the most, and others often follow from it."""
        by_run: dict[str, list[tuple[str, str]]] = {}
        for run, gate, why in self.found.checked.failures:
            by_run.setdefault(run, []).append((gate, why))
        return [
            [
                _run_link(run),
                found[0][0],
                ", ".join(gate for gate, _ in found[1:]) or "-",
                visible(found[0][1]),
            ]
            for run, found in by_run.items()
        ]

    def _doubts(self) -> list[str]:
        reference = self.found.reference
        said = [f"The reference is {reference}: {REFERENCES[reference]}."] if reference else []
        return [
            *said,
            (
                "Intervals are 95 % by Student's t over seeds; ratios are paired by seed, means of"
                " their logarithms. They say nothing about another machine."
            ),
            (
                "Runs without failures are made once, and stand in each suite of their data set and"
                " model."
            ),
            *map(visible, self.found.doubts()),
        ]

    # --- suites -----------------------------------------------------------------------------------

    def _suite(self, suite: SuiteResult) -> Iterator[Html]:
        yield tag("p", visible(f"Failures: {self.found.schedule(suite)}."))
        ratios = [
            (name, suite.paired[key], f"{name}: {_pairs(suite.paired[key])}")
            for name in suite.variants
            if (key := f"{name}_over_{BASE}") in suite.paired
        ]
        if ratios:
            yield tag("h3", "Goodput over blocking")
            yield tag("p", _RIGHT, class_="quiet")
            yield forest("Goodput over blocking, by variant", ratios)
        yield wide(self._costs(suite), f"Costs of {suite_name(suite)}")
        spent = [
            (name, _spent(good))
            for name, costs in suite.variants.items()
            if (good := passing(costs))
        ]
        if spent:
            yield tag("h3", "Where the time of a run went, seconds")
            yield keys([*((kind, text) for kind, (text, _) in _SPENT.items()), _REST])
            yield bars("Where the time of a run went, by variant", spent, "s")
        if suite.failure != CALM:
            yield wide(self._recovery(suite), f"Recovery of {suite_name(suite)}")
        left_out = self.found.left_out(suite)
        if left_out:
            yield tag("p", "In no number above, because they do not pass all gates:")
            yield tag(
                "ul",
                *(tag("li", _run_link(run), f": {visible(_first(why))}") for run, why in left_out),
            )
        links = [tag("a", form, href=quote(publishable(suite, form))) for form in ("json", "md")]
        yield tag("p", "To publish: ", links[0], ", ", links[1], ".")

    def _costs(self, suite: SuiteResult) -> Html:
        rows = []
        for name, costs in suite.variants.items():
            one, ratio = variant_document(costs), suite.paired.get(f"{name}_over_{BASE}")
            stall, goodput = (
                estimate(costs, of) for of in (lambda c: c.stall_s, lambda c: c.goodput)
            )
            rows.append(
                [
                    variant_words(suite, name),
                    _badge(one["audit"]),
                    f"{one['goodput']['n']} of {len(costs)}",
                    interval_words(goodput, 2),
                    "1" if name == BASE else "-" if ratio is None else _pairs(ratio),
                    *("-" if one[key] is None else f"{one[key]:.4g}" for key in COUNTS),
                    interval_words(stall, 3),
                    *(
                        _seconds(one[key])
                        for key in ("drain_s", "write_s", "snapshot_s", "background_s")
                    ),
                    loss_words(one, ".3g"),
                ]
            )
        head = ["variant", "audit", "runs that count", "goodput, steps/s", "over blocking, paired"]
        head += [
            "saved",
            "skipped",
            "stall, s",
            "drain after the last step, s",
            "write, s",
            "snapshot, s",
        ]
        head += ["write beside training, s", "loss difference"]
        return table("What checkpoints cost: means per run, over runs that pass", head, rows)

    def _recovery(self, suite: SuiteResult) -> Html:
        rows = []
        for name, costs in suite.variants.items():
            good = [cost for cost in passing(costs) if cost.restarts]
            if not good:
                continue
            one = variant_document(good)
            whole = estimate(good, recovery_s)
            parts = (one["recovery_s"][part] for part in PARTS)
            rows.append(
                [
                    name,
                    f"{one['restarts']:g}",
                    *map(_seconds, parts),
                    _seconds(one["repeated_s"]),
                    interval_words(whole, 2),
                ]
            )
        head = [
            "variant",
            "restarts",
            *(f"{part}, s" for part in PARTS),
            "steps done again, s",
            "whole recovery, s per restart",
        ]
        return table("What failures cost: means per run, over runs that pass", head, rows)

    # --- all suites -------------------------------------------------------------------------------

    def _figures(self) -> Iterator[Html]:
        found = self.found
        every = {suite_name(suite): over_reference(found, suite) for suite in found.suites}
        scale = ratio_scale(one for ratios in every.values() for one in ratios.values())
        if any(every.values()):
            yield tag("h3", f"Goodput over {found.reference} (ECRL, figure 2)")
        for suite, ratios in every.items():
            if ratios:
                yield tag("p", visible(suite), class_="quiet")
                rows = [(name, one, f"{name}: {_pairs(one)}") for name, one in ratios.items()]
                yield forest(f"Goodput over {found.reference}, {suite}", rows, scale)
        gains = [
            (one, gain) for one in accepted(found) if (gain := one.ratio("ovl", BASE)) is not None
        ]
        if not gains:
            yield tag(
                "p", "No suite has overlapped and blocking runs that pass with the same seed."
            )
            return
        yield tag("h3", "Gain of overlapped over blocking (ECRL, figure 3)")
        texts = [
            (suite_name(one.suite), gain, f"{suite_name(one.suite)}: {_pairs(gain)}")
            for one, gain in gains
        ]
        yield forest("Goodput of overlapped over blocking, by suite", texts)
        yield tag("h3", "Stall saved and goodput gained by overlapped (ECRL, figure 4)")
        points = [(suite_name(one.suite), *stall_and_gain(one)) for one, _ in gains]
        tips = [(x, y, f"{name}: {x:.3f} s, {y:+.2f} %") for name, x, y in points]
        yield scatter(
            "Stall saved against goodput gained",
            tips,
            "seconds of stall saved a run",
            "goodput gained, %",
        )
        cells = [[name, f"{x:+.3f}", f"{y:+.2f}"] for name, x, y in points]
        head = ["suite", "stall saved, s a run", "goodput gained, %"]
        yield wide(table("The same as numbers", head, cells), "Stall saved and goodput gained")

    def _environment(self) -> Iterator[Html]:
        rows = [[item, visible(value)] for item, value in self.found.environment.items()]
        yield wide(
            table("Machine and versions", ["item", "value"], rows, class_="texts"),
            "Machine and versions",
        )
        factors = {
            "ranks": ranks_words,
            "global batch": lambda c: c["global_batch"],
            "steps": lambda c: c["steps"],
            "checkpoint": lambda c: f"every {c['checkpoint_every']} steps",
            "checkpoints in flight": lambda c: f"at most {c['max_inflight']}",
            "seeds": lambda c: c["seed"],
            "launcher": lambda c: c["launcher"],
            "samples": lambda c: f"{c['dataset']['name']} {c['dataset_size']}",
        }
        rows = [[name, visible(", ".join(self.found.values(of)))] for name, of in factors.items()]
        yield wide(table("Matrix", ["factor", "values"], rows, class_="texts"), "Matrix")

    def _files(self) -> Iterator[Html]:
        names = ["manifest.csv", "summary.csv", "detailed_table.csv", "analysis.md", *self.figures]
        yield tag("p", *_commas([tag("a", name, href=quote(name)) for name in names]))
        if not self.figures:
            yield tag(
                "p",
                "Pictures for a paper are not there: they need matplotlib, pip install"
                " 'deepvm[plot]'.",
            )
        runs = [_run_link(name) for name in self.found.checked.runs]
        yield tag(
            "details",
            tag("summary", f"Folders of all {len(runs)} runs"),
            tag("ul", *(tag("li", r) for r in runs)),
        )


def _first(why: str) -> str:
    """The first gate; the table of gates has the others."""
    return why.partition("; ")[0]


def _spent(good: Sequence[Cost]) -> list[tuple[str, float, str]]:
    parts = [(kind, statistics.fmean(map(of, good)), text) for kind, (text, of) in _SPENT.items()]
    rest = statistics.fmean(cost.wall_s for cost in good) - sum(size for _, size, _ in parts)
    return [*parts, (_REST[0], max(rest, 0.0), "the rest")]


def _pairs(ratio: Estimate) -> str:
    text = interval_words(ratio, 3)
    return text if ratio.low is None else f"{text}, {counted(ratio.n, 'pair')}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _badge(verdict: str) -> Html:
    return tag("span", verdict, class_=f"badge {'good' if verdict == 'pass' else 'bad'}")


def _run_link(name: str) -> Html:
    return tag("a", visible(name), href=f"{RUNS}/{quote(name)}/")


def _commas(parts: Sequence[Html]) -> list[Html]:
    return [joined(", ", part) if place else part for place, part in enumerate(parts)]
