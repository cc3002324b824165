"""A fitted step-time law: its parameters, what dominates a step, predictions, doubts, and a picture."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.interval import Z80
from deepvm.core.training.steptime import REACH, FloatArray
from deepvm.core.units import counted
from deepvm.profiling.fit.step_fit import Prediction, Shares, StepFit
from deepvm.reports.pictures import MEASURED, STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 100
_DECADES = np.log(50.0)  # steps that differ more are drawn on a logarithmic scale
_ALIKE = 1.25  # times that are not further apart are about as long
_PART, _NAME = Column("part of a step"), Column("parameter", drop=1)
_VALUE = Column("value", "right")


def print_step_fit(fit: StepFit, name: str) -> None:
    """What was measured, the law, how well it fits, what dominates, predictions and warnings."""
    print_lines([*_wrapped(f"{short(name)}: {_counts(fit)}"), ""])
    print_items(list(_parameters(fit)), also="-o json")
    print_lines(["", *(line for text in _sentences(fit) for line in _wrapped(text))])
    if fit.predictions:
        print_lines([""])
        print_items([_row(prediction) for prediction in fit.predictions], also="-o json")
    if fit.warnings:
        ended = (text if text.endswith("?") else f"{text}." for text in fit.warnings)
        print_lines(["", *(line for text in ended for line in _wrapped(f"Warning: {text}"))])


def _counts(fit: StepFit) -> str:
    known = fit.measured
    vms = _range(known.nodes[0], known.nodes[-1], "VM")
    return (
        f"{counted(len(fit.steps), 'measured step')} of {vms}, {_range(*known.gpus, 'GPU')}, "
        f"{_range(*known.batch, 'sample')} on each"
    )


def _range(low: float, high: float, word: str) -> str:
    return (
        f"{low:g} to {high:g} {word}s"
        if low < high
        else f"{high:g} {word}{'' if high == 1 else 's'}"
    )


def _parameters(fit: StepFit) -> Iterator[dict[Column, str]]:
    law, known = fit.fitted.law, fit.measured
    more = bool((fit.steps.gpus[fit.steps.nodes > 1] > 2).any())
    rows = [
        ("gradients on each GPU, whatever the batch", "grad_fixed", True),
        ("gradients, for each sample", "grad_per_sample", True),
        ("synchronisation of 2 GPUs of one VM", "local_fixed", known.local),
        ("  for each GPU more", "local_per_gpu", max(known.local_gpus, default=1) > 2),
        ("synchronisation of 2 GPUs of two VMs", "network_fixed", known.several > 0),
        ("  for each GPU more", "network_per_gpu", more),
    ]
    for text, name, is_known in rows:
        yield {
            _PART: text,
            _NAME: name,
            _VALUE: seconds(getattr(law, name)) if is_known else "not measured",
        }
    both = known.local or known.several > 0
    overlap = f"{law.overlap:.3g}" if both else "not measured"
    slower = f"K^{round(law.straggling, 4):.3g}" if both else "not measured"
    yield {_PART: "overlap of the two: 1 none, 10 nearly whole", _NAME: "overlap", _VALUE: overlap}
    yield {_PART: "gradients wait for the slowest of K GPUs", _NAME: "straggling", _VALUE: slower}


def _sentences(fit: StepFit) -> Iterator[str]:
    fitted = fit.fitted
    yield (
        f"Fit: half of the measured steps are within {_off(fitted.error)} of the law, four of five"
        f" within {_off(fit.most_off)}. The law is to be believed up to {_trusted(fit)}."
    )
    low, high = fit.measured.batch
    shares = [fit.shares(batch) for batch in ((low, high) if low < high else (high,))]
    at = shares[0].asked
    yield (
        f"At the largest measured cluster, {counted(at.nodes, 'VM')} with {counted(at.gpus, 'GPU')}"
        " together: " + "; ".join(map(_dominates, shares)) + "."
    )


def _trusted(fit: StepFit) -> str:
    fitted = fit.fitted
    most = (
        f"{counted(int(REACH * fitted.most_nodes), 'VM')} and"
        f" {counted(int(REACH * fitted.most_gpus), 'GPU')}"
    )
    return f"{REACH} x what was measured, {most}"


def _off(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 1 else f"a factor of {1 + share:.3g}"


def _dominates(shares: Shares) -> str:
    step = f"with a batch of {shares.asked.batch:g}, a step takes {seconds(shares.step_s)}"
    grad, sync = seconds(shares.grad_s), seconds(shares.sync_s)
    if shares.sync_s <= 0:
        return f"{step}, all of it gradients"
    if max(shares.grad_s, shares.sync_s) <= _ALIKE * min(shares.grad_s, shares.sync_s):
        return f"{step}, gradients ({grad}) about as long as synchronisation ({sync})"
    if shares.grad_s > shares.sync_s:
        return f"{step}, dominated by gradients ({grad}; synchronisation {sync})"
    return f"{step}, dominated by synchronisation ({sync}; gradients {grad})"


def _row(prediction: Prediction) -> dict[Column, str]:
    asked, step, rate = prediction.asked, prediction.step_s, prediction.throughput
    return {
        Column("VMs", "right"): str(asked.nodes),
        Column("GPUs", "right"): str(asked.gpus),
        Column("batch", "right"): f"{asked.batch:g}",
        Column("step", "right"): seconds(step.value),
        Column("80 % interval", "right", drop=3): f"{seconds(step.low)} to {seconds(step.high)}",
        Column("samples/s", "right"): _rate(rate.value),
        Column("80 % interval of it", "right", drop=2): f"{_rate(rate.low)} to {_rate(rate.high)}",
        Column("", drop=1): "extrapolated" if prediction.extrapolated else "",
    }


def seconds(value: float) -> str:
    """Three digits in s, ms or us: steps last from microseconds to minutes."""
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    unit, size = next(((unit, size) for unit, size in units if value >= 0.9995 * size), units[-1])
    scaled = value / size
    return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:.0f} {unit}"


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}" if value < 1e7 else f"{value:.3g}"


def _wrapped(text: str) -> list[str]:
    width = min(_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDTH
    kept = re.sub(r"(\d) ([a-zA-Z%])", "\\1\0\\2", text)  # a number and its unit stay together
    lines = textwrap.wrap(
        kept, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def step_figure(fit: StepFit, *, name: str) -> Figure:
    """Step time against GPUs, a line for each of at most four batches.

    VMs are filled one after the other.

    Measured steps of such clusters are points, those of clusters with fewer GPUs on each VM are
    fainter. The shade is the 80 % interval of the smallest batch. Raises MissingExtraError without
    matplotlib.
    """
    known, law = fit.measured, fit.fitted.law
    asked = [p.asked.gpus for p in fit.predictions]
    most = max(known.gpus[1], *asked) if asked else known.gpus[1]
    gpus = np.unique(np.round(np.geomspace(1, most, 200)))  # there are no clusters of 1.5 GPUs
    nodes = np.ceil(gpus / known.most_per_vm)
    with drawing(8.0, 5.4) as (figure, axes):
        for place, (batch, style) in enumerate(zip(_some_batches(fit), STYLES, strict=False)):
            at = np.full_like(gpus, batch)
            line = law.step_s(nodes, gpus, at)
            if place == 0:
                factor = np.exp(np.array([[-1.0], [1.0]]) * _half_width(fit, nodes, gpus, at))
                low, high = line * factor
                axes.fill_between(
                    gpus,
                    low,
                    high,
                    color=style.color,
                    alpha=0.18,
                    linewidth=0,
                    label=f"80 % of batch {batch:g}",
                )
            look = {"linewidth": min(style.width, 2.0), "markersize": MEASURED["markersize"]}
            axes.plot(gpus, line, **style.line | {"linewidth": look["linewidth"]})
            axes.plot([], [], label=f"batch {batch:g}", **style.marked | look)
            own = fit.steps.batch == batch
            packed = own & (fit.steps.nodes == np.ceil(fit.steps.gpus / known.most_per_vm))
            mark = MEASURED | {"color": style.color, "marker": style.marker}
            spread = own & ~packed
            axes.plot(
                fit.steps.gpus[spread],
                fit.steps.step_s[spread],
                **mark | {"alpha": 0.25, "markersize": 3.0},
            )
            axes.plot(fit.steps.gpus[packed], fit.steps.step_s[packed], **mark)
        guess = REACH * known.gpus[1]
        if most > guess:
            axes.axvline(guess, color="0.4", linewidth=0.8)
            text = {"fontsize": "small", "color": "0.3"}
            where = ("data", "axes fraction")
            axes.annotate("beyond: a guess", (guess, 0.02), (4, 0), where, "offset points", **text)
        if np.ptp(np.log(fit.steps.step_s)) > _DECADES:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: seconds(value))
        else:
            axes.set_ylim(bottom=0)
        axes.set_ylabel("seconds of a step")
        axes.set_xlabel(
            f"GPUs, up to {known.most_per_vm} on each VM (points: measured; faint: fewer GPUs on"
            " each)"
        )
        axes.set_title(_counts(fit), fontsize="small")
        figure.suptitle(f"Step time of {short(name)}")
        legend(figure, 3)
    return figure


def _half_width(fit: StepFit, nodes: FloatArray, gpus: FloatArray, batch: FloatArray) -> FloatArray:
    return np.asarray(Z80 * fit.fitted.deviation(nodes, gpus, batch))


def _some_batches(fit: StepFit) -> list[float]:
    """At most four of the measured batches, the smallest and the largest among them."""
    batches = np.unique(fit.steps.batch)
    places = np.unique(
        np.round(np.linspace(0, len(batches) - 1, min(len(batches), len(STYLES)))).astype(int)
    )
    return [float(batch) for batch in batches[places]]
