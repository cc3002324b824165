"""YAML files that people write: read into a pydantic model, with errors that name line, key and what is allowed.

What a key may be stands in the description of its field, for errors and for the reference pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from deepvm.core.spelling import did_you_mean, nearest
from deepvm.errors import DataError, JobFormatError
from deepvm.io.safe_read import read_text

Path_: TypeAlias = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_LARGEST = 1_000_000
"""Characters that such a file may have; more is another file."""
_MOST_NODES, _DEEPEST = 20_000, 40
"""Of a document whose aliases are written out: a few lines of them can stand for billions."""


class _NotYamlError(ValueError):
    """What cannot be read, with its line."""


class InvalidValueError(ValueError):
    """The reason for which a validator refuses a value, where the allowed values would not explain it."""


@dataclass(frozen=True)
class Lines:
    """The lines of the keys of a file."""

    known: Mapping[Path_, int]

    def said(self, *path: str | int) -> str:
        """How a message about a key begins: ``line 3: machines.count: ``."""
        return f"line {self.of(path)}: {dotted(path)}: "

    def of(self, path: Path_) -> int:
        """The line of a key, or of the nearest one above it."""
        return next(
            (self.known[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.known),
            1,
        )


@dataclass(frozen=True)
class YamlFormat(Generic[Model]):
    """A kind of file.

    Attributes:
        model: what it is read into. wanted: the end of sentences about a file that is another
            thing. page: where it is described. contradictions: keys that do not go together, as
            whole messages. refused: why a document is one of another kind, empty if it is not.
    """

    model: type[Model]
    wanted: str
    page: str
    contradictions: Callable[[Model, Lines], Iterator[str]] = lambda found, lines: iter(())
    refused: Callable[[Mapping[str, Any], str], str] = lambda document, place: ""

    def read(self, path: Path) -> Model:
        """Read a file.

        Raises:
            JobFormatError: unknown or repeated keys, values that cannot be. DataError: no such
                file.
            CatalogFormatError: it is no regular file, or not text.
        """
        try:
            text = read_text(path, self.wanted)
        except FileNotFoundError as error:
            raise DataError(f"{path}: {error.strerror}; {self.wanted}") from None
        if len(text) > _LARGEST:
            raise DataError(f"{path}: has {len(text)} characters; {self.wanted}")
        return self.parse(text, str(path))

    def parse(self, text: str, place: str) -> Model:
        """Read a text; ``place`` is what errors call it. Raises JobFormatError."""
        root = self._composed(text, place)
        lines: dict[Path_, int] = {}
        problems: list[str] = []
        try:
            document = _plain(root, (), lines, problems)
        except _NotYamlError as error:
            raise JobFormatError(place, [str(error)]) from None
        if why := self.refused(document, place):
            raise JobFormatError(place, [why])
        try:
            found = self.model.model_validate(document)
        except ValidationError as error:
            known = Lines(lines)
            raise JobFormatError(
                place, [*problems, *dict.fromkeys(self._problems(error, document, known))]
            ) from None
        problems += self.contradictions(found, Lines(lines))
        if problems:
            raise JobFormatError(place, problems)
        return found

    def allowed(self, *path: str | int) -> str:
        """What a key may be: its description, or that of the nearest key above it."""
        for end in range(len(path), 0, -1):
            model = self._model_at(path[: end - 1])
            field = model.model_fields.get(str(path[end - 1])) if model else None
            if field is not None and field.description:
                return field.description
        return f"what {self.page} shows"

    def _composed(self, text: str, place: str) -> yaml.MappingNode:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
            number = (
                mark.line + 1
                if mark
                else text.count("\n", 0, position) + 1
                if position is not None
                else None
            )
            line = f"line {number}: " if number else ""
            if position is not None:
                why = f"{line}not YAML: a character that no text has: {text[position]!r}"
                raise JobFormatError(place, [why]) from None
            raise JobFormatError(
                place, [f"{line}not YAML: {getattr(error, 'problem', None) or error}"]
            ) from None
        if root is None:
            raise JobFormatError(place, [f"empty; {self.wanted}"])
        if not isinstance(root, yaml.MappingNode):
            raise JobFormatError(
                place, [f"line {root.start_mark.line + 1}: no keys with values; {self.wanted}"]
            )
        return root

    def _problems(
        self, error: ValidationError, document: Mapping[str, Any], lines: Lines
    ) -> Iterator[str]:
        # Keys that are there, with another spelling: not missing as well
        misspelt: set[Path_] = set()
        for one in sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden"):
            path = _in_the_file(one["loc"], document, one["type"] in ("missing", "extra_forbidden"))
            where = f"line {lines.of(path)}: " if path in lines.known or len(path) > 1 else ""
            name, model = dotted(path), self._model_at(path[:-1])
            known = (
                tuple(field.alias or key for key, field in model.model_fields.items())
                if model
                else ()
            )
            if one["type"] == "extra_forbidden":
                meant = did_you_mean(str(path[-1]), known) or f"there are {', '.join(known)}"
                misspelt.update((*path[:-1], name) for name in nearest(str(path[-1]), known))
                yield f"{where}{name}: there is no such key; {meant}"
            elif one["type"] == "missing" and path in misspelt:
                continue
            elif one["type"] == "missing":
                yield f"{where}{name}: missing; allowed: {self.allowed(*path)}"
            elif isinstance(reason := one.get("ctx", {}).get("error"), InvalidValueError):
                yield f"{where}{name}: {reason}"
            else:
                yield (
                    f"{where}{name}: {_shown(_at(document, path))} cannot be used; allowed:"
                    f" {self.allowed(*path)}"
                )

    def _model_at(self, path: Path_) -> type[BaseModel] | None:
        """The schema of an object; keys that users name, and places in lists, are passed over."""
        model: type[BaseModel] | None = self.model
        named = False
        for step in path:
            if named or isinstance(step, int):
                named = False
                continue
            field = model.model_fields.get(step) if model else None
            kinds = [] if field is None else _kinds(field.annotation)
            model = next(
                (k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None
            )
            named = any(getattr(kind, "__origin__", None) is dict for kind in kinds)
        return model


def line_of(file: Path, key: str, wanted: str) -> int | None:
    """Where a key such as ``machines.type`` is in a file that can be read.

    None if it is not there.
    """
    try:
        node = yaml.compose(read_text(file, wanted), Loader=yaml.SafeLoader)
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


def dotted(path: Path_) -> str:
    """A key as people write it: ``machines.count``, ``lives[2]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if step.isprintable() else repr(step))[:60]
    return text


