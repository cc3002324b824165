"""The documents by name, as ``deepvm schema`` lists them, and their rows as tables.

The header depends on the type of a row only, not on the rows: values of objects have dotted
names, such as ``step_s.low``; lists, and objects whose keys vary, are in one field, as JSON in CSV.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepvm.core.spelling import refuse_unknown
from deepvm.documents.declared import columns, declared, object_in
from deepvm.documents.json_schema import json_schema
from deepvm.io.user_dirs import read_data


@dataclass(frozen=True)
class DocumentSpec:
    """A document of ``data/documents/index.json``.

    Attributes:
        where: the command that prints it, or the file. text: what it is.
        kind: what it is declared as; empty for a file whose schema is that of its pydantic model.
        rows: the key of the rows of its CSV, empty where the document itself is the only row, or a
            list of them.
        key: the column of the rows' names, where they are kept by name.
        required: keys that a file of users must have; None for those that are declared so. more:
            whether it may have others, which are ignored.
    """

    where: str
    text: str
    kind: str = ""
    rows: str = ""
    key: str = ""
    required: Sequence[str] | None = None
    more: bool = False

    @property
    def row(self) -> str:
        """What a row of the CSV is declared as."""
        schema = declared(self.kind)
        if self.rows:
            return object_in(schema["properties"][self.rows])
        return self.kind if "properties" in schema else object_in(schema)

    def schema(self, name: str) -> dict[str, Any]:
        if name == "matrix":
            return _matrix(name)
        if not self.kind:
            from deepvm.documents.fields import schema_of
            from deepvm.documents.models import model_of

            return schema_of(model_of(_MODELS[name]), name)
        return json_schema(self.kind, name, self.text, required=self.required, more=self.more)


def _matrix(name: str) -> dict[str, Any]:
    from deepvm.documents.fields import schema_of
    from deepvm.lab.faults.fault import DiskFault
    from deepvm.lab.faults.fault_registry import find_fault
    from deepvm.lab.matrix import MatrixFile

    schema = schema_of(MatrixFile, name)
    # pydantic describes the parsed form only: add the short forms that files may use.
    for key, kind in (("datasets", "Dataset"), ("models", "Model")):
        names = schema["$defs"][kind]["properties"]["name"]["enum"]
        schema["properties"][key]["items"] = {
            "anyOf": [{"enum": names}, schema["properties"][key]["items"]]
        }
    for fault, property_ in schema["$defs"]["Failures"]["properties"].items():
        steps = {"type": "array", "items": {"type": "integer", "minimum": 1}}
        property_["anyOf"].append(
            {"type": "number"} if isinstance(find_fault(fault), DiskFault) else steps
        )
    return schema


_MODELS = {
    "tables": "tables._TablesDocument",
    "catalog": "catalog.CatalogDocument",
    "quotas": "catalog.QuotaDocument",
}
"""Files of users, whose schemas are those of their pydantic models."""
DOCUMENTS = {
    name: DocumentSpec(**about) for name, about in read_data("documents/index.json").items()
}
"""By the name in ``schema_version``, ``deepvm.NAME/1``, where the document has one."""


def described(name: str) -> DocumentSpec:
    """The document of this name. Raises RequestError."""
    refuse_unknown("NAME", name, DOCUMENTS, ", ")
    return DOCUMENTS[name]


def name_of(document: Any) -> str:
    """The name of a document by its ``schema_version``, empty where it has none."""
    version = ""
    if isinstance(document, dict):
        version = document.get("schema_version", "")
    return str(version).removeprefix("deepvm.").partition("/")[0]


def rows_of(document: Any, name: str = "") -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a document; ``name``: of one without a ``schema_version``."""
    if isinstance(document, list) and document:
        first = document[0]
    else:
        first = document
    spec = described(name or name_of(first))
    return rows_as(spec.row, _listed(document, spec), spec.key)


def rows_as(
    kind: str, rows: Iterable[Mapping[str, Any]], key: str = ""
) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of objects of a type; ``key``: of a column in front of what the type says."""
    paths = [
        *([(key,)] if key else []),
        *(path for path in columns(kind) if path != ("schema_version",)),
    ]
    return [".".join(path) for path in paths], [[cell(row, path) for path in paths] for row in rows]


def _listed(document: Any, spec: DocumentSpec) -> Iterator[Mapping[str, Any]]:
    rows = document[spec.rows] if spec.rows else document
    if spec.key:
        yield from ({spec.key: name, **row} for name, row in rows.items())
    else:
        yield from rows if isinstance(rows, list) else [rows]


def cell(row: Any, path: Sequence[str]) -> Any:
    """What an object of objects has at a path of keys; None if nothing."""
    for key in path:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row
