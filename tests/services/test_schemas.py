"""The documents that ``deepvm schema`` knows.

Tests/cli/test_documents.py compares them with what commands print.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from support.checkpoint.images import manifest_of, noise
from support.schemas import check

from deepvm.documents.declared import properties
from deepvm.errors import RequestError
from deepvm.services.schemas import DOCUMENTS, described, name_of


def test_schemas_are_schemas() -> None:
    for name in DOCUMENTS:
        schema = described(name).schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{name}.schema.json"
        found = DOCUMENTS[name]
        if found.rows:
            assert found.rows in schema["properties"] and found.row


PLAIN = {
    "schema_version",
    "name",
    "title",
    "kind",
    "note",
    "path",
    "id",
    "status",
    "verdict",
    "reason",
    "change",
}
"""Keys that say all that there is to say."""


def undescribed(schema: Any) -> Iterator[str]:
    """Keys of values without a description; objects have one of their own."""
    for part in (schema, *schema.get("$defs", {}).values()):
        for key, value in part.get("properties", {}).items():
            if not {"description", "$ref"} & set(value) and value.get("type") not in (
                "array",
                "object",
            ):
                yield key


@pytest.mark.parametrize("name", [name for name, found in DOCUMENTS.items() if found.kind])
def test_values_are_described(name: str) -> None:
    assert set(undescribed(described(name).schema(name))) <= PLAIN


def test_a_wrong_name_is_refused_with_the_right_one() -> None:
    with pytest.raises(RequestError, match=r"did you mean recommend\?"):
        described("recomend")


def test_documents_say_their_name() -> None:
    assert name_of({"schema_version": "deepvm.catalog-status/1"}) == "catalog-status"
    assert name_of([]) == name_of({}) == ""
    for name, found in DOCUMENTS.items():
        if found.rows:
            version = properties(found.kind).get("schema_version")
            assert version is None or version["const"] == f"deepvm.{name}/1"


def test_files_hold_what_their_readers_know() -> None:
    assert set(properties("simulation.Job")) == set(properties("job_file.JobDocument"))
    assert set(properties("performance.ModelFile")) == set(properties("model_file.ModelDocument"))


def test_files_that_are_read() -> None:
    check(yaml.safe_load("steps: 10\nstep_s: [1, 2]\nmttp_s: 3600\n"), "job")
    check({"parameters": 7e9, "layers": 32, "hidden": 4096}, "model")
    check({"metadata": {"gap_seconds": 600, "zone": "a"}, "data": [1, 0], "prices": [1]}, "trace")
    check(
        {
            "schema_version": "deepvm.quotas/1",
            "quotas": [{"family": "P", "market": "spot", "vcpus": 8}],
        },
        "quotas",
    )


def test_commit_records() -> None:
    record = replace(manifest_of(noise(100, 1), "job", 1), best=True)
    check(json.loads(record.to_json()), "checkpoint")
