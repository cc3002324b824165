"""Pydantic's errors as issues of a file: line, key, value and what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from deepvm.documents.fields import InvalidValueError
from deepvm.documents.tree import KeyPath, Tree, shown
from deepvm.errors import Issue

MAX_ISSUES = 1000
_MISSING = object()


@dataclass(frozen=True)
class _Location:
    """Where an error is: the path in the file, its field, and the models that have such fields."""

    path: KeyPath
    value: Any
    field: FieldInfo | None
    owners: tuple[type[BaseModel], ...]

    @property
    def keys(self) -> list[str]:
        """The keys that could stand here."""
        names = [f.alias or n for model in self.owners for n, f in model.model_fields.items()]
        return [name for name in names if name != "$schema"]


def issues_of(error: ValidationError, model: type[BaseModel], tree: Tree) -> list[Issue]:
    """The first 1000 issues, one for each place; of another version only that it is one."""
    messages: dict[KeyPath, str] = {}
    renamed: set[KeyPath] = set()
    errors = error.errors(include_url=False, include_input=False)
    for one in sorted(errors[:MAX_ISSUES], key=lambda each: each["type"] != "extra_forbidden"):
        here = _locate(model, tree.value, one["loc"])
        label = tree.label(here.path)
        if one["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(here.path[-1]), here.keys, 1)
            renamed.update((*here.path[:-1], name) for name in near)
            messages[here.path] = f"unknown key {label} ({_known(near, here.keys)})"
        elif one["type"] == "missing":
            messages[here.path] = f"missing key {label} (expected {expected(here.field)})"
        else:
            messages.setdefault(here.path, _refusal(one, here, label))
    version: KeyPath = ("schema_version",)
    if version in messages and isinstance(tree.value, dict) and "schema_version" in tree.value:
        messages = {version: messages[version]}
    # A union refuses in the name of each member: the one that got furthest is meant.
    above = {path[:end] for path in messages for end in range(len(path))}
    return [
        Issue(text, tree.line(path), tree.label(path))
        for path, text in messages.items()
        if path not in above and not (path in renamed and text.startswith("missing"))
    ]


def rule_issues(broken: Iterable[tuple[KeyPath, str]], tree: Tree) -> list[Issue]:
    """What rules that join fields say, as issues."""
    issues = []
    for path, message in islice(broken, MAX_ISSUES):
        label = tree.label(path)
        issues.append(Issue(f"{label}: {message}", tree.line(path), label))
    return issues


def repeats(keys: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Positions of keys that came before, each with the position of the first one."""
    first: dict[Hashable, int] = {}
    for i, key in enumerate(keys):
        if first.setdefault(key, i) != i:
            yield i, first[key]


def expected(field: FieldInfo | None) -> str:
    """What a field may be, in words."""
    if field is None or not field.description:
        return "an object"
    return field.description


def field_at(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """The field of a key."""
    return _locate(model, None, path).field


def _known(near: list[str], keys: list[str]) -> str:
    if near:
        return f"did you mean {near[0]}?"
    return f"expected one of {', '.join(keys)}"


def _refusal(error: Any, here: _Location, label: str) -> str:
    context = error.get("ctx", {})
    if error["type"].startswith("union_tag"):
        tags = context.get("expected_tags", "") or ", ".join(_tags_of(here.owners))
        return f"invalid value for {label}: {shown(here.value)} (expected the kind {tags})"
    if isinstance(context.get("error"), InvalidValueError):
        return f"invalid value for {label}: {shown(here.value)}: {context['error']}"
    if error["type"].startswith("model_") and here.path[-1:] and isinstance(here.path[-1], int):
        wanted = "an object"
    else:
        wanted = expected(here.field)
    if not here.path:
        return f"{shown(here.value)} (expected an object)"
    return f"invalid value for {label}: {shown(here.value)} (expected {wanted})"


def _locate(model: type[BaseModel], document: Any, loc: KeyPath) -> _Location:
    """Follow an error's location; names that pydantic gives to members of unions are skipped."""
    path: KeyPath = ()
    value = document
    field = None
    owners: tuple[type[BaseModel], ...] = (model,)
    models = owners
    named_by_user = False
    for step in loc:
        if isinstance(step, str):
            tagged = tuple(m for m in models if step in _tags_of((m,)))
            if len(models) > 1 and tagged:
                models = tagged
                continue
            own = _field_named(models, step)
            here = isinstance(value, dict) and step in value
            if named_by_user and (here or document is None):
                named_by_user = False
            elif own is not None:
                owners = models
                field = own
                models = tuple(_models_in(own.annotation))
                named_by_user = _is_mapping(own.annotation)
            elif here:
                owners = models
                field = None
            else:
                continue
        path = (*path, step)
        value = _at(value, step)
    return _Location(path, value, field, owners)


def _field_named(models: Iterable[type[BaseModel]], name: str) -> FieldInfo | None:
    for model in models:
        for key, field in model.model_fields.items():
            if name == (field.alias or key):
                return field
    return None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(map(_is_mapping, get_args(annotation)))


def _tags_of(models: Iterable[type[BaseModel]]) -> list[str]:
    """The values of ``kind`` that distinguish the members of a union."""
    fields = [model.model_fields.get("kind") for model in models]
    return [tag for field in fields if field for tag in get_args(field.annotation)]


def _at(value: Any, step: str | int) -> Any:
    try:
        return value[step]
    except (KeyError, IndexError, TypeError):
        return _MISSING
