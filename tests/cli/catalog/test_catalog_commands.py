"""``deepvm catalog``: data on stdout, everything else on stderr, errors left to ``cli/main.py``."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.command import Run
from support.effort import sampled
from support.places import ROOT
from typer.testing import CliRunner

from deepvm.catalog.store import format_catalog, load_catalog
from deepvm.cli.app import app as main_app
from deepvm.cli.catalog.group import app
from deepvm.errors import CatalogFormatError, CatalogNotFoundError, DataError, RequestError


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def good(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def test_list_as_table():
    lines = good("list").stdout.splitlines()
    assert lines[0].split() == [
        "name",
        "GPU",
        "types",
        "CPU",
        "types",
        "region",
        "prices",
        "as",
        "of",
        "description",
    ]
    assert ["paper", "6", "8", "us-east-1", "2023-10-01"] in [line.split()[:5] for line in lines]
    assert lines[1].split()[:3] == ["aws-us-east-1", "59", "90"]


def test_list_for_programs():
    for form in ["json", "yaml", "csv"]:
        out = good("list", "-o", form).stdout
        if form == "csv":
            rows = list(csv.DictReader(io.StringIO(out)))
        else:
            rows = (json.loads(out) if form == "json" else yaml.safe_load(out))["catalogs"]
        paper = next(r for r in rows if r["catalog"] == "paper")
        assert (
            int(paper["gpu_type_count"]),
            int(paper["cpu_type_count"]),
            paper["prices_as_of"],
        ) == (6, 8, "2023-10-01")


def test_show_as_table():
    result = good("show", "paper")
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + 14
    assert "on-demand $/h" in lines[0] and "FLOPP spot (op/$)" in lines[0]
    (g4dn,) = [line.split() for line in lines if line.startswith("g4dn")]
    assert g4dn[1:11] == ["GPU", "1", "x", "T4", "4", "16", "25", "0.526", "0.1578", "377"]
    assert g4dn[11:15] == ["8.601e+06", "hybrid", "ring", "measured"]
    (p2,) = [line.split() for line in lines if line.startswith("p2.xlarge")]
    assert p2[-3:] == ["-", "-", "-"]
    assert "prices as of 2023-10-01" in result.stderr and "source: " in result.stderr
    assert not any(c in result.stdout for c in "│┃━\x1b")


def test_show_wide_has_the_rest():
    out = good("show", "paper", "-o", "wide").stdout
    assert "G and VT" in out and "0.1941" in out


@pytest.mark.parametrize("form", ["json", "csv"])
def test_show_prints_the_file_format(form, tmp_path):
    result = good("show", "simulated", "-o", form)
    path = tmp_path / f"mine.{form}"
    path.write_text(result.stdout)
    assert load_catalog(path).name == "simulated"
    if form == "json":
        assert result.stdout == (ROOT / "data" / "simulated.json").read_text()
        assert result.stderr == ""
    else:
        assert "warning: simulated: CSV cannot hold the sources of curves" in result.stderr


def test_show_as_yaml():
    assert yaml.safe_load(good("show", "paper", "-o", "yaml").stdout) == json.loads(
        good("show", "paper", "-o", "json").stdout
    )


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_validate_counts_and_warns(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    path.write_text(format_catalog(load_catalog("simulated"), f".{ending}")[0])
    result = good("validate", path)
    assert result.stdout == f"{path}: ok, 17 instance types (10 GPU, 7 CPU)\n"
    assert f"warning: {path}: F: the hybrid curve is above n" in result.stderr


@pytest.mark.parametrize(
    ("ending", "place"), [("json", "instances[1].spot_usd_per_hour"), ("csv", "spot_usd_per_hour")]
)
def test_validate_doubts_a_price_with_its_place(ending, place, tmp_path):
    path = tmp_path / f"mine.{ending}"
    document = json.loads(format_catalog(load_catalog("simulated"), ".json")[0])
    document["instances"][1]["spot_usd_per_hour"] = 0.000001
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(document))
    path.write_text(format_catalog(load_catalog(whole), f".{ending}")[0])
    result = good("validate", path)  # it is the user's price: a doubt, no error
    (warning,) = [line for line in result.stderr.splitlines() if "on-demand price" in line]
    assert warning.startswith(f"warning: {path}:") and f": {place}: " in warning
    assert (
        "spot_usd_per_hour: $0.000001/h is below 2 % of its on-demand price, $0.5260/h" in warning
    )


def test_errors_are_left_to_main(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text("{}")
    assert isinstance(invoke("validate", path).exception, CatalogFormatError)
    assert isinstance(invoke("show", "papre").exception, CatalogNotFoundError)
    assert isinstance(
        invoke("convert", "papre", tmp_path / "x.json").exception, CatalogNotFoundError
    )
    result = invoke("convert", "paper", tmp_path / "no" / "x.json")
    assert isinstance(result.exception, DataError) and "cannot be written" in str(result.exception)


def test_convert_there_and_back(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.json"
    result = good("convert", "paper", first)
    assert result.stdout == "" and "written, 14 instance types" in result.stderr
    assert "CSV cannot hold curves of single workloads" in result.stderr
    result = good("convert", first, second)
    assert "warning" not in result.stderr
    assert [i.name for i in load_catalog(second)] == [i.name for i in load_catalog("paper")]


def test_convert_does_not_overwrite_unasked(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("mine")
    result = invoke("convert", "paper", path)
    assert isinstance(result.exception, RequestError) and "--force" in str(result.exception)
    assert path.read_text() == "mine"
    good("convert", "paper", path, "--force")
    assert load_catalog(path).name == "paper"


def test_convert_needs_an_ending(tmp_path):
    result = invoke("convert", "paper", tmp_path / "a.txt")
    assert isinstance(result.exception, RequestError) and ".json or .csv" in str(result.exception)


def test_schema_is_the_file_in_data():
    assert json.loads(good("schema").stdout) == json.loads(
        (ROOT / "data" / "catalog.schema.json").read_text()
    )


def test_a_wrong_form_is_a_usage_error():
    result = invoke("show", "paper", "-o", "xml")
    assert result.exit_code == 2 and "wide" in result.stderr


def test_importing_the_commands_loads_nothing_heavy():
    code = (
        "import sys, deepvm.cli.catalog.group;print([m for m in ('numpy', 'pydantic',"
        " 'deepvm.core.cluster.instances', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert out.stdout.strip() == "[]"


def test_exit_codes_of_the_program():
    for arguments, code in [
        (["list"], 0),
        (["show", "papre"], 4),
        (["validate", "none.json"], 4),
        (["convert", "paper", "x.txt"], 2),
    ]:
        program = [sys.executable, "-m", "deepvm.cli.main", "catalog", *arguments]
        out = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
        assert out.returncode == code, out.stderr
        assert bool(out.stdout) == (code == 0) and "Traceback" not in out.stderr


@pytest.mark.parametrize("basis", ["eflops_basis", "speedup_basis"])
def test_what_needs_estimates_is_what_the_texts_say(basis: str, run: Run, tmp_path: Path) -> None:
    """An estimated speed is a guess that has to be allowed.

    A curve of the same GPU is only doubted.
    """
    document = json.loads(run("catalog", "show", "paper", "-o", "json")[1])
    for row in document["instances"]:
        if "gpu" in row:
            row[basis] = "those of its brother"
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(document))
    words = ["recommend", "--pw", "3", "--catalog", file]
    code, out, err = run(*words)
    needed = basis == "eflops_basis"
    assert code == (3 if needed else 0)
    assert ("--estimates" in err) == needed
    assert ("Warning: " in out and "those of its brother" in out) != needed
    code, out, _ = run(*words, "--estimates")
    assert code == 0 and "Warning: " in out and "those of its brother" in out
    # The page and the schema say the same.
    page = ROOT / "docs" / "internals" / "reference" / "catalog-file.md"
    (row,) = [r for r in page.read_text().splitlines() if r.startswith(f"| `{basis}`")]
    fields = json.loads(run("catalog", "schema")[1])["$defs"]["InstanceDocument"]["properties"]
    assert ("--estimates" in row) == ("--estimates" in fields[basis]["description"]) == needed


OF_THE_SOURCE = ("Risk: ", "Quotas:", "Prices:")


def without_sources(value):
    """A document without what says where and of when its figures are."""
    if isinstance(value, list):
        return [without_sources(v) for v in value]
    if not isinstance(value, dict):
        return value
    about = {"kind", "source", "observed_at", "signals", "notes", "quotas", "prices_as_of"}
    return {key: without_sources(v) for key, v in value.items() if key not in about}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """AWS's snapshot as the files that ``convert`` makes of it."""
    folder = tmp_path_factory.mktemp("converted")
    for ending in ("json", "csv"):
        good("convert", "aws-us-east-1", folder / f"x.{ending}", "--prices", "snapshot")
    return folder


@pytest.mark.parametrize("form", sampled(["table", "wide", "json", "yaml", "csv"], every=2))
@pytest.mark.parametrize("ending", ["json", "csv"])
def test_a_converted_snapshot_recommends_what_the_snapshot_does(converted, ending, form):
    """All but where the figures come from, of which a file says less than the market."""
    answers = []
    for source in ("aws-us-east-1", str(converted / f"x.{ending}")):
        result = CliRunner().invoke(
            main_app, ["recommend", "--pw", "3", "--catalog", source, "-o", form]
        )
        assert result.exit_code == 0, result.output + repr(result.exception)
        answers.append(result.stdout)
    if form == "csv":
        assert answers[0] == answers[1]
    elif form in ("json", "yaml"):
        ours, files = (json.loads(a) if form == "json" else yaml.safe_load(a) for a in answers)
        assert without_sources(ours) == without_sources(files)
    else:
        ours, files = (
            [line for line in a.splitlines() if not line.startswith(OF_THE_SOURCE)] for a in answers
        )
        assert ours == files and len(ours) > 8
