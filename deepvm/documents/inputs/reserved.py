"""Reserved VMs: reservations and capacity blocks, each with its price and its end."""

from deepvm.core.cluster.commitments import ReservedPool
from deepvm.core.json_types import JsonObject
from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat, Rules, repeats
from deepvm.io.safe_read import StrPath


def _rules(document: JsonObject) -> Rules:
    pools = document["pools"]
    for row, _ in repeats(pool["name"] for pool in pools):
        yield ("pools", row, "name"), "expected every name once"
    for row, pool in enumerate(pools):
        if pool["begins"] and pool["until"] and pool["begins"] >= pool["until"]:
            yield ("pools", row, "begins"), "expected a time before until"


RESERVED = FileFormat(
    model_of("reserved.Document"),
    '{"schema_version": "deepvm.reserved/1", "pools": [...]}',
    rules=by_values(_rules),
)


def load_reserved(path: StrPath) -> tuple[ReservedPool, ...]:
    """Read a file of reserved pools. Raises CatalogFormatError."""
    return tuple(ReservedPool(**pool) for pool in RESERVED.read(path).model_dump()["pools"])
