"""Reserved VMs from a user's file: reservations and capacity blocks, each with its price and its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from deepvm.catalog.documents import schema
from deepvm.catalog.documents.findings import (
    ValidationIssue,
    json_place,
    refuse,
    repeats,
    schema_findings,
    shown,
)
from deepvm.catalog.documents.json_file import parse_json, read_existing
from deepvm.catalog.documents.schema import MAX_NODES, Price, Strict, TypeName, Whole
from deepvm.core.cluster.commitments import ReservedPool
from deepvm.io.times import parse_time

VERSION = "deepvm.reserved/1"
_EXPECTED = (
    f'allowed: {{"schema_version": "{VERSION}", "pools": [...]}}; docs/guide/plan.md shows one'
)


def _as_moment(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("not a moment")
    return parse_time(value)


PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
Moment = Annotated[datetime, BeforeValidator(_as_moment)]
Place = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$")]


class _Pool(Strict):
    name: PoolName = Field(
        description="what to call it: 1 to 40 letters, digits, dots, hyphens and underscores"
    )
    instance_type: TypeName = schema.described("a type of the catalog, such as p5.48xlarge")
    count: Whole = schema.number("VMs", MAX_NODES, least=1, whole=True)
    usd_per_hour: Price = schema.price(
        "what an hour of one VM costs, or has cost if it is paid already,"
    )
    begins: Moment | None = Field(
        None, description="when it begins: a time like until, or null if it is there"
    )
    until: Moment | None = Field(
        None, description="when it ends: a time such as 2026-12-01T11:30:00Z, or null for never"
    )
    region: Place = Field("", description="the provider's region, or empty for any")
    zone: Place = Field("", description="id of its zone, such as use1-az4, or empty if unknown")
    kind: Literal["reservation", "capacity-block"] = Field(
        "reservation", description="reservation or capacity-block"
    )


class _Document(Strict):
    schema_ref: str | None = Field(
        None, alias="$schema", description="for editors: where the JSON Schema is"
    )
    schema_version: Literal["deepvm.reserved/1"] = Field(
        description=f"{VERSION}, the version of the format"
    )
    pools: list[_Pool] = schema.rows("reserved pools", 1000, least=1, required=True)


def load_reserved(path: str | os.PathLike[str]) -> tuple[ReservedPool, ...]:
    """Read a file of reserved pools.

    Raises:
        CatalogFormatError: it is missing, cannot be read, or is not valid; lists every problem with
            its place.
    """
    file = Path(path)
    raw: Any = parse_json(read_existing(file, _EXPECTED), file, _EXPECTED)
    refuse(file, schema_findings(_Document, raw) or _contradictions(raw["pools"]), json_place(raw))
    found = _Document.model_validate(raw)
    return tuple(ReservedPool(**pool.model_dump()) for pool in found.pools)


def _contradictions(pools: list[dict[str, Any]]) -> Iterator[ValidationIssue]:
    for i, _ in repeats(pool["name"] for pool in pools):
        yield ValidationIssue(
            ("pools", i, "name"),
            f"{shown(pools[i]['name'])} appears twice",
            "allowed: every name once",
        )
    for i, pool in enumerate(pools):
        if (
            pool.get("begins")
            and pool.get("until")
            and parse_time(pool["begins"]) >= parse_time(pool["until"])
        ):
            yield ValidationIssue(
                ("pools", i, "begins"),
                f"is {shown(pool['begins'])}",
                "allowed: a time before until",
            )
