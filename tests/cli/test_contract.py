"""The command line's contract: documents, schemas and options are as recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.contract import check_contract, masked
from support.document_cases import CASES, Case, commands
from support.schemas import check, check_rows

from deepvm.cli.app import COMMANDS, load
from deepvm.reports.lab import files as lab_files
from deepvm.services.schemas import DOCUMENTS, described

REPEATABLE = [(c, case) for c, cases in CASES.items() for case in cases if not case.measures]
LONG = {"reproduce", "performance check", "lab report"}  # seconds each


def file_name(command: str, case: Case) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", f"{command} {case.words}".lower()).strip("-")
    return f"documents/{words[:90]}"


def test_each_case_has_its_own_file() -> None:
    names = [file_name(command, case) for command, case in REPEATABLE]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("command", "case"),
    [
        pytest.param(c, case, marks=[pytest.mark.system] if c in LONG else [])
        for c, case in REPEATABLE
    ],
    ids=lambda value: str(value)[:40],
)
def test_documents(
    command: str, case: Case, call: Any, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = {"json": masked(call(command, case, "json"), workshop)}
    monkeypatch.setattr(lab_files, "write_figures", lambda *_: ())  # they were drawn just now
    printed["csv"] = masked(call(command, case, "csv"), workshop)
    name = file_name(command, case)
    rel = 1e-9
    if command == "profile fit":  # a search, which ends elsewhere on another processor
        rel = 5e-3
    check_contract(f"{name}.json", printed["json"], rel=rel)
    check_contract(f"{name}.csv", printed["csv"], rel=rel)
    document = json.loads(printed["json"])
    if case == CASES[command][0]:
        assert yaml.safe_load(masked(call(command, case, "yaml"), workshop)) == document
    check(document, case.name)
    check_rows(document, printed["csv"], case.name)


def test_schemas() -> None:
    schemas = {name: described(name).schema(name) for name in DOCUMENTS}
    check_contract("schemas.json", json.dumps(schemas, indent=1, ensure_ascii=False) + "\n")


def test_options() -> None:
    """Every command with its parameters: names, kind, choices, default.

    The wording of their help is free.
    """
    every = dict(pair for entry in COMMANDS for pair in commands(load(entry), entry.name))
    parameters = {
        words: [parameter(p) for p in command.params] for words, command in sorted(every.items())
    }
    check_contract("options.json", json.dumps(parameters, indent=1, default=str) + "\n")


def parameter(found: Any) -> dict[str, Any]:
    names = [*found.opts, *found.secondary_opts]
    kept = {"names": names, "type": found.type.name, "required": found.required}
    kept |= {"default": None if callable(found.default) else found.default, "nargs": found.nargs}
    if getattr(found, "multiple", False):
        kept["multiple"] = True
    if hasattr(found.type, "choices"):
        kept["choices"] = list(found.type.choices)
    return kept
