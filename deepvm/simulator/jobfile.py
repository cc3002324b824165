"""Simulation files, the two presets from the Spotify thesis, and sweeps of their parameters."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm.core.cluster.instances import Market
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.gang_survival import MOST_VMS
from deepvm.core.preemption.job import Job, Span
from deepvm.core.spelling import refuse_unknown
from deepvm.core.units import parse_seconds
from deepvm.errors import JobFormatError, RequestError
from deepvm.simulator.engine.lifetimes import LAWS, SHAPES, DrawnLifetimes

if TYPE_CHECKING:
    from deepvm.documents.reader import FileFormat
    from deepvm.documents.tree import KeyPath


MIN_STEP_S = 1e-9


def read_job(path: Path) -> Job:
    """Read a simulation file. Raises JobFormatError, CatalogFormatError."""
    return _job_of(_job_format().read(path).model_dump(exclude_none=True))


def parse_job(text: str, name: str) -> Job:
    """From YAML text that errors call ``name``. Raises JobFormatError."""
    return _job_of(_job_format().parse(text, name).model_dump(exclude_none=True))


def _job_format() -> "FileFormat[Any]":
    # pydantic and yaml are slow to load
    from deepvm.documents.formats import yaml
    from deepvm.documents.models import by_values, model_of
    from deepvm.documents.reader import FileFormat

    expected = "a simulation file with steps and step_s, see 'deepvm schema job'"
    model = model_of("job_file.JobDocument")
    others = {"train": "a job file of 'deepvm run'"}
    return FileFormat(model, expected, yaml.load, by_values(_rules), JobFormatError, others)


def _job_of(values: JsonDict) -> Job:
    for name, value in values.items():
        if name == "market":
            values[name] = Market(value)
        elif isinstance(value, tuple) and name != "mttp_s":
            values[name] = Span(*value)
    return Job(**values)


def _rules(document: JsonObject) -> "Iterator[tuple[KeyPath, str]]":
    _, longest = document["step_s"]
    if longest < MIN_STEP_S:
        yield ("step_s",), f"a step of {longest:g} s (expected at least {MIN_STEP_S:g} s)"
    if document["stall_s"]:
        stall = Span(*document["stall_s"])
        save = Span(*(document["save_s"] or (0.0, 0.0)))
        if stall.mean > save.mean:
            yield ("stall_s",), f"{stall.mean:g} s is more than the whole save of {save.mean:g} s"
    law = document["lifetime"]
    if law is not None:
        try:
            DrawnLifetimes(law, (1.0,))
        except RequestError:
            yield ("lifetime",), f"{law!r} (expected {', '.join(LAWS)}; {SHAPES})"


# Spotify thesis, 6.3: Azure Standard_NC12s_v3 with two V100.
_THESIS = Job(
    steps=100_000,
    step_s=Span(4.50, 4.70002),
    name="gpt-117m",
    save_s=Span(2.30, 2.80),
    backup_s=Span(11.2, 15.2),
    preparation_s=Span(143.2, 183.2),
    save_every_steps=10_000,
    allocation_s=Span(62.0, 218.0),
    grace_s=Span.of(30.0),
    mttp_s=(10_800.0,),
    spot_usd_per_hour=2.3048,
    on_demand_usd_per_hour=6.2049,
)
PRESETS = {
    "gpt-117m": _THESIS,
    "gpt-1.3b": replace(
        _THESIS,
        name="gpt-1.3b",
        step_s=Span(19.50, 20.00058),
        save_s=Span(18.5, 20.5),
        backup_s=Span(120.0, 160.0),
        preparation_s=Span(305.5, 359.5),
        save_every_steps=None,
    ),
}


def preset(name: str) -> Job:
    """A preset job. Raises RequestError."""
    refuse_unknown("preset", name, PRESETS)
    return PRESETS[name]


def job_document(job: Job) -> JsonDict:
    """The job as plain data with the keys of a simulation file; spans as [low, high]."""
    document = {"name": job.name} | {each.name: getattr(job, each.name) for each in fields(job)}
    finite: list[Any] = [v for v in job.mttp_s if v < math.inf] or [None]
    document |= {"market": job.market.value, "mttp_s": finite[0] if len(finite) == 1 else finite}
    for name, value in document.items():
        if isinstance(value, Span):
            document[name] = value.low if value.low == value.high else [value.low, value.high]
    return document


_SPANS = ("grace", "save", "backup", "allocation", "preparation")
_LIMITS = {
    "mttp": (1e-3, math.inf),
    **dict.fromkeys(_SPANS, (0.0, math.inf)),
    "missed": (0.0, 1.0),
    "vms": (1.0, float(MOST_VMS)),
}
KEYS = tuple(_LIMITS)
_POINTS = 12
_MAX_POINTS = 1000
_ALLOWED = (
    f"KEY=LOW:HIGH[:STEP] such as mttp=1h:12h; keys: {', '.join(KEYS)}; mttp with units, missed"
    f" from 0 to 1, whole numbers of vms from 1 to {MOST_VMS}, at most {_MAX_POINTS} points in all"
)


def swept(job: Job, sweeps: Sequence[str]) -> list[tuple[Job, tuple[tuple[str, float], ...]]]:
    """The jobs of all combinations of ``KEY=LOW:HIGH[:STEP]``."""
    ranges = [_range(text) for text in sweeps]
    names = [name for name, _ in ranges]
    if len(set(names)) < len(names):
        raise RequestError("sweep", " ".join(sweeps), "each key once")
    if math.prod(len(values) for _, values in ranges) > _MAX_POINTS:
        raise RequestError("sweep", " ".join(sweeps), _ALLOWED)
    found = []
    for point in itertools.product(*(values for _, values in ranges)):
        values = tuple(zip(names, point, strict=True))
        varied = job
        for name, value in values:
            varied = _with(varied, name, value)
        found.append((varied, values))
    return found


def _range(text: str) -> tuple[str, list[float]]:
    name, _, rest = text.partition("=")
    parts = rest.split(":")
    unit = name in ("missed", "vms") and any(c.isalpha() for c in rest)  # neither is a time
    if name not in KEYS or len(parts) > 3 or unit:
        raise RequestError("sweep", text, _ALLOWED)
    try:
        # "mttp=1:12" is no range of seconds
        low, high = (
            parse_seconds(part, "sweep", bare="" if name == "mttp" else "s", zero=True)
            for part in (parts * 2)[:2]
        )
        steps = [parse_seconds(part, "sweep", bare="s", zero=True) for part in parts[2:]]
    except RequestError:
        raise RequestError("sweep", text, _ALLOWED) from None
    by = (high - low) / (_POINTS - 1)
    if steps:
        by = steps[0]
    elif name == "vms":
        by = max(1.0, by // 1)
    count = 1.0
    if high > low:
        count = (high - low) / max(by, 1e-9) + 1
    least, most = _LIMITS[name]
    whole = low == int(low) and by == int(by)
    if not least <= low <= high <= most or count > _MAX_POINTS or (name == "vms" and not whole):
        raise RequestError("sweep", text, _ALLOWED)
    return name, [low + i * by for i in range(int(count + 1e-9))]


def _with(job: Job, name: str, value: float) -> Job:
    if name == "mttp":
        return replace(job, mttp_s=(value,))
    if name == "missed":
        return replace(job, missed_notice_rate=value)
    if name == "vms":
        return replace(job, vms=int(value))
    changes: JsonDict = {f"{name}_s": Span.of(value)}
    return replace(job, **changes)
