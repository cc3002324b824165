"""The reader of files that users write: text, tree with lines, pydantic model, issues."""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from deepvm.core.spelling import did_you_mean
from deepvm.documents.fields import InvalidValueError
from deepvm.documents.formats import json
from deepvm.documents.tree import FileError, FileSyntaxError, KeyPath, Tree, load_tree, read_file
from deepvm.errors import CatalogFormatError, Issue
from deepvm.io.safe_read import StrPath
from deepvm.records import dataclass, field, replace

MAX_ISSUES = 1000
# Errors of pydantic about ``kind``, by which members of a union differ
_KINDS = ("union_tag_invalid", "union_tag_not_found")


class _Location(NamedTuple):
    path: KeyPath
    value: Any
    field: FieldInfo | None
    fields: Mapping[Any, FieldInfo]  # that may be there
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
            messages.setdefault(
                here.path, f"{tree.naming(here.path, here.value)} ({_reason(one, here)})"
            )
    version: KeyPath = ("schema_version",)
    if version in messages and "schema_version" in tree.value:
        messages = {version: messages[version]}
    # A union refuses in the name of each member: the one that got furthest is meant.
    above = {path[:end] for path in messages for end in range(len(path))}
    return [tree.issue(path, text) for path, text in messages.items() if path not in above]


def repeats(keys: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Positions of keys that came before, each with the position of the first one."""
    first: dict[Hashable, int] = {}
    for i, key in enumerate(keys):
        if first.setdefault(key, i) != i:
            yield i, first[key]


def _known(here: _Location) -> str:
    names = [name for name in here.fields if name != "$schema"]
    near = did_you_mean(str(here.path[-1]), names)
    return near or f"expected one of {', '.join(names)}"


def _reason(error: Any, here: _Location) -> str:
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
    if kind := model.model_fields.get("kind"):
        return get_args(kind.annotation)
    return ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


Model = TypeVar("Model", bound=BaseModel)
# Violations of rules about several fields: the key to change, and why
Rules = Iterable[tuple[KeyPath, str]]


@dataclass(frozen=True)
class FileFormat(Generic[Model]):
    """One kind of file; ``rules`` are checked where the model accepts it."""

    model: type[Model]
    expected: str
    load: Callable[[str], Tree] = json.load
    rules: Callable[[Model], Rules] | None = None
    error: FileError = CatalogFormatError
    others: Mapping[str, str] = field(default_factory=dict)  # By a key: the file that has it
    secret: str = ""  # The key whose values no message shows

    def read(self, path: StrPath) -> Model:
        """Read a file; raises ``error`` or, if it is not readable text, CatalogFormatError."""
        return self.parse(read_file(Path(path), self.expected), path)

    def read_plain(self, path: StrPath) -> Any:
        tree = self.tree(read_file(Path(path), self.expected), path)
        self.validated(tree, path)
        return tree.value

    def parse(self, text: str, name: StrPath) -> Model:
        return self.validated(self.tree(text, name), name)

    def tree(self, text: str, name: StrPath) -> Tree:
        tree = load_tree(text, name, self.expected, self.load, self.error)
        return replace(tree, secret=self.secret)

    def validated(self, tree: Tree, name: StrPath) -> Model:
        issues = list(tree.issues)
        try:
            model = self.model.model_validate(tree.value)
        except ValidationError as error:
            if not isinstance(tree.value, dict):
                issues.append(Issue(f"not an object (expected {self.expected})"))
            else:
                issues += issues_of(error, self.model, tree)
                for key in self.others.keys() & tree.value.keys():
                    is_other = f"this is {self.others[key]} (expected {self.expected})"
                    raise self.error(os.fspath(name), [tree.issue((key,), is_other)]) from None
        else:
            if self.rules:
                for path, message in islice(self.rules(model), MAX_ISSUES):
                    issues.append(tree.issue(path, f"{tree.label(path)}: {message}"))
        if issues:
            raise self.error(os.fspath(name), issues)
        return model

    def line_of(self, path: Path, key: str) -> int:
        """The line of a key such as ``machines.type`` in a file, 0 if it is not there."""
        try:
            tree = self.load(read_file(path, self.expected))
        except (OSError, CatalogFormatError, FileSyntaxError):
            return 0
        return tree.line(tuple(key.split(".")))

    def describe(self, *path: str | int) -> str:
        """What the value of a key may be, in words."""
        field = _locate(self.model, None, path).field
        return (field and field.description) or "an object"
