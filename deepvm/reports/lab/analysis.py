"""Tables 2 to 7 of ECRL for a matrix of one's own, in its form; where the same suites were run, beside its figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deepvm.lab.results import Cost, Estimate, SuiteResult
from deepvm.reports.lab.published import AGGREGATE, SLICES, SUITES

_REFERENCES = ("ref-blk", "none")
_METRICS: Mapping[str, Callable[[Cost], float]] = {
    "goodput, steps/s": lambda cost: cost.goodput,
    "restarts": lambda cost: float(cost.restarts),
    "wall time, s": lambda cost: cost.wall_s,
    "stall, s": lambda cost: cost.stall_s,
    "write, s": lambda cost: cost.write_s,
    "snapshot, s": lambda cost: cost.snapshot_s,
}


def analysis(suites: Sequence[SuiteResult], config: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """All tables as Markdown. ``config``: of one run; what is the same in all of them is read from it."""
    parts = [
        "# Recovery lab: analysis",
        *_table("Table 2: environment", ("item", "value"), environment.items()),
        *_matrix(suites),
        *_factors(suites, config),
        *_aggregate(suites),
        *_ranking(suites),
        *_slices(suites),
    ]
    return "\n".join(parts) + "\n"


def _table(title: str, head: Sequence[str], rows: Any, *notes: str) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}")
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    for note in notes:
        yield from ("", note)


def _matrix(suites: Sequence[SuiteResult]) -> Iterator[str]:
    axes = {
        "data set": dict.fromkeys(one.dataset for one in suites),
        "model": dict.fromkeys(one.model for one in suites),
        "failures": dict.fromkeys(one.failure for one in suites),
        "variant": dict.fromkeys(name for one in suites for name in one.variants),
    }
    runs = sum(len(costs) for one in suites for costs in one.variants.values())
    rows = [(name, "; ".join(values), len(values)) for name, values in axes.items()]
    rows += [("suites", "-", len(suites)), ("runs, shared ones counted in each suite", "-", runs)]
    return _table("Table 3: matrix", ("axis", "values", "count"), rows)


def _factors(suites: Sequence[SuiteResult], config: Mapping[str, Any]) -> Iterator[str]:
    seeds = sorted({cost.seed for one in suites for costs in one.variants.values() for cost in costs})
    worlds = "; ".join(f"{world} from step {step} on" if step else str(world) for step, world in config["worlds"])
    rows = [
        ("global batch", "controlled", config["global_batch"]),
        ("ranks", "controlled", worlds),
        ("steps", "controlled", config["steps"]),
        ("a checkpoint each", "controlled", f"{config['checkpoint_every']} steps"),
        ("checkpoints in flight", "controlled", f"at most {config['max_inflight']}"),
        ("launcher", "controlled", config["launcher"]),
        ("strategy, failures, data set, model", "varied", "Table 3"),
        ("seeds", "repeated", ", ".join(map(str, seeds))),
    ]
    return _table("Table 4: controlled and varied factors", ("factor", "role", "treatment"), rows)


def _of(suite: SuiteResult, names: Sequence[str]) -> Sequence[Cost]:
    return next((suite.variants[name] for name in names if name in suite.variants), ())


def _mean(suites: Sequence[SuiteResult], names: Sequence[str], of: Callable[[Cost], float]) -> float | None:
    """A mean over suites, each the mean of its seeds; None if one lacks it."""
    found = [statistics.fmean(of(cost) for cost in costs) for one in suites if (costs := _of(one, names))]
    return statistics.fmean(found) if found and len(found) == len(suites) else None


def _aggregate(suites: Sequence[SuiteResult]) -> Iterator[str]:
    columns = (_REFERENCES, ("blk",), ("ovl",))
    metrics = {"pass rate": lambda cost: float(cost.passed), **_METRICS}
    rows = []
    for name, of in metrics.items():
        values = [_mean(suites, names, of) for names in columns]
        published = AGGREGATE[name]
        difference = None if values[1] is None or values[2] is None else values[2] - values[1]
        if name.startswith("goodput"):
            shown = "-" if difference is None or not values[1] else f"{100 * difference / values[1]:+.2f} %"
            paper = f"{100 * (published[2] / published[1] - 1):+.2f} %"
        else:
            shown = "-" if difference is None else f"{difference:+.3f}"
            paper = f"{published[2] - published[1]:+.3f}"
        rows.append((name, *map(_number, values), shown, *map(_number, published), paper))
    head = (
        "metric",
        "reference",
        "blocking",
        "overlapped",
        "ovl-blk",
        *(f"{n}, ECRL" for n in ("reference", "blocking", "overlapped", "ovl-blk")),
    )
    note = "ECRL: CIFAR, ResNet-18 and ResNet-50 on four RTX 4090. Compare ratios only, of the same models only."
    return _table("Table 5: means over all suites", head, rows, note)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _gain(suite: SuiteResult) -> Estimate | None:
    return suite.paired.get("ovl_over_blk")


def _ranking(suites: Sequence[SuiteResult]) -> Iterator[str]:
    known = {(one.dataset, one.model, one.failure): one for one in SUITES}
    ranked = sorted(suites, key=lambda one: -(gain.mean if (gain := _gain(one)) else 0.0))
    rows = []
    for one in ranked:
        gain, paper = _gain(one), known.get((one.dataset, one.model, one.failure))
        goodputs = [_mean([one], names, _METRICS["goodput, steps/s"]) for names in (_REFERENCES, ("blk",), ("ovl",))]
        stalls = [_mean([one], names, _METRICS["stall, s"]) for names in (("blk",), ("ovl",))]
        less = None if None in stalls else float(stalls[1] or 0.0) - float(stalls[0] or 0.0)
        rows.append(
            (
                *(one.dataset, one.model, one.failure),
                *map(_number, goodputs),
                "-" if gain is None else _percent(gain),
                "-" if less is None else f"{less:+.3f}",
                "-" if paper is None else f"{100 * paper.gain:+.2f} %",
            )
        )
    head = ("data set", "model", "failures", "ref", "blk", "ovl", "ovl over blk", "stall, s", "ovl over blk, ECRL")
    return _table("Table 6: suites by the gain of overlapped over blocking", head, rows)


def _percent(ratio: Estimate) -> str:
    text = f"{100 * (ratio.mean - 1):+.2f} %"
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} ({100 * (ratio.low - 1):+.2f} to {100 * (ratio.high - 1):+.2f})"


def _slices(suites: Sequence[SuiteResult]) -> Iterator[str]:
    rows = []
    for axis in ("dataset", "model", "failure"):
        for value in dict.fromkeys(getattr(one, axis) for one in suites):
            some = [one for one in suites if getattr(one, axis) == value]
            gains = [gain.mean - 1 for one in some if (gain := _gain(one)) is not None]
            stalls = [_mean(some, names, _METRICS["stall, s"]) for names in (("blk",), ("ovl",))]
            less = None if None in stalls else float(stalls[1] or 0.0) - float(stalls[0] or 0.0)
            paper = SLICES.get((axis, value))
            rows.append(
                (
                    *(axis, value, len(some)),
                    "-" if not gains else f"{100 * statistics.fmean(gains):+.2f} %",
                    "-" if less is None else f"{less:+.3f}",
                    "-" if paper is None else f"{100 * paper[0]:+.2f} %, {paper[1]:+.3f} s",
                )
            )
    head = ("slice", "group", "suites", "ovl over blk", "stall, s", "ECRL")
    return _table("Table 7: means of slices", head, rows)
