"""Every kind of file that users write: each field refuses junk, and names its line and key."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import document as plan

from deepvm.catalog.catalog_files import JSON_CATALOG, QUOTAS
from deepvm.catalog.serialization import document_of
from deepvm.catalog.store import load_catalog
from deepvm.documents.inputs.model import MODEL
from deepvm.documents.inputs.plan import PLAN
from deepvm.documents.inputs.reserved import RESERVED
from deepvm.documents.reader import FileFormat
from deepvm.errors import CatalogFormatError, JobFormatError
from deepvm.jobs import jobfile
from deepvm.lab import matrix
from deepvm.simulator.jobfile import _job_format

JOB = {"steps": 10, "step_s": [1, 2], "mttp_s": [30, 40], "market": "spot", "lifetime": "weibull:2"}
RUN = {
    "name": "mine",
    "train": "python train.py",
    "machines": {"type": "g4dn.xlarge", "count": {"min": 2, "max": 4}},
    "budget": {"usd_per_hour": 3, "deadline": "12h"},
    "env": {"LEVEL": "1"},
    "data": {"train": {"mount": "/mnt"}},
    "tiers": ["s3://bucket/run"],
    "step_timeout": "none",
    "inject": {"lives": ["30s"], "scale": 2, "grace": "5s"},
}
MATRIX = {
    "name": "small",
    "datasets": ["digits"],
    "models": [{"name": "resnet8", "width": 8}],
    "failures": {"base": {"exit": {"at": [4], "rank": 0}}},
    "variants": ["none", "blk"],
    "world": 2,
    "global_batch": 8,
    "steps": 10,
    "checkpoint_every": 2,
}
POOL = {"name": "a", "instance_type": "p5.48xlarge", "count": 4, "usd_per_hour": 31.464}
GOOD: dict[str, tuple[FileFormat[Any], dict[str, Any]]] = {
    "catalog": (JSON_CATALOG, document_of(load_catalog("paper"))),
    "quotas": (
        QUOTAS,
        {
            "schema_version": "deepvm.quotas/1",
            "quotas": [{"family": "P", "market": "spot", "vcpus": 0}],
        },
    ),
    "plan": (PLAN, plan()),
    "reserved": (RESERVED, {"schema_version": "deepvm.reserved/1", "pools": [POOL]}),
    "model": (MODEL, {"parameters": 7e9, "layers": 32, "hidden": 4096, "gated": True}),
    "job": (_job_format(), JOB),
    "run": (jobfile.FORMAT, RUN),
    "matrix": (matrix.FORMAT, MATRIX),
}


def paths_in(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = document.items() if isinstance(document, dict) else enumerate(document)
    for step, child in children:
        yield (*path, step)
        if isinstance(child, (dict, list)):
            yield from paths_in(child, (*path, step))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    part = document
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return document


@pytest.mark.parametrize("name", GOOD)
def test_the_files_that_are_changed_are_good(name: str) -> None:
    form, document = GOOD[name]
    assert form.parse(json.dumps(document), "file")


@given(st.data())
def test_every_field_refuses_junk_with_its_path(data: st.DataObject) -> None:
    form, document = GOOD[data.draw(st.sampled_from(sorted(GOOD)))]
    path = data.draw(st.sampled_from(list(paths_in(document))))
    junk: Any = {"junk": [None]}
    if isinstance(at(document, path), dict):
        junk = [[None]]
    text = json.dumps(changed(document, path, junk), indent=1)
    with pytest.raises((CatalogFormatError, JobFormatError)) as caught:
        form.parse(text, "file")
    # Of a field that may be a text or an object, the field is named
    keys = [step for step in reversed(path) if isinstance(step, str)][:2]
    assert any(key in p.key for p in caught.value.problems for key in keys), caught.value
    lines = text.splitlines()
    for problem in caught.value.problems:
        if problem.message.startswith("invalid"):
            assert str(path[0]) in "".join(lines[: problem.line])


@pytest.mark.parametrize("name", GOOD)
def test_an_unknown_key_is_refused_or_ignored(name: str) -> None:
    form, document = GOOD[name]
    text = json.dumps({**document, "surprise": 1})
    if name == "plan":
        assert form.parse(text, "file")
        return
    with pytest.raises((CatalogFormatError, JobFormatError), match="unknown key surprise"):
        form.parse(text, "file")


CATALOG = """{
 "schema_version": "deepvm.catalog/1",
 "instances": [
  {"instance_type": "g5.xlarge",
   "vcpus": 4,
   "spot_usd_per_hour": 0.3018,
   "speedups": [{"kind": "ring", "c": 6.7, "l": 0.12}]}
 ]
}"""
KINDS = {
    "value": ("0.3018", "-1", "file:6: invalid value for instances[0].spot_usd_per_hour: -1 (exp"),
    "not finite": ("0.3018", "NaN", "spot_usd_per_hour: nan (expected spot price in US dollars"),
    "text": ('"vcpus": 4', '"vcpus": "4 GB"', "vcpus: '4 GB' (expected virtual CPUs: a whole num"),
    "not whole": ('"vcpus": 4', '"vcpus": 4.5', "instances[0].vcpus: 4.5 (expected"),
    "bool": ('"vcpus": 4', '"vcpus": true', "instances[0].vcpus: true (expected"),
    "null": ('"vcpus": 4', '"vcpus": null', "instances[0].vcpus: null (expected"),
    "list": ('"vcpus": 4', '"vcpus": [4]', "instances[0].vcpus: a list of 1 (expected"),
    "misspelt": ('"vcpus"', '"vcpu"', "file:5: unknown key instances[0].vcpu (did you mean vcpus?)"),
    "unknown": ('"vcpus": 4', '"vcpus": 4, "q": 1', "[0].q (expected one of instance_type, vcpus"),
    "missing": ('"vcpus": 4,', "", "file:4: missing key instances[0].vcpus (expected virtual CPUs"),
    "repeated": ('"vcpus": 4', '"vcpus": 4, "vcpus": 5', "file:5: repeated key instances[0].vcpus"),
    "member": ('"l": 0.12', '"l": -1', "speedups[0].l: -1 (expected latency per hop of the ring"),
    "kind": ('"ring"', '"star"', "speedups[0].kind: 'star' (expected hybrid or ring or measured)"),
    "version": ("catalog/1", "catalog/2", "file:2: invalid value for schema_version: 'deepvm.cat"),
    "syntax": ('"vcpus": 4,', '"vcpus": }', "file:5: not JSON: Expecting value (expected a catalog"),
    "digits": ('"vcpus": 4', f'"vcpus": {"9" * 9999}', "not JSON: a number has too many digits"),
    "exponent": ("0.3018", "1e99999999999999999999", "not JSON: a number has too many digits"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_error_has_one_message(kind: str) -> None:
    old, new, message = KINDS[kind]
    assert old in CATALOG
    with pytest.raises(CatalogFormatError) as caught:
        JSON_CATALOG.parse(CATALOG.replace(old, new, 1), "file")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"'])
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(CatalogFormatError, match="file: not an object .expected a catalog"):
        JSON_CATALOG.parse(text, "file")


def test_all_issues_are_kept_and_the_first_ten_shown() -> None:
    rows = [{"instance_type": f"t{i}", "vcpus": -1, "spot_usd_per_hour": 1} for i in range(30)]
    text = json.dumps({"schema_version": "deepvm.catalog/1", "instances": rows})
    with pytest.raises(CatalogFormatError, match="and 20 more problems in file") as caught:
        JSON_CATALOG.parse(text, "file")
    assert len(caught.value.problems) == 30


def test_a_missing_file_and_one_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(CatalogFormatError, match="does not exist .expected a job file"):
        jobfile.FORMAT.read(tmp_path / "none.yaml")
    with pytest.raises(CatalogFormatError, match="is a folder"):
        QUOTAS.read(tmp_path)


def test_exit_codes() -> None:
    assert (JobFormatError.exit_code, CatalogFormatError.exit_code) == (2, 4)


def test_the_line_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nmachines:\n  type: x\n")
    assert jobfile.FORMAT.line_of(file, "machines.type") == 3
    assert jobfile.FORMAT.line_of(file, "budget") == 0
    assert jobfile.FORMAT.line_of(tmp_path / "none", "budget") == 0
