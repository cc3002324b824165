"""Job files of ``deepvm run``: what is trained, on what, for how much; errors name line, key and what is allowed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.core.spelling import did_you_mean, joined
from deepvm.core.units import MOST_USD, parse_seconds
from deepvm.errors import DataError, JobFormatError, RequestError
from deepvm.io.safe_read import read_text
from deepvm.jobs.clouds.registry import CLOUDS, clouds_that_cut, clouds_that_preempt, find_cloud
from deepvm.jobs.decisions.injection import FATES
from deepvm.jobs.storage import git_code

SCHEMA_VERSION = "deepvm.job/1"
_WANTED = "give a job file; docs/reference/run-file.md shows one"
_LARGEST = 1_000_000
"""Characters that a job file may have; more is another file."""
MOST_MACHINES, MOST_LIVES, _MOST_STEPS = 4096, 1000, 10**12
_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATA_URL = re.compile(r"s3://[^/\0?#@]+(/[^\0?#]*)?|file:///[^\0?#]*", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/[^\0]*")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_EXPONENT = re.compile(r"\d+(\.\d+)?[eE]\+?\d{1,2}")
_LINES: TypeAlias = dict[tuple[str | int, ...], int]


def _seconds(value: object) -> float:
    if isinstance(value, float):  # read before
        return value
    if not isinstance(value, str):  # 12 is nobody's deadline
        raise ValueError("no time with a unit")
    return parse_seconds(value, "time")


def _bare(value: object) -> object:
    """Numbers as they are written: true is none, and text is none."""
    if isinstance(value, (bool, str)):
        raise ValueError("no number")
    return value


def _steps(value: object) -> object:
    """A number of steps, which may be written as 1e6: YAML takes that for text."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return _bare(value)


