"""The documents by name, as ``deepvm schema`` lists them, and their rows as tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.spelling import refuse_unknown
from deepvm.documents.declared import columns, declared, json_schema, object_in
from deepvm.io.user_dirs import read_data
from deepvm.records import dataclass

Table: TypeAlias = tuple[list[str], list[list[Any]]]  # Of CSV: the header, and the rows


@dataclass(frozen=True)
class DocumentSpec:
    """A document of ``data/documents/index.json``."""

    where: str
    text: str
    kind: str = ""
    model: str = ""  # instead of ``kind``: whose schema is pydantic's
    rows: str = ""  # the key of the rows of its CSV
    key: str = ""
    required: Sequence[str] | None = None  # keys that users' files must have; None: as declared
    more: bool = False  # others are ignored

    @property
    def row(self) -> str:
        schema = declared(self.kind)
        if self.rows:
            return object_in(schema["properties"][self.rows])
        if "properties" in schema:
            return self.kind
        return object_in(schema)

    def schema(self, name: str) -> JsonDict:
        if name == "matrix":
            return _matrix(name)
        if self.model:
            from deepvm.documents.fields import schema_of
            from deepvm.documents.models import model_of

            return schema_of(model_of(self.model), name)
        return json_schema(self.kind, name, self.text, required=self.required, more=self.more)


def _matrix(name: str) -> JsonDict:
    from deepvm.documents.fields import schema_of
    from deepvm.lab.faults.fault import DiskFault
    from deepvm.lab.matrix import MatrixFile
    from deepvm.lab.registry import find_fault

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


# By the name in ``schema_version``, ``deepvm.NAME/1``, where the document has one
DOCUMENTS = {
    name: DocumentSpec(**about) for name, about in read_data("documents/index.json").items()
}


def described(name: str) -> DocumentSpec:
    """The document of this name. Raises RequestError."""
    refuse_unknown("NAME", name, DOCUMENTS, ", ")
    return DOCUMENTS[name]


def name_of(document: Any) -> str:
    """The name of a document by its ``schema_version``, empty where it has none."""
    if not isinstance(document, dict):
        return ""
    return str(document.get("schema_version", "")).removeprefix("deepvm.").partition("/")[0]


def rows_of(document: Any, name: str = "") -> Table:
    """Header and rows of a document; ``name``: of one without a ``schema_version``."""
    first = document
    if isinstance(document, list) and document:
        first = document[0]
    spec = described(name or name_of(first))
    if spec.rows:
        document = document[spec.rows]
    if spec.key:
        rows = [{spec.key: named, **row} for named, row in document.items()]
    elif isinstance(document, list):
        rows = document
    else:
        rows = [document]
    return rows_as(spec.row, rows, spec.key)


def rows_as(kind: str, rows: Iterable[JsonObject], key: str = "") -> Table:
    """Header and rows of objects of a type; ``key``: of a column in front of what the type says."""
    paths = [path for path in columns(kind) if path != ("schema_version",)]
    if key:
        paths.insert(0, (key,))
    return [".".join(path) for path in paths], [[cell(row, path) for path in paths] for row in rows]


def cell(row: Any, path: Sequence[str]) -> Any:
    """What an object of objects has at a path of keys; None if nothing."""
    for key in path:
        if not isinstance(row, Mapping):
            return None
        row = row.get(key)
    return row
