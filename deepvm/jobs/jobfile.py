"""Job files of ``deepvm run``: what to train, where, for how much. Errors name line and key."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.core.spelling import joined
from deepvm.core.units import MOST_USD, format_seconds, parse_seconds
from deepvm.documents.fields import InvalidValueError, Number, Whole
from deepvm.documents.formats import yaml
from deepvm.documents.reader import FileFormat, Rules
from deepvm.errors import Issue, JobFormatError, RequestError
from deepvm.io.agent_board import AGENT, MOST_RANKS
from deepvm.io.agent_link import EPOCH, INDEPENDENT, SAVE_EVERY
from deepvm.jobs.clouds.registry import CLOUDS, clouds_that_cut, clouds_that_preempt, find_cloud
from deepvm.jobs.decisions.injection import FATES, Injection
from deepvm.jobs.storage import git_code

SCHEMA_VERSION = "deepvm.job/1"
MOST_MACHINES = 4096
MOST_LIVES = 1000
_MOST_STEPS = 10**12
_DATA_PLACE = re.compile(r"s3://[^/\0?#@]+(/[^\0?#]*)?|file:///[^\0?#]*|/[^\0]*", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/[^\0]*")
_NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"


def _seconds(value: object) -> float:
    if isinstance(value, float):  # read before
        return value
    if not isinstance(value, str):  # 12 without a unit is no deadline
        raise ValueError("no time with a unit")
    return parse_seconds(value, "time")


def _no_plan(value: object) -> object:
    if str(value).startswith("deepvm.recommend/"):
        raise InvalidValueError("this is a plan; add the command after it: -- python train.py")
    return value


def _accepted(check: Callable[[str], object]) -> AfterValidator:
    """Texts in which a check finds nothing wrong."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


def _variable_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise InvalidValueError(
            "no name of a variable; allowed: letters, digits and _, no digit first"
        )
    if value in _SET_BY_DEEPVM:
        key = _SET_BY_DEEPVM[value]
        cure = "leave it out"
        if key:
            cure = f"use the key {key!r} of the job file"
        raise InvalidValueError(f"deepvm sets {value} itself; {cure}")
    return value


_SET_BY_DEEPVM = {
    **dict.fromkeys(
        ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), ""
    ),
    **dict.fromkeys((AGENT, EPOCH, INDEPENDENT), ""),
    **{"DEEPVM_JOB": "name", "DEEPVM_TIERS": "tiers", "DEEPVM_DATA": "data"},
    **{"DEEPVM_KEEP": "keep", SAVE_EVERY: "save_every_steps"},
}
"""Variables of trainers, with the key of a job file that is meant; empty if there is none."""


