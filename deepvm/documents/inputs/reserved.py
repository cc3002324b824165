"""Reserved VMs: reservations and capacity blocks, each with its price and its end."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deepvm.core.cluster.commitments import ReservedPool
from deepvm.documents.fields import MAX_NODES, Price, Strict, TypeName, Whole
from deepvm.documents.issues import repeats
from deepvm.documents.reader import FileFormat, Rules
from deepvm.io.times import parse_time


def _as_moment(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("not a moment")
    return parse_time(value)


PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
Moment = Annotated[datetime, BeforeValidator(_as_moment)]
Place = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$")]


class _Pool(Strict):
    name: PoolName
    instance_type: TypeName
    count: Annotated[Whole, Field(ge=1, le=MAX_NODES)]
    usd_per_hour: Price
    begins: Moment | None = None
    until: Moment | None = None
    region: Place = ""
    zone: Place = ""
    kind: Literal["reservation", "capacity-block"] = "reservation"


class _Document(Strict):
    schema_ref: str | None = Field(None, alias="$schema")
    schema_version: Literal["deepvm.reserved/1"]
    pools: Annotated[list[_Pool], Field(min_length=1, max_length=1000)]


def _rules(document: _Document) -> Rules:
    for row, _ in repeats(pool.name for pool in document.pools):
        yield ("pools", row, "name"), "expected every name once"
    for row, pool in enumerate(document.pools):
        if pool.begins and pool.until and pool.begins >= pool.until:
            yield ("pools", row, "begins"), "expected a time before until"


RESERVED = FileFormat(
    _Document,
    '{"schema_version": "deepvm.reserved/1", "pools": [...]}, see docs/guide/plan.md',
    rules=_rules,
)


def load_reserved(path: str | os.PathLike[str]) -> tuple[ReservedPool, ...]:
    """Read a file of reserved pools. Raises CatalogFormatError."""
    return tuple(ReservedPool(**pool.model_dump()) for pool in RESERVED.read(path).pools)