def _kinds(annotation: Any) -> list[Any]:
    """A type and all that it is made of: ``list[X | Y]`` has X and Y."""
    return [
        annotation,
        *(kind for one in getattr(annotation, "__args__", ()) for kind in _kinds(one)),
    ]


def _plain(node: yaml.Node, path: Path_, lines: dict[Path_, int], problems: list[str]) -> Any:
    """A document with the line of each key. Raises _NotYamlError."""
    if len(lines) > _MOST_NODES or len(path) > _DEEPEST:
        raise _NotYamlError(
            f"line {node.start_mark.line + 1}: {dotted(path[:1])}: too much; aliases are written"
            " out here"
        )
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in found:
                problems.append(f"line {line}: {dotted((*path, name))}: occurs twice")
            lines[(*path, name)] = line
            found[name] = _plain(value, (*path, name), lines, problems)
        return found
    if isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            lines[(*path, place)] = value.start_mark.line + 1
        return [
            _plain(value, (*path, place), lines, problems) for place, value in enumerate(node.value)
        ]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, RecursionError, ValueError, AttributeError, LookupError) as error:
        why = str(getattr(error, "problem", None) or error).splitlines()[0][:100]
        raise _NotYamlError(
            f"line {node.start_mark.line + 1}: {dotted(path)}: not YAML: {why}"
        ) from None
    finally:
        loader.dispose()


def _in_the_file(loc: Path_, document: Any, last_may_lack: bool) -> Path_:
    """Where an error is, without the names of the alternatives that pydantic tried."""
    path: list[str | int] = []
    value = document
    for place, step in enumerate(loc):
        here = (
            isinstance(value, dict)
            and step in value
            or isinstance(value, list)
            and isinstance(step, int)
        )
        if here:
            path.append(step)
            value = value[step]
        elif last_may_lack and place == len(loc) - 1 and isinstance(value, dict):
            path.append(step)
    return tuple(path)


def _at(document: Any, path: Path_) -> Any:
    for step in path:
        document = document[step]
    return document


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    text = f"a list of {len(value)}" if isinstance(value, list) else repr(value)
    return text if len(text) < 60 else text[:56] + " ..."
