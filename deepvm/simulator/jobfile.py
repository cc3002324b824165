"""Jobs in YAML files, and the two presets from the Spotify thesis."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job, Span
from deepvm.core.spelling import did_you_mean, one_of
from deepvm.core.units import MOST_SECONDS
from deepvm.errors import DataError, JobFormatError, RequestError
from deepvm.io.safe_read import read_text
from deepvm.simulator.engine.lifetimes import LAWS, SHAPES, DrawnLifetimes

_LARGEST = 1_000_000
"""Characters that a job file may have; more is another file."""
MOST_VMS, _MOST_USD, _LEAST_S = 10_000, 1e9, 1e-9
"""Limits against typing errors that overflow: VMs, their price, the length of a step."""


@dataclass(frozen=True)
class _Key:
    """Allowed values of a key: in words, and by a reader that raises ValueError for all others."""

    allowed: str
    read: Callable[[Any], Any]
    optional: bool = False  # null means none


def _number(most: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise ValueError
        return float(value)

    return read


def _span(value: Any) -> Span:
    low, high = map(_number(MOST_SECONDS), value if isinstance(value, list) else [value, value])
    return Span(low, high)  # refuses low > high


def _lives(value: Any) -> tuple[float, ...]:
    found = tuple(map(_number(sys.float_info.max), value if isinstance(value, list) else [value]))
    if not found or not all(found):
        raise ValueError
    return found


def _of(kind: type, fits: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A reader of values of exactly this type: True is no whole number."""

    def read(value: Any) -> Any:
        if type(value) is not kind or not fits(value):
            raise ValueError
        return value

    return read


def _whole(most: int) -> _Key:
    return _Key(f"a whole number from 1 to {most}", _of(int, lambda value: 1 <= value <= most))


_SPAN = _Key(
    f"seconds from 0 without a unit, or [low, high] with low <= high, at most {MOST_SECONDS:.0e}",
    _span,
)
_USD = _Key(f"dollars an hour, from 0 to {_MOST_USD:.0e}", _number(_MOST_USD))
_TRUTH = _Key("true or false", _of(bool, lambda value: True))

_KEYS: Mapping[str, _Key] = {
    "name": _Key(
        "a name of up to 200 characters",
        _of(str, lambda v: v.strip() and len(v) <= 200 and v.isprintable()),
    ),
    "steps": _whole(10**12),
    "step_s": _SPAN,
    "save_s": _SPAN,
    "backup_s": _SPAN,
    "allocation_s": _SPAN,
    "preparation_s": _SPAN,
    "grace_s": _SPAN,
    "mttp_s": _Key("seconds above 0, without a unit, or a list of them", _lives, optional=True),
    "save_every_steps": replace(_whole(10**12), optional=True),
    "spot_usd_per_hour": _USD,
    "on_demand_usd_per_hour": _USD,
    "market": _Key(" or ".join(m.value for m in Market), Market),
    "missed_notice_rate": _Key("a share from 0 to 1", _number(1)),
    "stall_s": replace(_SPAN, optional=True),
    "memory_node_s": replace(_SPAN, optional=True),
    "warm_preparation_s": replace(_SPAN, optional=True),
    "proactive_replacement": _TRUTH,
    "vms": _whole(MOST_VMS),
    "elastic": _TRUTH,
    "lifetime": _Key(
        f"{', '.join(LAWS)}; {SHAPES}", lambda value: DrawnLifetimes(str(value), (1.0,)).law
    ),
}
_REQUIRED = ("steps", "step_s")


def read_job(path: Path) -> Job:
    """Read a job file.

    Raises:
        JobFormatError: unknown or repeated keys, or values that cannot be; names each with its
            line.
        DataError: there is no such file. CatalogFormatError: it is empty, no regular file, or not
            text.
    """
    wanted = "give a job file; docs/reference/job-file.md shows one"
    try:
        text = read_text(path, wanted)
    except FileNotFoundError as error:
        raise DataError(f"{path}: {error.strerror}; {wanted}") from None
    if len(text) > _LARGEST:
        raise DataError(f"{path}: has {len(text)} characters; {wanted}")
    return parse_job(text, str(path))


