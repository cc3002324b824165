"""Write docs/reference/{cli,api}/*.md and documents.md: ``python scripts/reference_pages.py``."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

import deepvm
import deepvm.training
from deepvm.cli.app import COMMANDS, load

PAGES = Path(__file__).parents[1] / "docs" / "reference"
WIDTH = 110
PUBLIC = {
    "deepvm": tuple(deepvm.__all__),
    "deepvm.training": tuple(deepvm.training.__all__),
    "deepvm.checkpoint": (
        "Checkpointer",
        "ResumableLoader",
        "training_run",
        "TrainingRun",
        "inspect_latest",
    ),
    "deepvm.checkpoint.dcp": ("DeepVMReader", "DeepVMWriter"),
    "deepvm.checkpoint.loggers": ("TensorBoard",),
    "deepvm.lab": ("SampleLog",),
}
"""The modules that users import. The callbacks of trainers need these trainers."""
OPEN_CLASSES = ("Checkpointer", "ResumableLoader", "TrainingRun", "SampleLog")
"""Classes whose methods users call."""
WRITTEN = "<!-- Written by scripts/reference_pages.py. -->\n"


def commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """The command and those below it, each with what the user types."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{words} {name}")


def cli_page(entry: Any) -> str:
    """The help of a command and of those below it, as the terminal shows it."""
    text = f"{WRITTEN}\n# deepvm {entry.name}\n\n[All commands](index.md)\n"
    for words, command in commands(load(entry), f"deepvm {entry.name}"):
        context = click.Context(
            command, info_name=words, terminal_width=WIDTH, help_option_names=["-h", "--help"]
        )
        text += f"\n## {words}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    return text


def cli_index() -> str:
    """All commands, with the line that ``deepvm --help`` has of each."""
    text = f"{WRITTEN}\n# Commands\n\n`deepvm COMMAND --help` prints the same.\n\n"
    text += "| command | what it does |\n|---|---|\n"
    return text + "".join(
        f"| [`deepvm {entry.name}`]({entry.name}.md) | {entry.help} |\n" for entry in COMMANDS
    )


def type_name(annotation: Any) -> str:
    """An annotation as it stands in the source, without modules."""
    if isinstance(annotation, str):
        return annotation
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation))


def shown(parameter: inspect.Parameter) -> str:
    """A parameter with its type, and its default where that is a plain value."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = star + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {type_name(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    plain = parameter.default is None or isinstance(
        parameter.default, (bool, int, float, str, tuple)
    )
    return f"{text} = {parameter.default!r}" if plain else f"{text} = ..."


def signature(name: str, thing: Any) -> str:
    """A thing's signature, one parameter a line; an enumeration's members; a property's type."""
    if isinstance(thing, property):
        returned = inspect.signature(thing.fget).return_annotation  # type: ignore[arg-type]
        return f"{name}: {type_name(returned)}"
    if isinstance(thing, enum.EnumMeta):
        return "\n".join(
            [f"class {name}:", *(f"    {m.name} = {json.dumps(m.value)}" for m in thing)]
        )
    if not inspect.isfunction(thing) and not dataclasses.is_dataclass(thing):
        thing = vars(thing).get("__init__")
        if thing is None:
            return f"class {name}"
    lines: list[str] = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        if parameter.name != "self":
            lines.append(shown(parameter))
    return (
        f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + ")" if lines else f"{name}()"
    )


def text_of(thing: Any) -> str:
    """The docstring, and for a class that of its constructor."""
    parts = [thing.__doc__]
    if inspect.isclass(thing) and not dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
        parts.append(thing.__init__.__doc__)
    text = "\n\n".join(inspect.cleandoc(part) for part in parts if part)
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def entry(title: str, code: str, thing: Any) -> str:
    """One public name: how it is used, and its docstring."""
    return f"\n## {title}\n\n```py\n{code}\n```\n\n```text\n{text_of(thing)}\n```\n"


def attributes(thing: Any) -> str:
    """A dataclass that users read and never make: its public fields."""
    fields = [
        f"    {f.name}: {type_name(f.type)}"
        for f in dataclasses.fields(thing)
        if f.repr and not f.name.startswith("_")
    ]
    return "\n".join([f"class {thing.__name__}:", *fields])


def api_page(module: str) -> str:
    """Every public name of a module."""
    text = f"{WRITTEN}\n# {module}\n\n[All modules](index.md)\n"
    for name in PUBLIC[module]:
        thing = getattr(importlib.import_module(module), name)
        if name in OPEN_CLASSES:
            text += of_class(f"{module}.{name}", thing)
        else:
            text += entry(f"{module}.{name}", signature(name, thing), thing)
        if name == "Checkpointer":
            from deepvm.checkpoint.training.save_handle import Handle

            text += entry("Handle", attributes(Handle), Handle)
    return text


