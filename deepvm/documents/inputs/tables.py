"""Measured tables as users edit and import them; profiling documents as far as they are used."""

import math
from collections.abc import Iterable
from dataclasses import astuple
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.training.steptime import StepTimeFit
from deepvm.documents.declared import properties
from deepvm.documents.formats import json
from deepvm.documents.models import model_of
from deepvm.documents.reader import FileFormat, Rules, repeats
from deepvm.documents.tree import KeyPath, read_object

# Larger values are typing errors, such as milliseconds in a column of seconds
MAX_STEP_S: float = properties("tables._StepDocument")["step_s"]["maximum"]
MIN_FLOPS = 1e6  # Of the slowest processor that trains


def _rules(tables: BaseModel) -> Rules:
    for row, entry in enumerate(tables.model_dump()["entries"]):
        path = ("entries", row, "document")
        document = entry["document"]
        if entry["kind"] == "eflops" and document["eflops"] < MIN_FLOPS:
            yield (
                (*path, "eflops"),
                f"{document['eflops']} (expected FLOP/s, 1e6 or more; is it in TFLOP/s?)",
            )
        elif entry["kind"] == "scaling":
            yield from _law_rules(document["step_time"], (*path, "step_time"))
            yield from _scaling_rules(document, path)
        elif entry["kind"] == "steptime":
            yield from _law_rules(document["fit"], (*path, "fit"))
            clusters = ((step["nodes"], step["gpus"]) for step in document["steps"])
            yield from few_gpus(clusters, (*path, "steps"))


def few_gpus(clusters: Iterable[tuple[int, int]], path: KeyPath) -> Rules:
    """Refuse rows of VMs and GPUs with fewer GPUs than VMs."""
    for number, (nodes, gpus) in enumerate(clusters):
        if gpus < nodes:
            yield (*path, number, "gpus"), f"{gpus} (expected one or more on each VM)"


def _law_rules(law: JsonObject | None, path: KeyPath) -> Rules:
    if law is None:
        return
    try:
        fit = StepTimeFit.of_document(law)
        measured = fit.measured
        if min(astuple(fit.law)) < 0 or fit.law.overlap < 1:
            raise ValueError("no law")
        if min(*measured.nodes, *measured.gpus, *measured.batch, measured.most_per_vm) <= 0:
            raise ValueError("nothing was measured")
        for end in (0, -1):
            step = fit.predict(measured.nodes[end], measured.gpus[end], measured.batch[end])
            if not 0 < step.low <= step.high < math.inf:
                raise ValueError("no law")
    except (TypeError, KeyError, ValueError, IndexError, AttributeError):
        yield path, "no fitted law (expected the law of these steps, as 'deepvm profile' fits it)"


def _scaling_rules(document: JsonObject, path: KeyPath) -> Rules:
    points = (*path, "points")
    sizes = [point["n"] for point in document["points"]]
    for row, _ in repeats(sizes):
        yield (*points, row, "n"), f"{sizes[row]} occurs twice (expected the median of its repeats)"
    for row, point in enumerate(document["points"]):
        if point["n"] == 1 and point["speedup"] != 1:
            yield (*points, row, "speedup"), f"{point['speedup']} (expected exactly 1 at n = 1)"
    runs = document["runs"] or []
    for row, run in enumerate(runs):
        if not all(0 < second <= MAX_STEP_S for second in run["seconds_per_step"]):
            yield (
                (*path, "runs", row, "seconds_per_step"),
                f"no times (expected seconds above 0 and at most {MAX_STEP_S:g})",
            )
    good = [run for run in runs if run["seconds_per_step"] and run["failed"] is None]
    batches = {run["batch"] or document["workload"]["batch"] for run in good}
    if max(sizes) == 1 and len(batches) < 2:
        yield points, "no n above 1 (expected one, or runs of several batches)"


TABLES = FileFormat(
    model_of("tables._TablesDocument"),
    "what `deepvm tables export` writes",
    partial(json.load, number=float),
    _rules,
)


def read_document(path: Path) -> JsonDict:
    """The object in a JSON file of measurements, not yet validated. Raises CatalogFormatError."""
    expected = "what `deepvm tables export` or `deepvm profile ... -o json` writes"
    found: JsonDict = read_object(path, expected, TABLES.load).value
    return found
