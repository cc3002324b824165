"""Reserved VMs: reservations and capacity blocks, each with its price and its end."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deepvm.core.cluster.commitments import ReservedPool
from deepvm.documents.fields import (
    MAX_NODES,
    Price,
    Strict,
    TypeName,
    Whole,
    described,
    number,
    price,
    rows,
)
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
    name: PoolName = described("1 to 40 letters, digits, dots, hyphens and underscores")
    instance_type: TypeName = described("a type of the catalog, such as p5.48xlarge")
    count: Whole = number("VMs", MAX_NODES, least=1, whole=True)
    usd_per_hour: Price = price("what an hour of one VM costs, or has cost if it is paid already,")
    begins: Moment | None = described("a time such as 2026-12-01T11:30:00Z", "if it is there")
    until: Moment | None = described("a time such as 2026-12-01T11:30:00Z", "for never")
    region: Place = Field("", description="the provider's region, or empty for any")
    zone: Place = Field("", description="id of its zone, such as use1-az4, or empty if unknown")
    kind: Literal["reservation", "capacity-block"] = Field(
        "reservation", description="reservation or capacity-block"
    )


class _Document(Strict):
    schema_ref: str | None = Field(None, alias="$schema")
    schema_version: Literal["deepvm.reserved/1"] = described("deepvm.reserved/1")
    pools: list[_Pool] = rows("reserved pools", 1000, least=1, required=True)


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
