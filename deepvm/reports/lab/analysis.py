"""Tables 2 to 7 of ECRL for a matrix of one's own, in its form and beside its figures.

Then what ECRL does not have.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepvm.lab.matrix import NONE, REFERENCES
from deepvm.lab.results import Cost, Estimate, SuiteResult
from deepvm.reports.lab import findings, published
from deepvm.reports.lab.findings import (
    BASE,
    Findings,
    estimate,
    part_s,
    passing,
    ranks_words,
    variant_words,
)
from deepvm.reports.lab.results import (
    COUNTS,
    interval_words,
    loss_words,
    passed_words,
    variant_document,
)

_OVL = "ovl"
_METRICS: Mapping[str, Callable[[Cost], float]] = {
    "goodput, steps/s": lambda cost: cost.goodput,
    "restarts": lambda cost: float(cost.restarts),
    "wall time, s": lambda cost: cost.wall_s,
    "stall, s": lambda cost: cost.stall_s,
    "write, s": lambda cost: cost.write_s,
    "snapshot, s": lambda cost: cost.snapshot_s,
}


@dataclass(frozen=True)
class Accepted:
    """A suite whose reference, blocking and overlapped runs pass, and these runs, of the same seeds each."""

    suite: SuiteResult
    runs: Mapping[str, Sequence[Cost]]

    def mean(self, name: str, of: Callable[[Cost], float | None]) -> float | None:
        """Of the runs of a variant of which it is known; None without any."""
        found = [value for cost in self.runs.get(name, ()) if (value := of(cost)) is not None]
        return statistics.fmean(found) if found else None

    def ratio(self, name: str, other: str) -> Estimate | None:
        """Of goodputs, by seeds."""
        pairs = zip(self.runs.get(name, ()), self.runs.get(other, ()), strict=False)
        ratios = [one.goodput / two.goodput for one, two in pairs]
        return Estimate.of_ratios(ratios) if ratios else None

    def saved(self, of: Callable[[Cost], float]) -> float:
        """Overlapped less blocking."""
        return statistics.fmean(map(of, self.runs[_OVL])) - statistics.fmean(
            map(of, self.runs[BASE])
        )


def accepted(found: Findings) -> list[Accepted]:
    """Suites that means are taken over."""
    names = [name for name in (found.reference, BASE, _OVL) if name]
    every = [Accepted(suite, found.complete(suite, names)) for suite in found.suites]
    return [one for one in every if one.runs]


def analysis(found: Findings) -> str:
    """All tables as Markdown."""
    suites = accepted(found)
    parts = [
        "# Recovery lab: analysis",
        "",
        f"{passed_words(found.checked)}; made {found.made}.",
        "",
        (
            f"ECRL: {published.ENVIRONMENT}; what stands beside its figures can be compared in its "
            "ratios at most, and only with the same models and data."
        ),
        *(line for doubt in found.doubts() for line in ("", doubt)),
        *_environment(found),
        *_matrix(found),
        *_factors(found),
        *_aggregate(found, suites),
        *_ranking(found, suites),
        *_slices(suites),
        *_variants(found),
        *_left_out(found),
    ]
    return "\n".join(parts) + "\n"


def _table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *notes: str
) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}")
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |"
    for note in notes:
        yield from ("", note)


def _environment(found: Findings) -> Iterator[str]:
    items = dict.fromkeys([*found.environment, *published.MACHINE])
    rows = [
        (item, found.environment.get(item, "-"), published.MACHINE.get(item, "not said"))
        for item in items
    ]
    return _table("Table 2: environment", ("item", "here", "ECRL"), rows)


def _matrix(found: Findings) -> Iterator[str]:
    suites = found.suites
    sizes = {c["dataset"]["name"]: c["dataset_size"] for c in found.configs}
    schedules = {one.failure: found.schedule(one) for one in suites}
    models = {c["model"]["name"]: c["model"] for c in found.configs}
    axes = {
        "data set": [f"{name} ({size} samples)" for name, size in sizes.items()],
        "model": [_model(model) for model in models.values()],
        "failures": [f"{name} ({said})" for name, said in schedules.items()],
        "variant": list(dict.fromkeys(name for one in suites for name in one.variants)),
    }
    paper = dict(zip(axes, published.MATRIX, strict=True))
    rows = [(name, "; ".join(values), len(values), *paper[name]) for name, values in axes.items()]
    rows += [
        ("suites", "-", len(suites), "-", 8),
        (
            "runs, those without failures once",
            "-",
            len(found.records),
            "reference in each suite",
            24,
        ),
    ]
    return _table(
        "Table 3: matrix", ("axis", "values", "count", "values, ECRL", "count, ECRL"), rows
    )


def _model(model: Mapping[str, object]) -> str:
    said = [f"width {model['width']}"] if model.get("width") else []
    said += [f"{model['norm']} norm"] if str(model["name"]).startswith("resnet") else []
    said += [f"dropout {model['dropout']}"] if model.get("dropout") else []
    return f"{model['name']} ({', '.join(said)})" if said else str(model["name"])


def _factors(found: Findings) -> Iterator[str]:
    controlled: Mapping[str, tuple[Callable[[Mapping[str, Any]], object], str]] = {
        "global batch": (lambda c: c["global_batch"], "fixed, not said"),
        "ranks": (ranks_words, "4"),
        "virtual shards": (
            lambda c: c["virtual_shards"] or "none: DistributedDataParallel",
            "none",
        ),
        "steps": (lambda c: c["steps"], "1600"),
        "checkpoint": (lambda c: f"every {c['checkpoint_every']} steps", "every 50 steps"),
        "checkpoints in flight": (lambda c: f"at most {c['max_inflight']}", "at most 4"),
        "launcher": (lambda c: c["launcher"], "torchrun"),
    }
    rows = []
    for factor, (of, paper) in controlled.items():
        values = found.values(of)
        rows.append(
            (factor, "controlled" if len(values) == 1 else "varied", "; ".join(values), paper)
        )
    rows.append(("strategy, failures, data set, model", "varied", "table 3", "the same"))
    seeds = found.values(lambda config: config["seed"])
    rows.append(("seeds", "repeated" if len(seeds) > 1 else "controlled", ", ".join(seeds), "one"))
    return _table(
        "Table 4: controlled and varied factors", ("factor", "role", "here", "ECRL"), rows
    )


def _over(suites: Sequence[Accepted], of: Callable[[Accepted], float | None]) -> float | None:
    """A mean over suites; None if one lacks it."""
    values = [value for one in suites if (value := of(one)) is not None]
    return statistics.fmean(values) if values and len(values) == len(suites) else None


def _change(one: Accepted, name: str, other: str) -> float | None:
    ratio = one.ratio(name, other)
    return None if ratio is None else ratio.mean - 1


def _aggregate(found: Findings, suites: Sequence[Accepted]) -> Iterator[str]:
    columns = (found.reference, BASE, _OVL)
    rates = [_pass_rate(found, name) for name in columns]
    rows = [("pass rate", *map(_number, rates), "-", *map(_number, published.PASS_RATE), "-")]
    for name, of in _METRICS.items():
        values = [_over(suites, lambda one, of=of, c=c: one.mean(c, of)) for c in columns]  # type: ignore[misc]
        paper = published.AGGREGATE[name]
        if name.startswith("goodput"):
            shown, said = (
                _percent(_over(suites, lambda one: _change(one, _OVL, BASE))),
                f"{published.GAIN:+.4%}",
            )
        else:
            shown, said = _difference(values[2], values[1]), _difference(paper[2], paper[1])
        rows.append((name, *map(_number, values), shown, *map(_number, paper), said))
        if name.startswith("goodput"):
            drops = [
                _over(suites, lambda one, c=c: _change(one, c, found.reference))  # type: ignore[misc]
                for c in columns
            ]
            points = (
                "-"
                if drops[1] is None or drops[2] is None
                else f"{100 * (drops[2] - drops[1]):+.4f} pp"
            )
            first, second = published.DROPS
            paper_points = f"{100 * (second - first):+.4f} pp"
            rows.append(
                (
                    "over reference",
                    *map(_percent, drops),
                    points,
                    "-",
                    *map(_percent, (first, second)),
                    paper_points,
                )
            )
    losses = [_loss(suites, name) for name in columns]
    rows.append(
        ("loss difference", *map(_number, losses), _difference(losses[2], losses[1]), "-")
        + (*map(_number, published.LOSS_DIFFERENCE), _difference(*published.LOSS_DIFFERENCE[::-1]))
    )
    head = ["metric", "reference", "blocking", "overlapped", "ovl-blk"]
    head += [f"{name}, ECRL" for name in head[1:]]
    notes = [_reference_note(found), _accepted_note(found, suites), _gain_note(suites)]
    return _table("Table 5: means over suites", head, rows, *filter(None, notes))


def _pass_rate(found: Findings, name: str) -> float | None:
    costs = [cost for one in found.suites for cost in one.variants.get(name, ())]
    return statistics.fmean(cost.passed for cost in costs) if costs else None


def _loss(suites: Sequence[Accepted], name: str) -> float | None:
    return _over(suites, lambda one: one.mean(name, lambda cost: cost.loss_difference))


def _reference_note(found: Findings) -> str:
    if not found.reference:
        return "The matrix has no reference: neither ref-blk nor none."
    return (
        f"Reference: {found.reference}, {findings.REFERENCES[found.reference]}; the same runs in"
        " all suites of a model."
    )


def _accepted_note(found: Findings, suites: Sequence[Accepted]) -> str:
    if not suites:
        return (
            "No suite has blocking, overlapped and reference runs that pass with the same seed: no"
            " means."
        )
    left_out = len(found.suites) - len(suites)
    text = f"Means over {len(suites)} of {len(found.suites)} suites"
    if left_out:
        text += (
            "; in the others reference, blocking or overlapped do not all pass, or are not there"
        )
    return f"{text}. Percentages are means of those of the suites, as in ECRL."


def _gain_note(suites: Sequence[Accepted]) -> str:
    """The gain of overlapped with an interval over seeds: suites are chosen, seeds are drawn."""
    seeds = [{cost.seed for cost in one.runs[BASE]} for one in suites]
    common = sorted(set.intersection(*seeds)) if seeds else []
    if len(common) < 2:
        return ""
    gains = []
    for seed in common:
        pairs = [
            [next(c for c in one.runs[n] if c.seed == seed) for n in (_OVL, BASE)] for one in suites
        ]
        gains.append(100 * (statistics.fmean(ovl.goodput / blk.goodput for ovl, blk in pairs) - 1))
    found = Estimate.of(gains)
    text = f"Overlapped over blocking, mean of the suites, % (95 % interval over {found.n} seeds)"
    return f"{text}: {interval_words(found, 2)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4%}"


def _difference(value: float | None, other: float | None) -> str:
    return "-" if value is None or other is None else f"{value - other:+.4f}"


def _ranking(found: Findings, suites: Sequence[Accepted]) -> Iterator[str]:
    known = {(one.dataset, one.model, one.failure): one for one in published.SUITES}
    gains = [(one.ratio(_OVL, BASE), one) for one in suites]
    rows = []
    for gain, one in sorted(gains, key=lambda pair: -(pair[0].mean if pair[0] else 0.0)):
        suite = one.suite
        paper = known.get((suite.dataset, suite.model, suite.failure))
        rows.append(
            (
                *(suite.dataset, suite.model, f"{suite.failure} ({found.schedule(suite)})"),
                *(
                    _number(one.mean(name, lambda cost: cost.goodput))
                    for name in (found.reference, BASE, _OVL)
                ),
                _gain(gain),
                *(_percent(_change(one, name, found.reference)) for name in (BASE, _OVL)),
                f"{one.saved(lambda cost: cost.stall_s):+.4f}",
                gain.n if gain else 0,
                "-" if paper is None else f"{paper.gain:+.4%}",
                (
                    "-"
                    if paper is None
                    else f"{paper.overlapped_stall_s - paper.blocking_stall_s:+.4f}"
                ),
            )
        )
    head = [
        "data set",
        "model",
        "failures",
        "ref",
        "blk",
        "ovl",
        "ovl over blk",
        "blk over ref",
        "ovl over ref",
    ]
    head += ["stall ovl-blk, s", "seeds", "ovl over blk, ECRL", "stall ovl-blk, s, ECRL"]
    note = (
        "Goodput in steps/s; in brackets the 95 % interval of paired ratios. ECRL: base is 400,"
        " 1200, late 800, 1400."
    )
    return _table("Table 6: suites by the gain of overlapped over blocking", head, rows, note)


def _gain(ratio: Estimate | None) -> str:
    if ratio is None:
        return "-"
    text = f"{ratio.mean - 1:+.4%}"
    if ratio.low is None or ratio.high is None:
        return f"{text} (n = {ratio.n})"
    return f"{text} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})"


def _slices(suites: Sequence[Accepted]) -> Iterator[str]:
    rows = []
    for axis in ("dataset", "model", "failure"):
        for value in dict.fromkeys(getattr(one.suite, axis) for one in suites):
            some = [one for one in suites if getattr(one.suite, axis) == value]
            losses = [_loss(some, name) for name in (BASE, _OVL)]
            paper = published.SLICES.get((axis, value))
            rows.append(
                (
                    *(axis, value, len(some)),
                    _percent(_over(some, lambda one: _change(one, _OVL, BASE))),
                    (
                        f"{statistics.fmean(one.saved(lambda cost: cost.stall_s) for one in some):+.4f}"
                    ),
                    _difference(losses[1], losses[0]),
                    *(
                        ("-",) * 3
                        if paper is None
                        else (f"{paper[0]:+.4%}", f"{paper[1]:+.4f}", f"{paper[2]:+.4f}")
                    ),
                )
            )
    head = ["slice", "group", "suites", "ovl over blk", "stall ovl-blk, s", "loss ovl-blk"]
    head += ["ovl over blk, ECRL", "stall ovl-blk, s, ECRL", "loss ovl-blk, ECRL"]
    return _table("Table 7: means of slices", head, rows)


def _variants(found: Findings) -> Iterator[str]:
    """Each variant with intervals, and with what its recovery is made of: ECRL has neither."""
    rows = []
    for suite in found.suites:
        for name, costs in suite.variants.items():
            good, ratio = passing(costs), suite.paired.get(f"{name}_over_{BASE}")
            per_restart = [
                estimate(costs, lambda cost, part=part: part_s(cost, part))  # type: ignore[misc]
                for part in findings.PARTS
            ]
            one = variant_document(costs)
            rows.append(
                (
                    f"{suite.dataset}-{suite.model}-{suite.failure}",
                    variant_words(suite, name),
                    f"{len(good)} of {len(costs)}",
                    interval_words(estimate(costs, lambda cost: cost.goodput), 3),
                    "-" if ratio is None else interval_words(ratio, 3),
                    *("-" if one[key] is None else f"{one[key]:.4g}" for key in COUNTS),
                    interval_words(estimate(costs, lambda cost: cost.stall_s), 3),
                    "-" if one["drain_s"] is None else f"{one['drain_s']:.3f}",
                    *("-" if found is None else f"{found.mean:.3f}" for found in per_restart),
                    loss_words(one, ".6g"),
                )
            )
    head = [
        "suite",
        "variant",
        "passed",
        "goodput, steps/s",
        "over blocking, paired",
        "saved",
        "skipped",
    ]
    head += ["stall, s", "drain after the last step, s"]
    head += [*(f"{part}, s a restart" for part in findings.PARTS), "loss difference"]
    calm = ", ".join((NONE, *REFERENCES))
    note = (
        f"Runs without failures ({calm}) are made once and stand in each suite of their model. "
        "In brackets: 95 % intervals of Student's t, of ratios over their logarithms."
    )
    return _table("All variants, with intervals and the parts of a recovery", head, rows, note)


def _left_out(found: Findings) -> Iterator[str]:
    rows = list(dict.fromkeys(row for suite in found.suites for row in found.left_out(suite)))
    return (
        _table("Left out: runs that do not pass all gates", ("run", "why"), rows)
        if rows
        else iter(())
    )
