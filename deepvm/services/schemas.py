"""The documents by name, as ``deepvm schema`` lists them, and their rows as tables.

The header follows from the type of a row, whatever the rows hold: values of objects have dotted
names, such as ``step_s.low``; lists, and objects whose keys vary, are in one field, as JSON in CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from deepvm.core.spelling import refuse_unknown
from deepvm.documents.json_schema import columns, json_schema
from deepvm.documents.outputs import (
    audits,
    checkpoints,
    jobs,
    lab,
    performance,
    plans,
    prices,
    profiling,
    simulation,
)


@dataclass(frozen=True)
class OutputSpec:
    """A document that a type describes.

    Attributes:
        where: the command that prints it, or the file. text: what it is.
        kind: its type. rows: the key of the rows of its CSV, empty where the document itself is the
            only row, or a list of them.
        key: the column of the rows' names, where they are kept by name.
        required: keys that a file of users must have; None for those that the type requires. more:
            whether it may have others, which are ignored.
    """

    where: str
    text: str
    kind: Any
    rows: str = ""
    key: str = ""
    required: Sequence[str] | None = None
    more: bool = False

    @property
    def row(self) -> Any:
        kind = self.kind
        if self.rows:
            kind = get_type_hints(kind)[self.rows]
        while arguments := get_args(kind):
            if get_origin(kind) is dict:
                kind = arguments[-1]
            else:
                kind = arguments[0]
        return kind

    def schema(self, name: str) -> dict[str, Any]:
        return json_schema(self.kind, name, self.text, required=self.required, more=self.more)


@dataclass(frozen=True)
class InputSpec:
    """A file that a pydantic model validates; ``schema`` is the model's."""

    where: str
    text: str
    schema: Callable[[str], dict[str, Any]]


def _catalog(name: str) -> dict[str, Any]:
    from deepvm.documents.fields import schema_of
    from deepvm.documents.inputs.catalog import CatalogDocument, QuotaDocument

    return schema_of(CatalogDocument if name == "catalog" else QuotaDocument, name)


def _matrix(name: str) -> dict[str, Any]:
    from deepvm.documents.fields import schema_of
    from deepvm.lab.faults.fault import DiskFault
    from deepvm.lab.faults.fault_registry import find_fault
    from deepvm.lab.matrix import MatrixFile

    found = schema_of(MatrixFile, name)
    # pydantic knows what the short forms become, not the forms themselves.
    for key, kind in (("datasets", "Dataset"), ("models", "Model")):
        names = found["$defs"][kind]["properties"]["name"]["enum"]
        found["properties"][key]["items"] = {
            "anyOf": [{"enum": names}, found["properties"][key]["items"]]
        }
    for fault, property_ in found["$defs"]["Failures"]["properties"].items():
        steps = {"type": "array", "items": {"type": "integer", "minimum": 1}}
        property_["anyOf"].append(
            {"type": "number"} if isinstance(find_fault(fault), DiskFault) else steps
        )
    return found


def _tables(name: str) -> dict[str, Any]:
    from deepvm.documents.fields import schema_of
    from deepvm.documents.inputs.tables import TABLES

    return schema_of(TABLES.model, name)


