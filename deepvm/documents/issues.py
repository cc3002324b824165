"""Pydantic's errors as issues of a file: line, key, value and what is expected."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from deepvm.core.spelling import did_you_mean
from deepvm.documents.fields import InvalidValueError
from deepvm.documents.tree import KeyPath, Tree, shown
from deepvm.errors import Issue

MAX_ISSUES = 1000
_KINDS = ("union_tag_invalid", "union_tag_not_found")
"""Errors of pydantic about ``kind``, by which members of a union differ."""


class _Location(NamedTuple):
    """Where an error is: the path in the file, its field, and the fields that may be there.

    ``kinds``: the values of ``kind`` that may be there.
    """

    path: KeyPath
    value: Any
    field: FieldInfo | None
    fields: Mapping[Any, FieldInfo]
    kinds: Sequence[str] = ()


def issues_of(error: ValidationError, model: type[BaseModel], tree: Tree) -> list[Issue]:
    """The first 1000 issues, one for each place; of another version only that it is one."""
    messages: dict[KeyPath, str] = {}
    for one in error.errors(include_url=False, include_input=False)[:MAX_ISSUES]:
        loc = one["loc"]
        if one["type"] in _KINDS:
            loc = (*loc, "kind")
        here = _locate(model, tree.value, loc)
        label = tree.label(here.path)
        if one["type"] == "extra_forbidden":
            messages[here.path] = f"unknown key {label} ({_known(here)})"
        elif one["type"] in ("missing", "union_tag_not_found"):
            messages[here.path] = f"missing key {label} ({_reason(one, here)})"
        else:
            message = f"invalid value for {label}: {shown(here.value)} ({_reason(one, here)})"
            messages.setdefault(here.path, message)
    version: KeyPath = ("schema_version",)
    if version in messages and "schema_version" in tree.value:
        messages = {version: messages[version]}
    # A union refuses in the name of each member: the one that got furthest is meant.
    above = {path[:end] for path in messages for end in range(len(path))}
    return [tree.issue(path, text) for path, text in messages.items() if path not in above]


def rule_issues(broken: Iterable[tuple[KeyPath, str]], tree: Tree) -> list[Issue]:
    """Violations of rules about several fields, as issues."""
    return [
        tree.issue(path, f"{tree.label(path)}: {message}")
        for path, message in islice(broken, MAX_ISSUES)
    ]


def repeats(keys: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Positions of keys that came before, each with the position of the first one."""
    first: dict[Hashable, int] = {}
    for i, key in enumerate(keys):
        if first.setdefault(key, i) != i:
            yield i, first[key]


def expected(model: type[BaseModel], path: KeyPath) -> str:
    """What the value of a key may be, in words."""
    field = _locate(model, None, path).field
    return (field and field.description) or "an object"


def _known(here: _Location) -> str:
    names = [name for name in here.fields if name != "$schema"]
    near = did_you_mean(str(here.path[-1]), names)
    return near or f"expected one of {', '.join(names)}"


def _reason(error: Any, here: _Location) -> str:
    """The field's description, else what pydantic says."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValueError):
        return str(cause)
    if error["type"].startswith("model_"):
        return "expected an object"
    if error["type"] in _KINDS:
        return f"expected {' or '.join(here.kinds)}"
    if here.field is not None and here.field.description and "tag" not in error["type"]:
        return f"expected {here.field.description}"
    return str(cause or error["msg"])


def _locate(model: type[BaseModel], document: Any, loc: KeyPath) -> _Location:
    """Follow an error's location; names that pydantic gives to members of unions are skipped."""
    here = _Location((), document, None, {})
    models = [model]
    for step in loc:
        tagged = [one for one in models if step in _kinds(one)]
        if tagged and len(models) > 1:
            models = tagged
            continue
        kinds = [kind for one in models for kind in _kinds(one)]
        fields: dict[Any, FieldInfo] = {
            f.alias or name: f for one in models for name, f in one.model_fields.items()
        }
        if step in fields:
            models = list(_models_in(fields[step].annotation))
        elif isinstance(step, str) and not (isinstance(here.value, dict) and step in here.value):
            continue
        value = None
        with suppress(KeyError, IndexError, TypeError):
            value = here.value[step]
        here = _Location((*here.path, step), value, fields.get(step, here.field), fields, kinds)
    return here


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values of ``kind``, by which members of a union differ."""
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