def api_index() -> str:
    """All modules, with the names of each."""
    text = f"{WRITTEN}\n# Python API\n\nExamples: "
    text += "[use deepvm from Python](../../internals/guide/python.md), "
    text += "[scripts that survive](../../guide/survive.md).\n\n"
    text += "| module | names |\n|---|---|\n"
    for module, names in PUBLIC.items():
        text += f"| [`{module}`]({module}.md) | {', '.join(f'`{name}`' for name in names)} |\n"
    return text


def of_class(full: str, kind: type) -> str:
    """A class and its public members."""
    text = entry(full, signature(kind.__name__, kind), kind)
    for name, member in vars(kind).items():
        if not name.startswith("_") and isinstance(member, (property, types.FunctionType)):
            place = f"{kind.__name__}.{name}"
            text += entry(
                place, signature(place if isinstance(member, property) else name, member), member
            )
    return text


DOCUMENTS_INTRODUCTION = """
`-o json` and `-o yaml` print one document, `-o csv` a table of what it lists. `deepvm schema NAME` prints the JSON
Schema (draft 2020-12) of each: every key, with its unit. Tests compare schemas and what commands print.

One thing has one name: VMs are counted by `vm_count`, GPUs by `gpu_count` and `gpus_per_vm`, a GPU model is `gpu_name`,
a VM type `instance_type`. Names end in their unit (`_s`, `_usd`, `_usd_per_hour`, `_bytes`, `_gib`, `_gbps`), those of
ratios in `_share`, `_ratio` or `_error`. A few older names stay next to the right one; their descriptions say so.

In CSV an empty field is unknown, a value of an object has a dotted name such as `step_s.low`, and a list is JSON. Each
CSV has all its columns even if it has no rows.
"""  # noqa: E501


def columns_of_answers() -> Iterator[tuple[str, list[str]]]:
    """The columns of answers, as CSV and as data frames."""
    paper, snapshot = (
        deepvm.load_catalog("paper"),
        deepvm.load_catalog("aws-us-east-1", prices="snapshot"),
    )
    answers = {
        "recommend": deepvm.recommend(paper, 3),
        "recommend, with a model": deepvm.recommend(
            snapshot, 3, training=deepvm.workload(model="resnet50")
        ),
        "recommend, with a job": deepvm.recommend(paper, 3, work=100, mttp="12h"),
        "explain": deepvm.explain(paper, 3, "g5.xlarge"),
        "sweep": deepvm.sweep(paper, [3]),
        "sweep, with a model": deepvm.sweep(
            snapshot, [3], training=deepvm.workload(model="resnet50")
        ),
        "sweep, with a job": deepvm.sweep(paper, [3], work=100, mttp="12h"),
        "gpus": deepvm.gpus(snapshot, model="resnet50"),
        "performance": deepvm.predict("H100", model="resnet50"),
        "simulate": deepvm.simulate("gpt-117m", runs=1),
    }
    for name, answer in answers.items():
        yield name, deepvm.forms_of(answer).rows()[0]


def columns_of_documents() -> Iterator[tuple[str, Sequence[str]]]:
    """The columns of other CSV: their own, or those that follow from the schema."""
    from deepvm.reports.prices.types import CSV_HEADER
    from deepvm.reports.simulation.traces import FIT_HEADER, deadline_rows
    from deepvm.services.schemas import DOCUMENTS, rows_as

    yield "diff", CSV_HEADER
    yield "reproduce", rows_as("performance.FigureRow", ())[0]
    yield "traces-fit", FIT_HEADER
    yield "traces-replay", rows_as("simulation.ReplayCost", ())[0]
    yield "traces-deadline", deadline_rows([])[0]
    described = {name: found for name, found in DOCUMENTS.items() if found.kind}
    yield from (
        (name, rows_as(found.row, (), found.key)[0])
        for name, found in described.items()
        if found.rows or found.row != found.kind
    )


def documents_page() -> str:
    """Every document, and the columns of its CSV."""
    from deepvm.services.schemas import DOCUMENTS

    text = f"{WRITTEN}\n# Documents\n{DOCUMENTS_INTRODUCTION}\n"
    text += "| `deepvm schema` | what it is | command or file |\n|---|---|---|\n"
    text += "".join(
        f"| `{name}` | {found.text} | {found.where} |\n" for name, found in DOCUMENTS.items()
    )
    for title, columns in (
        ("Columns of answers, in CSV and in data frames", columns_of_answers()),
        ("Columns of other CSV", columns_of_documents()),
    ):
        text += f"\n## {title}\n"
        text += "".join(
            f"\n{name}: {', '.join(f'`{column}`' for column in header)}\n"
            for name, header in columns
        )
    return text


PAGES_BY_NAME: dict[str, Callable[[], str]] = {
    "documents.md": documents_page,
    "cli/index.md": cli_index,
    **{f"cli/{entry.name}.md": partial(cli_page, entry) for entry in COMMANDS},
    "api/index.md": api_index,
    **{f"api/{module}.md": partial(api_page, module) for module in PUBLIC},
}

if __name__ == "__main__":
    for name, page in PAGES_BY_NAME.items():
        (PAGES / name).parent.mkdir(exist_ok=True)
        (PAGES / name).write_text(page())