_JOB_NEEDS = ("steps", "step_s")
_MODEL_NEEDS = ("parameters",)
# By the name in ``schema_version``, ``deepvm.NAME/1``, where the document has one.
DOCUMENTS: dict[str, OutputSpec | InputSpec] = {
    "recommend": OutputSpec(
        "recommend", "The clusters that train fastest for a budget", plans.Recommendation
    ),
    "explain": OutputSpec(
        "explain", "Why a VM type is not in the best cluster", plans.ExplanationDocument
    ),
    "sweep": OutputSpec("sweep", "The best cluster of every budget", plans.Sweep),
    "gpus": OutputSpec("gpus", "What can be rented to train a model", performance.Gpus, "gpus"),
    "performance": OutputSpec(
        "performance predict", "How fast GPUs train a model", performance.Prediction
    ),
    "performance-check": OutputSpec(
        "performance check", "How far predictions are off", performance.PredictionCheck
    ),
    "models": OutputSpec(
        "performance models",
        "Models that can be named",
        performance.Models,
        "models",
    ),
    "reproduce": OutputSpec(
        "reproduce", "Figures of the papers, computed again", performance.Reproduction
    ),
    "catalogs": OutputSpec(
        "catalog list",
        "Catalogs that come with deepvm",
        prices.Catalogs,
        "catalogs",
    ),
    "diff": OutputSpec(
        "catalog diff, tables diff --catalog",
        "What changed between two catalogs",
        prices.CatalogDiff,
    ),
    "catalog-status": OutputSpec(
        "catalog status",
        "The cache of the cloud's prices",
        prices.CatalogStatus,
        "signals",
    ),
    "doctor": OutputSpec("doctor", "Whether live prices can be had", prices.Doctor, "checks"),
    "config": OutputSpec(
        "config show",
        "Settings outside the command line",
        prices.Config,
        "settings",
    ),
    "simulate": OutputSpec("simulate", "Simulated training runs", simulation.SimulationRow),
    "simulate-comparison": OutputSpec(
        "simulate with several rows",
        "Simulated training runs, compared",
        simulation.SimulationComparison,
    ),
    "survive": OutputSpec("survive", "Whether spot VMs can be had and live", simulation.Survive),
    "traces": OutputSpec("traces show", "Recorded spot VMs", simulation.Traces, "traces"),
    "traces-fit": OutputSpec("traces fit", "Lifetime distributions", simulation.TracesFit),
    "traces-replay": OutputSpec(
        "traces replay", "Save policies replayed on traces", simulation.TracesReplay
    ),
    "traces-deadline": OutputSpec(
        "traces deadline", "Deadlines replayed on traces", simulation.TracesDeadline
    ),
    "eflops": OutputSpec(
        "profile eflops",
        "The training speed of a machine",
        profiling.OneOrMoreEflops,
    ),
    "scaling": OutputSpec(
        "profile scaling", "A measured speed-up curve", profiling.Scaling, "points"
    ),
    "saturation": OutputSpec(
        "profile saturation",
        "How many VMs saturate a memory node",
        profiling.Saturation,
        "times",
    ),
    "fit": OutputSpec("profile fit", "Fitted speed-up curves", profiling.SpeedupFit, "band"),
    "steptime": OutputSpec(
        "profile fit --law step-time",
        "The fitted step-time law",
        profiling.StepTimeFit,
        "predictions",
    ),
    "tables": InputSpec(
        "profile all, tables show, tables export", "Measurements of your own machines", _tables
    ),
    "tables-list": OutputSpec(
        "tables list",
        "Your measurements in short",
        profiling.TablesList,
        "entries",
    ),
    "tables-diff": OutputSpec(
        "tables diff",
        "What the last change did to them",
        profiling.TablesDiff,
        "changes",
    ),
    "ckpt-bench": OutputSpec(
        "ckpt bench",
        "How long a save blocks training",
        profiling.Bench,
        "methods",
        "method",
    ),
    "ckpt-bench-node": OutputSpec(
        "ckpt bench --trainers",
        "How fast a memory node is",
        profiling.NodeBench,
        "rows",
    ),
    "ckpt-ls": OutputSpec(
        "ckpt ls",
        "Versions at a place",
        checkpoints.StoredVersions,
    ),
    "ckpt-verify": OutputSpec(
        "ckpt verify", "Versions compared with their records", checkpoints.Verified
    ),
    "memory-node": OutputSpec(
        "memory-node status",
        "What a memory node holds",
        checkpoints.MemoryNode,
        "versions",
    ),
    "run": OutputSpec("run, jobs show, jobs resume", "A job of deepvm run", jobs.Run, "machines"),
    "run-plan": OutputSpec("run --dry-run", "What a job would rent", jobs.RunPlan, "machines"),
    "jobs": OutputSpec("jobs ls", "Jobs in short", jobs.Jobs, "jobs"),
    "orphans": OutputSpec("jobs orphans", "Machines without a controller", jobs.Orphans, "orphans"),
    "pools": OutputSpec("history pools", "How long machines lived", jobs.Pools, "pools"),
    "audit": OutputSpec("audit", "Whether a script resumes right", audits.Audit, "gates"),
    "history": OutputSpec("history export", "All machines", jobs.History, "machines"),
    "lab": OutputSpec("lab check", "Runs that fail, against the gates", lab.LabCheck, "failures"),
    "lab-report": OutputSpec(
        "lab run, lab report", "What failures have cost", lab.LabReport, "suites"
    ),
    "lab-list": OutputSpec("lab list", "What a matrix file can name", lab.LabList, "entries"),
    "lab-selftest": OutputSpec(
        "lab selftest",
        "Mistakes on purpose, at the gates",
        lab.LabSelftest,
        "controls",
    ),
    "catalog": InputSpec(
        "catalog show, a catalog file", "VM types of one region with prices", _catalog
    ),
    "quotas": InputSpec("--quota FILE", "Limits of an account", _catalog),
    "matrix": InputSpec("lab run MATRIX.yaml", "Trainings that fail on purpose", _matrix),
    "lab-suite": OutputSpec(
        "*_publishable.json of lab", "One suite, to be published", lab.PublishedSuite
    ),
    "lab-run": OutputSpec(
        "config.json of a run of lab", "What makes the run what it is", lab.LabRun
    ),
    "lab-supervisor": OutputSpec(
        "supervisor.json next to it", "What happened to the run", lab.LabSupervisor
    ),
    "lab-audit": OutputSpec(
        "audit.json next to it", "What the gates said at its end", lab.LabAudit
    ),
    "job": OutputSpec("--job FILE, as YAML", "A training job", simulation.Job, required=_JOB_NEEDS),
    "model": OutputSpec(
        "--model FILE, as YAML or JSON", "A model", performance.ModelFile, required=_MODEL_NEEDS
    ),
    "trace": OutputSpec(
        "a file of traces", "A recorded trace of spot VMs", simulation.TraceFile, more=True
    ),
    "checkpoint": OutputSpec(
        "next to the file of a version", "A commit record", checkpoints.CommitRecord
    ),
    "profile": OutputSpec(
        "settings.json of profile all --out", "How parts were measured", profiling.Campaign
    ),
}


