"""``deepvm schema`` as a user meets it."""

from __future__ import annotations

import json

import pytest
from support.command import Run

from deepvm.services.schemas import DOCUMENTS


def test_names_with_a_line_each(run: Run) -> None:
    code, out, err = run("schema")
    head, *lines = out.splitlines()
    assert (code, err) == (0, "") and head.split()[0] == "name"
    assert [line.split()[0] for line in lines] == list(DOCUMENTS)
    assert all(len(line) <= 110 for line in lines)


def test_each_is_printed(run: Run) -> None:
    for name in DOCUMENTS:
        code, out, err = run("schema", name)
        found = json.loads(out)
        assert (code, err) == (0, "")
        assert (
            found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
            and found["description"]
        )


def test_of_the_catalog_there_are_two_commands_and_one_schema(run: Run) -> None:
    assert run("schema", "catalog") == run("catalog", "schema")


def test_the_older_name_of_a_value_points_to_the_newer(run: Run) -> None:
    count = json.loads(run("schema", "recommend")[1])["$defs"]["Trainers"]["properties"]["count"]
    assert "see vm_count" in count["description"] and count["type"] == "integer"


@pytest.mark.parametrize(
    ("name", "meant"), [("recomend", "recommend"), ("catalog-stats", "catalog-status")]
)
def test_a_wrong_name(name: str, meant: str, run: Run) -> None:
    code, out, err = run("schema", name)
    assert (
        (code, out) == (2, "")
        and f"did you mean {meant}?" in err
        and err.startswith("Error: invalid value for NAME: ")
    )