def _variable(value: object) -> str:
    """The value of a variable, which may be written as a number."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        type_name = _YAML_TYPES.get(type(value), type(value).__name__)
        raise InvalidValueError(
            f"YAML reads this value as {type_name}, not as text; put it in quotes"
        )
    if "\0" in str(value):
        raise InvalidValueError("a NUL character, which no variable can hold")
    return str(value)


_YAML_TYPES = {bool: "true or false", type(None): "nothing", list: "a list", dict: "an object"}


def _source(value: object) -> object:
    """Where data are: a URL, an absolute path, or a place where they are already."""
    place, form = value, _DATA_PLACE
    if isinstance(value, dict) and list(value) == ["mount"]:
        place, form = value["mount"], _ABSOLUTE
    if not isinstance(place, str) or not form.fullmatch(place):
        raise ValueError("no place of data")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Timeout: TypeAlias = Literal["none"] | Seconds
Usd = Annotated[Number, Field(gt=0, le=MOST_USD)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[Whole, Field(ge=1, le=MOST_MACHINES)]
Steps = Annotated[Whole, Field(ge=1, le=_MOST_STEPS)]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
_TIME = "a time with a unit, such as 30s, 90min or 12h"
_TIMEOUT = f"{_TIME}, or none"
_WHOLE = f"a whole number from 1 to {MOST_MACHINES}"


def _field(what: str, default: Any = ...) -> Any:
    return Field(default, description=what)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Range(_Strict):
    """Machines of a job that continues with fewer."""

    min: Count = _field(_WHOLE)
    max: Count = _field(f"{_WHOLE}, at least min")


class Machines(_Strict):
    """What trains."""

    type: Text | None = _field("an instance type, such as g4dn.xlarge", None)
    plan: Text | None = _field("the file of a plan: deepvm recommend -o json > plan.json", None)
    count: Count | Range | None = _field(f"{_WHOLE}, or {{min: 2, max: 4}}", None)
    market: Literal["spot", "on-demand"] = _field("spot or on-demand", "spot")
    zone: Text | None = _field("a zone, such as us-east-1a", None)
    hosts: Text | None = _field("the file of hosts of your own, for cloud: ssh", None)
    launcher: Text | None = _field(
        "how commands get to hosts: ssh, or words with {host} in them", None
    )
    python: Text | None = _field("the interpreter of hosts, such as ~/venv/bin/python", None)


class Anchor(_Strict):
    """The machine that keeps versions in its memory."""

    type: Text = _field("an instance type, such as m7g.large")
    memory: Text | None = _field("memory for versions, such as 6GiB", None)


class Budget(_Strict):
    """What the job may cost, and when it must end."""

    usd_per_hour: Usd | None = _field("dollars an hour, above 0: a number such as 3", None)
    max_price: Usd | None = _field("dollars an hour, above 0: a number such as 4", None)
    total_usd: Usd | None = _field("dollars in all, above 0: a number such as 50", None)
    deadline: Seconds | None = _field(_TIME, None)
    deadline_policy: Literal["greedy", "uniform-progress"] = _field(
        "greedy or uniform-progress", "uniform-progress"
    )


class Injected(_Strict):
    """Preemptions on purpose, on clouds that can."""

    mttp: Seconds | None = _field(_TIME, None)
    lives: Annotated[list[Seconds], Field(min_length=1, max_length=MOST_LIVES)] | Text | None = (
        _field("a list of times such as [30s, 2min], or the file of a trace", None)
    )
    scale: Annotated[Number, Field(gt=0, le=1e6)] = _field(
        "a number above 0, by which lives are multiplied", 1.0
    )
    seed: int = _field("a whole number", 0)
    count: Annotated[Whole, Field(ge=0, le=10_000)] | None = _field(
        "how many in all, a whole number from 0", None
    )
    grace: Seconds = _field(_TIME, 120.0)
    missed: Share = _field("the share without a notice, from 0 to 1", 0.0)
    late: Share = _field("the share whose notice comes late, from 0 to 1", 0.0)
    silent: Share = _field("the share that loses its link and lives on, from 0 to 1", 0.0)
    rebalance: Share = _field(
        "the share to which a rebalance is recommended before, from 0 to 1", 0.0
    )


class JobFile(_Strict):
    """All of a job file; see docs/reference/run-file.md."""

    schema_version: Annotated[Literal["deepvm.job/1"], BeforeValidator(_no_plan)] = _field(
        SCHEMA_VERSION, "deepvm.job/1"
    )
    name: Annotated[str, Field(pattern=_NAME)] = _field(
        "1 to 40 lower-case letters, digits and hyphens, a letter or digit first and last"
    )
    train: Text = _field("the command that trains, such as python train.py --epochs 90")
    launcher: Literal["direct", "torchrun"] = _field("direct or torchrun", "direct")
    code: Annotated[Text, _accepted(git_code.parse)] | None = _field(
        "a folder, or git: URL@REF", None
    )
    setup: Text | None = _field("a command that is run once on each machine", None)
    env: dict[
        Annotated[str, AfterValidator(_variable_name)], Annotated[str, BeforeValidator(_variable)]
    ] = _field("names of variables with texts, such as {OMP_NUM_THREADS: '1'}", {})
    processes_per_machine: Literal["gpus"] | Annotated[Count, Field(le=MOST_RANKS)] = _field(
        f"gpus, or a whole number from 1 to {MOST_RANKS}", "gpus"
    )
    independent_processes: bool = _field("true or false", False)
    data: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")],
        Annotated[str | dict[str, str], PlainValidator(_source)],
    ] = _field(
        "names with s3://bucket/prefix, file:///folder or an absolute path, such as {train:"
        " s3://bucket/train}; or {train: {mount: /mnt/data}} where they are already",
        {},
    )
    machines: Machines = _field(
        "{type: g4dn.xlarge, count: 2}; there are type, plan, hosts, count, market, zone",
        Machines(),
    )
    anchor: Anchor | Literal["none"] | None = _field("{type: m7g.large}, or none", None)
    tiers: list[Text] = _field("a list of URLs, such as [s3://bucket/run]", [])
    save_policy: Annotated[str, _accepted(parse_policy)] = _field(
        "a save policy, such as adaptive, thesis or static:100", "adaptive"
    )
    save_every_steps: Steps | None = _field(
        f"a whole number from 1 to {_MOST_STEPS:.0e}, or null", None
    )
    steps: Steps | None = _field(
        f"how many the training takes in all, a whole number from 1 to {_MOST_STEPS:.0e}", None
    )
    keep: Annotated[Whole, Field(ge=0, le=10_000)] = _field("a whole number from 0", 2)
    budget: Budget = _field(
        "{total_usd: 50, usd_per_hour: 3, deadline: 12h}, each of which may be left out", Budget()
    )
    cloud: Annotated[str, _accepted(find_cloud)] = _field(joined(CLOUDS, "or"), "local")
    orphan_after: Seconds = _field(_TIME, 1800.0)
    start_timeout: Timeout = _field(_TIMEOUT, 1800.0)
    step_timeout: Timeout = _field(_TIMEOUT, 1800.0)
    inject: Injected | None = _field("{mttp: 30s, seed: 1, count: 5, grace: 5s, missed: 0}", None)


def read_job_file(path: Path) -> JobFile:
    """Read a job file.

    Raises:
        JobFormatError: unknown or repeated keys, values that cannot be, files that are not there.
        DataError: no such file. CatalogFormatError: it is no regular file, or not text; the same of
            a trace.
    """
    found = FORMAT.read(path)
    folder = path.parent
    if found.code and not found.code.startswith("git:") and not (folder / found.code).is_dir():
        message = f"invalid value for code: there is no folder {found.code!r}"
        raise JobFormatError(path, [Issue(message, FORMAT.line_of(path, "code"), "code")])
    inject = found.inject
    if inject is None or not isinstance(inject.lives, str):
        return found
    return found.model_copy(update={"inject": _with_trace(inject, folder / inject.lives)})


def _with_trace(inject: Injected, file: Path) -> Injected:
    """With the lives of a trace instead of its name. Raises DataError, CatalogFormatError."""
    from deepvm.simulator.traces.trace import lives_to_replay

    return inject.model_copy(update={"lives": [*lives_to_replay([file])[:MOST_LIVES]]})


def job_of_plan(plan: Path, command: Sequence[str]) -> JobFile:
    """A job that trains code of the current folder on the machines of a plan.

    Raises RequestError.
    """
    if not command[0].strip():
        raise RequestError("command", shlex.join(command), FORMAT.describe("train"))
    name = re.sub(r"[^a-z0-9]+", "-", _trained(command).lower()).strip("-")[:40].strip("-") or "job"
    try:
        return JobFile(
            name=name, train=shlex.join(command), code=".", machines=Machines(plan=str(plan))
        )
    except ValidationError:
        raise RequestError("command", " ".join(command), FORMAT.describe("train")) from None


def _trained(command: Sequence[str]) -> str:
    """The script or module that a command runs, without its folder or package."""
    for word, after in zip(command, [*command[1:], ""], strict=True):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and after:
            return after.rpartition(".")[2]
    return Path(command[0]).stem


def changed(job: JobFile, **options: Any) -> JobFile:
    """A job with what the command line says, None for nothing. Raises RequestError."""
    given = {key: value for key, value in options.items() if value is not None}
    if not given:
        return job
    typed = dict(given)
    processes = str(given.get("processes_per_machine"))
    if processes.isdecimal():
        given["processes_per_machine"] = int(processes)
    known = job.model_dump(by_alias=True, exclude_unset=True)
    money: JsonDict = {key: given.pop(key) for key in ("total_usd", "max_price") if key in given}
    if money:
        given["budget"] = {**known.get("budget", {}), **money}
    try:
        found = JobFile.model_validate({**known, **given})
    except ValidationError as error:
        path = tuple(str(step) for step in error.errors()[0]["loc"])
        # Below it are the forms that a value may have.
        key = path[1] if path[0] == "budget" else path[0]
        raise RequestError(key, typed[key], FORMAT.describe(*path)) from None
    if found.inject is not None and found.cloud not in (able := _clouds_for(found.inject)):
        raise RequestError(
            "cloud", found.cloud, f"{joined(able, 'or')}, as the file's inject needs"
        )
    if found.independent_processes and found.launcher != "direct":
        raise RequestError("independent_processes", True, _ONE_GROUP)
    return found


def remarks(job: JobFile) -> Iterator[str]:
    """What to know of a job before it starts."""
    machines = job.machines
    if machines.type is None and machines.plan is None and machines.hosts is None:
        better = (
            f"deepvm recommend --pw {job.budget.usd_per_hour:g} --model MODEL -o json > plan.json"
        )
        yield (
            f"these machines train a ResNet-50 fastest; for your model: {better}, and machines:"
            " {plan: plan.json}"
        )
    if job.budget.deadline is not None and job.steps is None and job.machines.market == "spot":
        stop = "the deadline only stops the job in time"
        yield (
            f"{stop}; with 'steps: N', the steps of all the work, spot and on-demand VMs are chosen"
            " so that it is met"
        )
    if job.inject is not None and job.inject.count is None:
        life_s = Injection.of(job.inject.model_dump()).mean_s
        grace_s = job.inject.grace
        if life_s < grace_s:
            mean = format_seconds(life_s, digits=2)
            grace = format_seconds(grace_s, digits=2)
            yield (
                f"machines train for {mean} on average (inject.mttp or lives), then last {grace}"
                " more (inject.grace)"
            )


def _rules(job: JobFile) -> Rules:
    machines = job.machines
    if machines.type and machines.plan:
        yield ("machines", "plan"), "either type or plan"
    count = machines.count
    if isinstance(count, Range) and count.max < count.min:
        yield ("machines", "count", "max"), f"{count.max} is less than min, {count.min}"
    if not (machines.type or machines.plan or machines.hosts or job.budget.usd_per_hour):
        yield ("machines",), "expected type or plan, or budget.usd_per_hour to plan for"
    if machines.hosts and machines.plan:
        yield ("machines", "plan"), "either hosts or plan"
    for key in ("launcher", "python"):
        if getattr(machines, key) and not machines.hosts:
            yield ("machines", key), "only with hosts"
    if job.independent_processes and job.launcher != "direct":
        yield ("independent_processes",), _ONE_GROUP
    if job.inject is None:
        return
    for key, message in _impossible(job.inject, job.cloud):
        yield ("inject", key), message
    grace = job.inject.grace
    limit = job.step_timeout
    if limit != "none" and limit < grace:
        short = format_seconds(limit, digits=2)
        long = format_seconds(grace, digits=2)
        yield (
            ("step_timeout",),
            f"{short} is shorter than inject.grace, {long}: trainers may wait so long without a"
            " step after a notice",
        )


_ONE_GROUP = "only with launcher: direct; torchrun starts the processes of one group"
FORMAT = FileFormat(
    JobFile, "a job file, see docs/reference/run-file.md", yaml.load, _rules, JobFormatError
)


def checked_injection(keys: JsonObject, cloud: str) -> JsonDict:
    """The keys of ``inject`` by what the command line says.

    ``lives``: times with commas between them, or a file.

    Raises:
        RequestError: values that cannot be, or a cloud that cannot do it. What reading a trace
            raises.
    """
    lives = keys["lives"]
    file = Path(keys["lives"] or "")
    if lives is not None and not _is_file(file):
        keys = {**keys, "lives": [life.strip() for life in lives.split(",")]}
    try:
        found = Injected.model_validate(
            {name: value for name, value in keys.items() if value is not None}
        )
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise RequestError(
            key, (lives if key == "lives" else keys[key]), FORMAT.describe("inject", key)
        ) from None
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
    if inject.silent:
        return clouds_that_cut()
    return clouds_that_preempt()


def _impossible(inject: Injected, cloud: str) -> Iterator[tuple[str, str]]:
    """The keys that do not go with the others or the cloud, and what they go with."""
    able = _clouds_for(inject)
    lived = "mttp" if inject.lives is None else "lives"
    if cloud not in clouds_that_preempt():
        yield lived, f"only with {joined(able)}; the cloud {cloud} takes machines back itself"
    elif cloud not in able:
        yield "silent", f"only with {joined(able)}; the cloud {cloud} takes no links away"
    if (inject.mttp is None) == (inject.lives is None):
        yield lived, "either mttp or lives"
    if inject.scale != 1.0 and inject.lives is None:
        yield "scale", "only with lives"
    if sum(getattr(inject, fate) for fate in FATES) > 1:
        yield (
            max(FATES, key=lambda name: float(getattr(inject, name))),
            f"{joined(FATES)}: at most 1 together",
        )