def _named(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("no name")
    return value


def _policy(value: str) -> str:
    parse_policy(value)
    return value


def _cloud(value: str) -> str:
    find_cloud(value)
    return value


def _variables(value: object) -> object:
    """Values of variables may be written as numbers, but not as true and false, of which nobody knows the spelling."""
    if not isinstance(value, dict):
        raise ValueError("no variables")
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of a variable")
        if isinstance(text, bool) or not isinstance(text, (str, int, float)) or "\0" in str(text):
            raise ValueError(f"the value of {name} must be text")
    return {name: str(text) for name, text in value.items()}


def _data_name(value: str) -> str:
    if not _DATA_NAME.fullmatch(value):
        raise ValueError("no name of a folder")
    return value


def _source(value: object) -> object:
    """Where data are: a URL, an absolute path, or a place where they are already."""
    if isinstance(value, dict):
        place = value.get("mount")
        if set(value) != {"mount"} or not isinstance(place, str) or not _ABSOLUTE.fullmatch(place):
            raise ValueError("no mount")
    elif not isinstance(value, str) or not (_DATA_URL.fullmatch(value) or _ABSOLUTE.fullmatch(value)):
        raise ValueError("no place of data")
    return value


def _code(value: str) -> str:
    git_code.parse(value)
    return value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Timeout: TypeAlias = Literal["none"] | Seconds
Usd = Annotated[float, BeforeValidator(_bare), Field(gt=0, le=MOST_USD)]
Share = Annotated[float, BeforeValidator(_bare), Field(ge=0, le=1)]
Count = Annotated[int, BeforeValidator(_bare), Field(ge=1, le=MOST_MACHINES)]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
_TIME = "a time with a unit, such as 30s, 90min or 12h"
_TIMEOUT = f"{_TIME}, or none"
_WHOLE = f"a whole number from 1 to {MOST_MACHINES}"


def _said(what: str, default: Any = ...) -> Any:
    return Field(default, description=what)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Range(_Strict):
    """Machines of a job that goes on with fewer."""

    min: Count = _said(_WHOLE)
    max: Count = _said(f"{_WHOLE}, at least min")


class Machines(_Strict):
    """What trains."""

    type: Text | None = _said("an instance type, such as g4dn.xlarge", None)
    plan: Text | None = _said("the file of a plan: deepvm recommend -o json > plan.json", None)
    count: Count | Range | None = _said(f"{_WHOLE}, or {{min: 2, max: 4}}", None)
    market: Literal["spot", "on-demand"] = _said("spot or on-demand", "spot")
    zone: Text | None = _said("a zone, such as us-east-1a", None)
    hosts: Text | None = _said("the file of hosts of your own, for cloud: ssh", None)
    launcher: Text | None = _said("how commands get to hosts: ssh, or words with {host} in them", None)
    python: Text | None = _said("the interpreter of hosts, such as ~/venv/bin/python", None)


class Anchor(_Strict):
    """The machine that keeps versions in its memory."""

    type: Text = _said("an instance type, such as m7g.large")
    memory: Text | None = _said("memory for versions, such as 6GiB", None)


class Budget(_Strict):
    """What the job may cost, and when it must end."""

    usd_per_hour: Usd | None = _said("dollars an hour, above 0: a number such as 3", None)
    total_usd: Usd | None = _said("dollars in all, above 0: a number such as 50", None)
    deadline: Seconds | None = _said(_TIME, None)
    deadline_policy: Literal["greedy", "uniform-progress"] = _said("greedy or uniform-progress", "uniform-progress")


class Injected(_Strict):
    """Preemptions on purpose, on clouds that can."""

    mttp: Seconds | None = _said(_TIME, None)
    lives: Annotated[list[Seconds], Field(min_length=1, max_length=MOST_LIVES)] | Text | None = _said(
        "a list of times such as [30s, 2min], or the file of a trace", None
    )
    scale: Annotated[float, BeforeValidator(_bare), Field(gt=0, le=1e6)] = _said(
        "a number above 0, by which lives are multiplied", 1.0
    )
    seed: int = _said("a whole number", 0)
    count: Annotated[int, BeforeValidator(_bare), Field(ge=0, le=10_000)] | None = _said(
        "how many in all, a whole number from 0", None
    )
    grace: Seconds = _said(_TIME, 120.0)
    missed: Share = _said("the share without a notice, from 0 to 1", 0.0)
    late: Share = _said("the share whose notice comes late, from 0 to 1", 0.0)
    silent: Share = _said("the share that loses its link and lives on, from 0 to 1", 0.0)
    rebalance: Share = _said("the share to which a rebalance is recommended before, from 0 to 1", 0.0)


class JobFile(_Strict):
    """All of a job file; see docs/reference/run-file.md."""

    schema_version: Literal["deepvm.job/1"] = _said(SCHEMA_VERSION, "deepvm.job/1")
    name: Annotated[str, AfterValidator(_named)] = _said(
        "1 to 40 lower-case letters, digits and hyphens, a letter or digit first and last"
    )
    train: Text = _said("the command that trains, such as python train.py --epochs 90")
    launcher: Literal["direct", "torchrun"] = _said("direct or torchrun", "direct")
    code: Annotated[Text, AfterValidator(_code)] | None = _said("a folder, or git: URL@REF", None)
    setup: Text | None = _said("a command that is run once on each machine", None)
    env: Annotated[dict[str, str], BeforeValidator(_variables)] = _said(
        "names of variables with texts, such as {OMP_NUM_THREADS: '1'}", {}
    )
    data: dict[Annotated[str, AfterValidator(_data_name)], Annotated[str | dict[str, str], PlainValidator(_source)]] = (
        _said(
            "names with s3://bucket/prefix, file:///folder or an absolute path, such as {train: s3://bucket/train}; or "
            "{train: {mount: /mnt/data}} where they are already",
            {},
        )
    )
    machines: Machines = _said(
        "{type: g4dn.xlarge, count: 2}; there are type, plan, hosts, count, market, zone", Machines()
    )
    anchor: Anchor | Literal["none"] | None = _said("{type: m7g.large}, or none", None)
    tiers: list[Text] = _said("a list of URLs, such as [s3://bucket/run]", [])
    save_policy: Annotated[str, AfterValidator(_policy)] = _said(
        "a save policy, such as adaptive, thesis or static:100", "adaptive"
    )
    save_every_steps: Annotated[int, BeforeValidator(_steps), Field(ge=1, le=_MOST_STEPS)] | None = _said(
        f"a whole number from 1 to {_MOST_STEPS:.0e}, or null", None
    )
    steps: Annotated[int, BeforeValidator(_steps), Field(ge=1, le=_MOST_STEPS)] | None = _said(
        f"how many the training takes in all, a whole number from 1 to {_MOST_STEPS:.0e}", None
    )
    keep: Annotated[int, BeforeValidator(_bare), Field(ge=0, le=10_000)] = _said("a whole number from 0", 2)
    budget: Budget = _said("{total_usd: 50, usd_per_hour: 3, deadline: 12h}, each of which may be left out", Budget())
    cloud: Annotated[str, AfterValidator(_cloud)] = _said(joined(CLOUDS, "or"), "local")
    orphan_after: Seconds = _said(_TIME, 1800.0)
    start_timeout: Timeout = _said(_TIMEOUT, 1800.0)
    step_timeout: Timeout = _said(_TIMEOUT, 1800.0)
    inject: Injected | None = _said("{mttp: 30s, seed: 1, count: 5, grace: 5s, missed: 0}", None)


def read_job_file(path: Path) -> JobFile:
    """Read a job file.

    Raises:
        JobFormatError: unknown or repeated keys, values that cannot be, files that are not there.
        DataError: no such file. CatalogFormatError: it is no regular file, or not text; the same of a trace.
    """
    try:
        text = read_text(path, _WANTED)
    except FileNotFoundError as error:
        raise DataError(f"{path}: {error.strerror}; {_WANTED}") from None
    if len(text) > _LARGEST:
        raise DataError(f"{path}: has {len(text)} characters; {_WANTED}")
    found = parse_job_file(text, str(path))
    folder = path.parent
    if found.code is not None and not found.code.startswith("git:") and not (folder / found.code).is_dir():
        line, allowed = line_of(path, "code"), JobFile.model_fields["code"].description
        raise JobFormatError(str(path), [f"line {line}: code: there is no folder {found.code!r}; allowed: {allowed}"])
    inject = found.inject
    if inject is None or not isinstance(inject.lives, str):
        return found
    return found.model_copy(update={"inject": _with_trace(inject, folder / inject.lives)})


def _with_trace(inject: Injected, file: Path) -> Injected:
    """With the lives of a trace in place of its name. Raises DataError, CatalogFormatError."""
    from deepvm.simulator.traces.trace import lives_to_replay

    return inject.model_copy(update={"lives": [*lives_to_replay([file])[:MOST_LIVES]]})


def job_of_plan(plan: Path, command: Sequence[str]) -> JobFile:
    """A job that trains code of the current folder on the machines of a plan. Raises RequestError."""
    if not command[0].strip():
        raise RequestError("command", shlex.join(command), _allowed(("train",)))
    name = re.sub(r"[^a-z0-9]+", "-", _trained(command).lower()).strip("-")[:40].strip("-") or "job"
    try:
        return JobFile(name=name, train=shlex.join(command), code=".", machines=Machines(plan=str(plan)))
    except ValidationError:
        raise RequestError("command", " ".join(command), _allowed(("train",))) from None


def _trained(command: Sequence[str]) -> str:
    """The script or module that a command runs, without its folder or package."""
    for word, after in zip(command, [*command[1:], ""], strict=True):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and after:
            return after.rpartition(".")[2]
    return Path(command[0]).stem


def changed(
    job: JobFile,
    *,
    cloud: str | None = None,
    name: str | None = None,
    total_usd: float | None = None,
    steps: int | None = None,
) -> JobFile:
    """A job with what the command line says. Raises RequestError."""
    said: dict[str, Any] = {"cloud": cloud, "name": name, "steps": steps}
    given = {key: value for key, value in said.items() if value is not None}
    known = job.model_dump(by_alias=True, exclude_unset=True)
    if total_usd is not None:
        given["budget"] = {**known.get("budget", {}), "total_usd": total_usd}
    if not given:
        return job
    try:
        found = JobFile.model_validate({**known, **given})
    except ValidationError as error:
        path = tuple(str(step) for step in error.errors()[0]["loc"])
        value = total_usd if path[0] == "budget" else given.get(path[0])
        raise RequestError(path[-1], value, _allowed(path)) from None
    if found.inject is not None and found.cloud not in (able := _clouds_for(found.inject)):
        raise RequestError("cloud", found.cloud, f"{joined(able, 'or')}, as the file's inject needs")
    return found


def line_of(file: Path, key: str) -> int | None:
    """Where a key such as ``machines.type`` is in a job file that can be read; None if it is not there."""
    try:
        node = yaml.compose(read_text(file, _WANTED), Loader=yaml.SafeLoader)
    except (OSError, DataError, yaml.YAMLError):
        return None
    line = None
    for name in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = next(((one, value) for one, value in pairs if one.value == name), None)
        if found is None:
            return None
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def parse_job_file(text: str, place: str) -> JobFile:
    """Read a job from YAML; ``place`` is what errors call it. Raises JobFormatError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
        number = mark.line + 1 if mark else text.count("\n", 0, position) + 1 if position is not None else None
        line = f"line {number}: " if number else ""
        if position is not None:
            raise JobFormatError(place, [f"{line}not YAML: a character that no text has: {text[position]!r}"]) from None
        raise JobFormatError(place, [f"{line}not YAML: {getattr(error, 'problem', None) or error}"]) from None
    if root is None:
        raise JobFormatError(place, [f"empty; {_WANTED}"])
    if not isinstance(root, yaml.MappingNode):
        raise JobFormatError(place, [f"line {root.start_mark.line + 1}: no keys with values; {_WANTED}"])
    lines: _LINES = {}
    problems: list[str] = []
    try:
        document = _plain(root, (), lines, problems)
    except _NotYaml as error:
        raise JobFormatError(place, [str(error)]) from None
    if str(document.get("schema_version")).startswith("deepvm.recommend/"):
        raise JobFormatError(place, [f"a plan; put the command that trains behind it: {place} -- python train.py"])
    try:
        found = JobFile.model_validate(document)
    except ValidationError as error:
        raise JobFormatError(place, [*problems, *dict.fromkeys(_problems(error, document, lines))]) from None
    problems += _contradictions(found, lines)
    if problems:
        raise JobFormatError(place, problems)
    return found


_MOST_NODES, _DEEPEST = 20_000, 40
"""Of a document whose aliases are written out: a few lines of them can stand for billions."""


class _NotYaml(ValueError):
    """What cannot be read, with its line."""


def _plain(node: yaml.Node, path: tuple[str | int, ...], lines: _LINES, problems: list[str]) -> Any:
    """A document with the line of each key. Raises _NotYaml."""
    if len(lines) > _MOST_NODES or len(path) > _DEEPEST:
        raise _NotYaml(f"line {node.start_mark.line + 1}: {_dotted(path[:1])}: too much; aliases are written out here")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in found:
                problems.append(f"line {line}: {_dotted((*path, name))}: occurs twice")
            lines[(*path, name)] = line
            found[name] = _plain(value, (*path, name), lines, problems)
        return found
    if isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            lines[(*path, place)] = value.start_mark.line + 1
        return [_plain(value, (*path, place), lines, problems) for place, value in enumerate(node.value)]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, RecursionError, ValueError, AttributeError, LookupError) as error:
        why = str(getattr(error, "problem", None) or error).splitlines()[0][:100]
        raise _NotYaml(f"line {node.start_mark.line + 1}: {_dotted(path)}: not YAML: {why}") from None
    finally:
        loader.dispose()


def _problems(error: ValidationError, document: Mapping[str, Any], lines: _LINES) -> Iterator[str]:
    for one in error.errors():
        path = _in_the_file(one["loc"], document, one["type"] in ("missing", "extra_forbidden"))
        where = f"line {_line(path, lines)}: " if path in lines or len(path) > 1 else ""
        name, model = _dotted(path), _model_at(path[:-1])
        known = tuple(model.model_fields) if model else ()
        if one["type"] == "extra_forbidden":
            meant = did_you_mean(str(path[-1]), known) or f"there are {', '.join(known)}"
            yield f"{where}{name}: there is no such key; {meant}"
        elif one["type"] == "missing":
            yield f"{where}{name}: missing; allowed: {_allowed(path)}"
        else:
            yield f"{where}{name}: {_shown(_at(document, path))} cannot be used; allowed: {_allowed(path)}"


def _in_the_file(loc: tuple[str | int, ...], document: Any, last_may_lack: bool) -> tuple[str | int, ...]:
    """Where an error is, without the names of the alternatives that pydantic tried."""
    path: list[str | int] = []
    value = document
    for place, step in enumerate(loc):
        here = isinstance(value, dict) and step in value or isinstance(value, list) and isinstance(step, int)
        if here:
            path.append(step)
            value = value[step]
        elif last_may_lack and place == len(loc) - 1 and isinstance(value, dict):
            path.append(step)
    return tuple(path)


def _model_at(path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The schema of an object."""
    model: type[BaseModel] | None = JobFile
    for step in path:
        field = model.model_fields.get(str(step)) if model else None
        kinds = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
    return model


def _allowed(path: tuple[str | int, ...]) -> str:
    """What a key may be: its description, or that of the nearest key above it."""
    for end in range(len(path), 0, -1):
        model = _model_at(path[: end - 1])
        field = model.model_fields.get(str(path[end - 1])) if model else None
        if field is not None and field.description:
            return field.description
    return "what docs/reference/run-file.md shows"


def _contradictions(found: JobFile, lines: _LINES) -> Iterator[str]:
    """Keys that do not go together."""
    machines = found.machines
    if machines.type and machines.plan:
        yield f"line {_line(('machines', 'plan'), lines)}: machines.plan: either type or plan"
    if isinstance(machines.count, Range) and machines.count.max < machines.count.min:
        line = _line(("machines", "count", "max"), lines)
        yield f"line {line}: machines.count.max: {machines.count.max} is less than min, {machines.count.min}"
    if not (machines.type or machines.plan or machines.hosts or found.budget.usd_per_hour):
        where = f"line {lines['machines',]}: " if ("machines",) in lines else ""
        yield f"{where}machines: neither type nor plan, nor budget.usd_per_hour to plan for; give one of them"
    if machines.hosts and machines.plan:
        yield f"line {_line(('machines', 'plan'), lines)}: machines.plan: either hosts or plan"
    for key in ("launcher", "python"):
        if getattr(machines, key) and not machines.hosts:
            yield f"line {_line(('machines', key), lines)}: machines.{key}: only with hosts"
    if found.inject is not None:
        for key, problem in _impossible(found.inject, found.cloud):
            path = ("inject", key)
            yield f"line {_line(path, lines)}: {_dotted(path)}: {problem}"


def checked_injection(keys: Mapping[str, Any], cloud: str) -> dict[str, Any]:
    """The keys of ``inject`` by what the command line says; ``lives``: times with commas between them, or a file.

    Raises:
        RequestError: values that cannot be, or a cloud that cannot do it. What reading a trace raises.
    """
    lives, file = keys["lives"], Path(keys["lives"] or "")
    if lives is not None and not _is_file(file):
        keys = {**keys, "lives": [life.strip() for life in lives.split(",")]}
    try:
        found = Injected.model_validate({name: value for name, value in keys.items() if value is not None})
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise RequestError(key, (lives if key == "lives" else keys[key]), _allowed(("inject", key))) from None
    if isinstance(found.lives, str):
        found = _with_trace(found, file)
    for key, problem in _impossible(found, cloud):
        raise RequestError(key, keys[key], problem)
    return found.model_dump(mode="json")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a list of times is too long for a name
        return False


def _clouds_for(inject: Injected) -> tuple[str, ...]:
    return clouds_that_cut() if inject.silent else clouds_that_preempt()


def _impossible(inject: Injected, cloud: str) -> Iterator[tuple[str, str]]:
    """The keys that do not go with the others or the cloud, and what they go with."""
    able, lived = _clouds_for(inject), "mttp" if inject.lives is None else "lives"
    if cloud not in clouds_that_preempt():
        yield lived, f"only with {joined(able)}; the cloud {cloud} takes machines back itself"
    elif cloud not in able:
        yield "silent", f"only with {joined(able)}; the cloud {cloud} takes no links away"
    if (inject.mttp is None) == (inject.lives is None):
        yield lived, "either mttp or lives"
    if inject.scale != 1.0 and inject.lives is None:
        yield "scale", "only with lives"
    if sum(getattr(inject, fate) for fate in FATES) > 1:
        yield max(FATES, key=lambda name: float(getattr(inject, name))), f"{joined(FATES)}: at most 1 together"


def _at(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def _line(path: tuple[str | int, ...], lines: _LINES) -> int:
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if step.isprintable() else repr(step))[:60]
    return text


def _shown(value: Any) -> str:
    text = (
        "an object"
        if isinstance(value, dict)
        else f"a list of {len(value)}"
        if isinstance(value, list)
        else repr(value)
    )
    return text if len(text) < 60 else text[:56] + " ..."