def described(name: str) -> OutputSpec | InputSpec:
    """The document of this name. Raises RequestError."""
    refuse_unknown("NAME", name, DOCUMENTS, ", ")
    return DOCUMENTS[name]


def name_of(document: Any) -> str:
    """The name of a document by its ``schema_version``, empty where it has none."""
    version = ""
    if isinstance(document, dict):
        version = document.get("schema_version", "")
    return str(version).removeprefix("deepvm.").partition("/")[0]


def rows_of(document: Any, name: str = "") -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a document; ``name``: of one without a ``schema_version``."""
    if isinstance(document, list) and document:
        first = document[0]
    else:
        first = document
    found = described(name or name_of(first))
    assert isinstance(found, OutputSpec)  # files that are validated have a CSV of their own
    return rows_as(found.row, _listed(document, found), found.key)


def rows_as(
    kind: Any, rows: Iterable[Mapping[str, Any]], key: str = ""
) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of objects of a type; ``key``: of a column in front of what the type says."""
    paths = [
        *([(key,)] if key else []),
        *(path for path in columns(kind) if path != ("schema_version",)),
    ]
    return [".".join(path) for path in paths], [
        [_cell(row, path) for path in paths] for row in rows
    ]


def header_of(found: OutputSpec) -> list[str]:
    """The header of the CSV of a document that has none of its own."""
    return rows_as(found.row, (), found.key)[0]


def _listed(document: Any, found: OutputSpec) -> Iterator[Mapping[str, Any]]:
    rows = document[found.rows] if found.rows else document
    if found.key:
        yield from ({found.key: name, **row} for name, row in rows.items())
    else:
        yield from rows if isinstance(rows, list) else [rows]


def _cell(row: Any, path: Sequence[str]) -> Any:
    for key in path:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row