def parse_job(text: str, place: str) -> Job:
    """Read a job from YAML text; ``place`` is what errors call it.

    Raises:
        JobFormatError: see :func:`read_job`.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise JobFormatError(
            place, [f"{line}not YAML: {getattr(error, 'problem', None) or error}"]
        ) from None
    if root is None:
        raise JobFormatError(place, [f"empty: a job needs at least {' and '.join(_REQUIRED)}"])
    if not isinstance(root, yaml.MappingNode):
        line = f"line {root.start_mark.line + 1}"
        raise JobFormatError(
            place, [f"{line}: keys with values are needed, such as 'steps: 100000'"]
        )
    found: dict[str, Any] = {}
    problems: list[str] = []
    seen: dict[str, int] = {}
    for key, node in root.value:
        name, line = str(key.value), key.start_mark.line + 1
        try:
            _read(name, node, seen, found)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            problems.append(f"line {line}: {name}: {str(error).splitlines()[0]}")
        seen[name] = line
    problems += [f"{name}: missing; a job needs it" for name in _REQUIRED if name not in seen]
    if not problems:
        problems += [f"line {seen[name]}: {name}: {text}" for name, text in _contradictions(found)]
    if problems:
        raise JobFormatError(place, problems)
    return Job(**found)


def _read(name: str, node: yaml.Node, seen: Collection[str], found: dict[str, Any]) -> None:
    known = _KEYS.get(name)
    if known is None:
        raise ValueError(
            f"there is no such key; {did_you_mean(name, _KEYS) or 'there are ' + ', '.join(_KEYS)}"
        )
    if name in seen:
        raise ValueError("occurs twice")
    value = _value(node)
    if value is None and known.optional:
        if name == "mttp_s":
            found[name] = (math.inf,)
        return
    try:
        found[name] = known.read(value)
    except (ValueError, RequestError):
        shown = repr(value)
        raise ValueError(
            f"{shown if len(shown) < 60 else shown[:56] + ' ...'} cannot be used; allowed:"
            f" {known.allowed}"
        ) from None


_POWER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", re.ASCII)
_TEXT, _WHOLE = "tag:yaml.org,2002:str", 1e15


def _value(node: yaml.Node) -> Any:
    # YAML 1.1 takes 1e5 for text, unlike 1.0e+5; JSON and people do not.
    plain_text = isinstance(node, yaml.ScalarNode) and node.style is None and node.tag == _TEXT
    if plain_text and _POWER.fullmatch(node.value):
        number = float(node.value)
        return int(number) if number.is_integer() and number < _WHOLE else number
    if isinstance(node, yaml.SequenceNode):
        return [_value(each) for each in node.value]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (AttributeError, LookupError):  # PyYAML's, of "!!bool maybe" and the like
        raise ValueError("a value does not fit its YAML tag") from None
    finally:
        loader.dispose()


def _contradictions(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Contradictions between keys."""
    wrong = []
    if found["step_s"].high < _LEAST_S:
        wrong.append(
            ("step_s", f"a step of {found['step_s'].high:g} s; allowed: a time from {_LEAST_S:g} s")
        )
    stall, save = found.get("stall_s"), found.get("save_s", Span.of(0.0))
    if stall is not None and stall.mean > save.mean:
        wrong.append(
            ("stall_s", f"{stall.mean:g} s is more than the whole save of {save.mean:g} s")
        )
    return wrong


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
_PRESETS = {
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
PRESETS = tuple(_PRESETS)


def preset(name: str) -> Job:
    """A preset job.

    Raises:
        RequestError: there is none of this name.
    """
    if name not in _PRESETS:
        raise RequestError("preset", name, one_of(name, _PRESETS))
    return _PRESETS[name]


def job_document(job: Job) -> dict[str, Any]:
    """The job as plain data with the keys of a job file; spans as [low, high]."""
    document = {name: getattr(job, name) for name in _KEYS}
    finite: list[Any] = [v for v in job.mttp_s if v < math.inf] or [None]
    document |= {"market": job.market.value, "mttp_s": finite[0] if len(finite) == 1 else finite}
    for name, value in document.items():
        if isinstance(value, Span):
            document[name] = value.low if value.low == value.high else [value.low, value.high]
    return document
