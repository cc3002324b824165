"""Job files of ``deepvm run``: what to train, where, for how much. Errors name line and key."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds
from deepvm.documents.fields import FORMATS, InvalidValueError, Stripped
from deepvm.documents.formats import yaml
from deepvm.documents.models import model_of
from deepvm.documents.reader import FileFormat, Rules
from deepvm.errors import Issue, JobFormatError, RequestError
from deepvm.io.agent_board import AGENT
from deepvm.io.agent_link import EPOCH, INDEPENDENT, SAVE_EVERY
from deepvm.jobs.clouds.registry import CLOUDS, clouds_that_cut, clouds_that_preempt, find_cloud
from deepvm.jobs.decisions.injection import FATES, Injection
from deepvm.jobs.storage import job_code

_MOST_LIVES = 1000
_MOST_PATTERN_BYTES = 255  # Of a file name on Linux
_DATA_PLACE = re.compile(r"s3://[^/\0?#@]+(/[^\0?#]*)?|file:///[^\0?#]*|/[^\0]*", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/[^\0]*")
# Variables of trainers, with the key of a job file that is meant; empty if there is none
_SET_BY_DEEPVM = {
    **dict.fromkeys(
        ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), ""
    ),
    **dict.fromkeys((AGENT, EPOCH, INDEPENDENT), ""),
    **{"DEEPVM_JOB": "name", "DEEPVM_TIERS": "tiers", "DEEPVM_DATA": "data"},
    **{"DEEPVM_KEEP": "keep", SAVE_EVERY: "save_every_steps"},
}
_YAML_TYPES = {bool: "true or false", list: "a list", dict: "an object"}


def _no_plan(value: object) -> object:
    if str(value).startswith("deepvm.recommend/"):
        raise InvalidValueError("this is a plan; add the command after it: -- python train.py")
    return value


def _accepted(check: Callable[[str], object]) -> Any:
    """Texts in which a check finds nothing wrong."""

    def validate(value: str) -> str:
        check(value)
        return value

    return Annotated[Stripped, AfterValidator(validate)]


def _variable_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise InvalidValueError(
            "no name of a variable; allowed: letters, digits and _, no digit first"
        )
    if value in _SET_BY_DEEPVM:
        key = _SET_BY_DEEPVM[value]
        cure = f"use the key {key!r} of the job file" if key else "leave it out"
        raise InvalidValueError(f"deepvm sets {value} itself; {cure}")
    return value


def _variable(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        type_name = _YAML_TYPES.get(type(value), type(value).__name__)
        raise InvalidValueError(
            f"YAML reads this value as {type_name}, not as text; put it in quotes"
        )
    if "\0" in str(value):
        raise InvalidValueError("a NUL character, which no variable can hold")
    return str(value)


def _pattern(value: str) -> str:
    if value.startswith(("/", "~")) or ".." in Path(value).parts or "\0" in value:
        raise InvalidValueError("it leads out of the folder of the code")
    try:
        if len(os.fsencode(value)) > _MOST_PATTERN_BYTES:
            raise ValueError(f"longer than {_MOST_PATTERN_BYTES} bytes")
        next(Path("/proc/self/fdinfo").glob(value), None)
    except (ValueError, NotImplementedError, IndexError) as error:
        raise InvalidValueError(f"no pattern of files: {error}") from None
    return value


def _source(value: object) -> object:
    place, form = value, _DATA_PLACE
    if isinstance(value, dict) and list(value) == ["mount"]:
        place, form = value["mount"], _ABSOLUTE
    if not isinstance(place, str) or not form.fullmatch(place):
        raise ValueError("no place of data")
    return value


FORMATS.update(
    job_version=Annotated[Literal["deepvm.job/1"], BeforeValidator(_no_plan)],
    code=_accepted(job_code.parse),
    save_policy=_accepted(parse_policy),
    cloud=Annotated[_accepted(find_cloud), Field(description=joined(CLOUDS, "or"))],
    variable_name=Annotated[Stripped, AfterValidator(_variable_name)],
    variable=Annotated[Stripped, BeforeValidator(_variable)],
    output_pattern=Annotated[Stripped, AfterValidator(_pattern)],
    data_source=Annotated[str | dict[str, str], PlainValidator(_source)],
)
_Document: Any = model_of("run_file.JobFile")


class JobFile(_Document):  # type: ignore[misc]
    """All of a job file; see ``data/documents/run_file.json``."""


def read_job_file(path: Path) -> JobFile:
    """Read a job file. Raises JobFormatError, CatalogFormatError; DataError: there is none."""
    if path.suffix == ".py" and path.is_file():
        message = f"this is a script: deepvm run plan.json -- python {path}"
        raise JobFormatError(path, [Issue(message)])
    found: JobFile = FORMAT.read(path)
    folder = path.parent
    if found.code and not found.code.startswith("git:") and not os.path.isdir(folder / found.code):
        message = f"invalid value for code: there is no folder {found.code!r}"
        raise JobFormatError(path, [Issue(message, FORMAT.line_of(path, "code"), "code")])
    for name in [name for name, value in found.env.items() if value is None]:
        if not os.environ.get(name):
            message = f"no value for env.{name}: {name} is not set here (try: export {name}=...)"
            raise JobFormatError(path, [Issue(message, FORMAT.line_of(path, f"env.{name}"), "env")])
        found.env[name] = os.environ[name]
    inject = found.inject
    if inject is None or not isinstance(inject.lives, str):
        return found
    found.inject = _with_trace(inject, folder / inject.lives)
    return found


def _with_trace(inject: Any, file: Path) -> Any:
    from deepvm.simulator.traces.trace import lives_to_replay

    return inject.model_copy(update={"lives": [*lives_to_replay([file])[:_MOST_LIVES]]})


def job_of_plan(plan: Path, command: Sequence[str]) -> JobFile:
    """A job that trains code of this folder on the machines of a plan. Raises RequestError."""
    if not command[0].strip():
        raise RequestError("command", shlex.join(command), FORMAT.describe("train"))
    if not (plan.suffix or plan.is_file()):
        message = f"this is no plan: deepvm run plan.json -- {plan} {shlex.join(command)}"
        raise JobFormatError(plan, [Issue(message)])
    name = re.sub(r"[^a-z0-9]+", "-", _trained(command).lower()).strip("-")[:40].strip("-") or "job"
    try:
        return JobFile(name=name, train=shlex.join(command), code=".", machines={"plan": str(plan)})
    except ValidationError:
        raise RequestError("command", " ".join(command), FORMAT.describe("train")) from None


def _trained(command: Sequence[str]) -> str:
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
    if "outputs" in given:
        given["outputs"] = [name.strip() for name in given["outputs"].split(",") if name.strip()]
    known = job.model_dump(by_alias=True, exclude_unset=True)
    money: JsonDict = {key: given.pop(key) for key in ("total_usd", "max_price") if key in given}
    if money:
        given["budget"] = {**known.get("budget", {}), **money}
    try:
        found: JobFile = JobFile.model_validate({**known, **given})
    except ValidationError as error:
        path = tuple(str(step) for step in error.errors()[0]["loc"])
        # Below it are the forms that a value may have.
        key = path[1] if path[0] == "budget" else path[0]
        raise RequestError(key, typed[key], FORMAT.describe(*path)) from None
    if found.inject is not None and found.cloud not in (able := _clouds_for(found.inject)):
        raise RequestError(
            "cloud", found.cloud, f"{joined(able, 'or')}, as inject and --rehearse need"
        )
    if found.independent_processes and found.launcher != "direct":
        raise RequestError("independent_processes", True, _ONE_GROUP)
    return found


def remarks(job: JobFile) -> Iterator[str]:
    """What to know of a job before it starts."""
    machines = job.machines
    if machines.type is None and machines.plan is None and machines.hosts is None:
        yield (
            "these machines train a ResNet-50 fastest; for your model: deepvm recommend --pw"
            f" {job.budget.usd_per_hour:g} --model MODEL -o json > plan.json, and machines:"
            " {plan: plan.json}"
        )
    if job.budget.deadline is not None and job.steps is None and job.machines.market == "spot":
        yield (
            "the deadline only stops the job in time; with 'steps: N', the steps of all the work,"
            " spot and on-demand VMs are chosen so that it is met"
        )
    if job.cloud == "ssh" and (script := re.search(r"(?<!\S)/\S+\.py", job.train)):
        yield f"hosts get only the code folder: {script[0]} has to be on each of them already"
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
    if not (count is None or isinstance(count, int)) and count.max < count.min:
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
    JobFile,
    "a job file, see 'deepvm help running'",
    yaml.load,
    _rules,
    JobFormatError,
    {"step_s": "a simulation file of 'deepvm simulate --job'"},
    secret="env",
)


def checked_injection(keys: JsonObject, cloud: str) -> JsonDict:
    """``inject`` by the command line; ``lives``: times, or a file. Raises RequestError."""
    given = {name: value for name, value in keys.items() if value is not None}
    # A list of times may be too long for a name, which pathlib raises
    if "lives" in given and not os.path.isfile(given["lives"]):
        given["lives"] = [life.strip() for life in given["lives"].split(",")]
    try:
        found: Any = model_of("run_file.Injected").model_validate(given)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise RequestError(key, keys[key], FORMAT.describe("inject", key)) from None
    if isinstance(found.lives, str):
        found = _with_trace(found, Path(found.lives))
    for key, problem in _impossible(found, cloud):
        raise RequestError(key, keys[key], problem)
    plain: JsonDict = found.model_dump(mode="json")
    return plain


def _clouds_for(inject: Any) -> tuple[str, ...]:
    if inject.silent:
        return clouds_that_cut()
    return clouds_that_preempt()


def _impossible(inject: Any, cloud: str) -> Iterator[tuple[str, str]]:
    able = _clouds_for(inject)
    lived = "mttp" if inject.lives is None else "lives"
    if cloud not in clouds_that_preempt():
        yield lived, f"only with {joined(able)}; the cloud {cloud} preempts machines itself"
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
