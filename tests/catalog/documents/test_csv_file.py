"""Catalogs as CSV: the same schema, places as line and column, the habits of spreadsheets."""

import csv
import io

import pytest

from deepvm.catalog.store import format_catalog, load_catalog, save_catalog
from deepvm.core.cluster.instances import Market, quota_limit
from deepvm.errors import CatalogFormatError

HEAD = """\
# schema_version: deepvm.catalog/1
# name: mine
# prices_as_of: 2026-01-02
# quota: G and VT, spot, 128
# n_sat: 0.3, 3
# n_sat: 10, 20
"""
HEADER = "instance_type,vcpus,memory_gib,spot_usd_per_hour,gpu_name,gpu_count,hybrid_a,hybrid_b,hybrid_c,measured\n"
CPU = "c5.xlarge,4,8,0.1,,,,,,\n"
GPU = "g5.xlarge,4,16,0.3018,A10G,1,0.085,20,5,1:1 2:0.473\n"
GOOD = HEAD + HEADER + CPU + GPU
ABOVE = "comment lines above the header"


def load(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "mine.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return load_catalog(path)


def problems_of(tmp_path, text):
    with pytest.raises(CatalogFormatError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 4
    assert str(tmp_path / "mine.csv") in str(caught.value)
    return caught.value.problems


def check_good(catalog):
    assert (catalog.name, str(catalog.provenance.prices_as_of)) == ("mine", "2026-01-02")
    assert quota_limit(catalog.quotas, "G and VT", Market.SPOT) == 128
    assert catalog.n_sat.n_sat == (3, 20)
    g5, c5 = catalog["g5.xlarge"], catalog["c5.xlarge"]
    assert (str(g5.spot_usd_per_hour), g5.on_demand_usd_per_hour, g5.network_gbps) == (
        "0.3018",
        None,
        None,
    )
    assert (g5.gpu.name, g5.gpu.count, g5.gpu.manufacturer, c5.gpu) == ("A10G", 1, "NVIDIA", None)
    assert [c.kind for c in g5.speedups] == ["hybrid", "measured"] and c5.speedups == ()
    assert g5.curve("measured").points == ((1.0, 1.0), (2.0, 0.473))


def test_a_good_file(tmp_path):
    check_good(load(tmp_path, GOOD))


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\r"),
        GOOD.replace("\n", "\n\n"),
        GOOD.rstrip("\n"),
        GOOD.replace(",4,", " , 4.0 ,"),
        # As a spreadsheet saves it: every line as wide as the table, commas in comments as cells or
        # quoted.
        "".join(
            line + ",,,,,\n" if line.startswith("#") else line + ",,\n"
            for line in GOOD.splitlines()
        ),
        GOOD.replace("# quota: G and VT, spot, 128", '"# quota: G and VT, spot, 128",,,'),
        "# a free remark\n\n" + GOOD,
    ],
    ids=["crlf", "cr", "blank lines", "no last newline", "blanks", "wide", "quoted", "remark"],
)
def test_forms_that_mean_the_same(text, tmp_path):
    check_good(load(tmp_path, text))


def test_a_byte_order_mark_is_accepted(tmp_path):
    check_good(load(tmp_path, GOOD, "utf-8-sig"))


CELLS = {
    "negative price": (("0.3018", "-0.3"), "line 9, column spot_usd_per_hour", "-0.3", "above 0"),
    "currency": (("0.3018", "0.3 EUR"), "line 9, column spot_usd_per_hour", '"0.3 EUR"', "US dollars an hour"),
    "NaN": (("0.3018", "NaN"), "line 9, column spot_usd_per_hour", '"NaN"', "$/h"),
    "infinity": (("0.3018", "1e999999999999"), "line 9, column spot_usd_per_hour", "1e999", "$/h"),
    "unit": ((",16,", ",16 GB,"), "line 9, column memory_gib", '"16 GB"', "main memory in GiB"),
    "MiB": ((",16,", ",131072,"), "line 9, column memory_gib", "131072", "128 (GiB)"),
    "no vcpus": (("g5.xlarge,4,", "g5.xlarge,,"), "line 9, column vcpus", "missing", "from 1 to 4096"),
    "no name": (("g5.xlarge,4,", ",4,"), "line 9, column instance_type", "missing", "g4dn.xlarge"),
    "no price": (("0.3018", ""), "line 9", "no price", "spot_usd_per_hour"),
    "gpu count alone": (("A10G,1", ",1"), "line 9, column gpu_name", "missing", "GPU model"),
    "gpu count": (("A10G,1", "A10G,0"), "line 9, column gpu_count", "0", "from 1 to 1024"),
    "steepness": (("0.085", "0"), "line 9, column hybrid_a", "0", "steepness"),
    "half a curve": (("0.085,20,5", "0.085,,5"), "line 9, column hybrid_b", "missing", "inflection point"),
    "point": (("2:0.473", "2:x"), "line 9, column measured", '"x"', "pairs"),
    "no pairs": (("2:0.473", "2"), "line 9, column measured", '"1:1 2"', "pairs"),
    "S(1)": (("1:1 2", "1:3 2"), "line 9, column measured", "a list of 2", "exactly 1"),
    "name twice": (("g5.xlarge", "c5.xlarge"), "line 9, column instance_type", "appears twice", "instance 1"),
    "comment in the table": (("c5.xlarge", "# c5"), "line 8, column instance_type", '"# c5"', "not starting with #"),
    "short row": ((",1:1 2:0.473", ""), "line 9", "9 fields (none for measured)", "10 fields"),
    "long row": (("0.3018", "0,3018"), "line 9", "11 fields", "double quotes"),
    "open quote": (("A10G", '"A10G'), "line 9", "not CSV", "double quotes"),
    "version missing": (
        ("# schema_version: deepvm.catalog/1\n", ""), f"{ABOVE}, schema_version", "missing", "deepvm.catalog/1"
    ),
    "version": (("catalog/1", "catalog/9"), "line 1", "deepvm.catalog/9", "deepvm.catalog/1"),
    "date": (("2026-01-02", "02.01.2026"), "line 3", "02.01.2026", "YYYY-MM-DD"),
    "unknown key": (("# name:", "# nam:"), "line 2", '"nam"', "did you mean name?"),
    "key twice": (("# name:", "# schema_version:"), "line 2", "twice", "line 1 too"),
    "quota": ((", spot, 128", ", sport, 128"), "line 4, market", '"sport"', "spot or on-demand"),
    "short quota": (("G and VT, spot, 128", "spot, 128"), "line 4", "spot, 128", "family, market, vcpus"),
    "n_sat": (("10, 20", "10, 2"), "line 5", "n_sat falls", "never decrease"),
    "n_sat text": (("10, 20", "10 Gbps, 20"), "line 6, network_gbps", '"10 Gbps"', "Gbit/s"),
    "column": (("gpu_count", "gpu_cuont"), "line 7, column 6", '"gpu_cuont"', "did you mean gpu_count?"),
    "unit in a column": (("memory_gib", "memory_gb"), "line 7, column 3", '"memory_gb"', "did you mean memory_gib?"),
    "missing column": (("vcpus", "note"), "line 7", "missing columns: vcpus", "instance_type, vcpus"),
    "column twice": (("memory_gib", "vcpus"), "line 7, column vcpus", "appears twice", "every column once"),
    "empty column": (("memory_gib", ""), "line 7, column 3", "unknown column", "allowed columns"),
}  # fmt: skip


@pytest.mark.parametrize("case", CELLS)
def test_a_wrong_cell_is_named_by_line_and_column(case, tmp_path):
    (old, new), place, found, expected = CELLS[case]
    assert old in GOOD
    problems = problems_of(tmp_path, GOOD.replace(old, new, 1))
    assert len(problems) == 1, problems
    assert problems[0].place == place
    assert found in problems[0].found
    assert expected in problems[0].expected


def test_semicolons_are_recognised(tmp_path):
    (problem,) = problems_of(tmp_path, GOOD.replace(",", ";"))[-1:]
    assert problem.place == "line 7" and "';'" in problem.found


def test_problems_of_all_kinds_are_collected(tmp_path):
    text = (
        GOOD.replace("# name", "# nmae").replace(",8,0.1", ",8 GB,0.1")
        + "x,1\n"
        + "t3,0,16,1,,,,,,\n"
    )
    places = {p.place for p in problems_of(tmp_path, text)}
    assert places == {"line 2", "line 8, column memory_gib", "line 10", "line 11, column vcpus"}


def test_a_comment_that_is_no_csv(tmp_path):
    (problem,) = problems_of(tmp_path, GOOD.replace("# name", '"# ' + "x" * 140_000 + '"\n# name'))
    assert problem.place == "line 2" and "field larger than field limit" in problem.found


def test_no_rows_and_no_header(tmp_path):
    assert problems_of(tmp_path, HEAD + HEADER)[0].place == "rows below the header"
    assert "missing columns" in problems_of(tmp_path, HEAD)[-1].found
    assert problems_of(tmp_path, "rubbish\nmore\n")


def test_a_line_break_in_a_field_does_not_shift_the_lines(tmp_path):
    text = GOOD.replace("c5.xlarge", '"c5\nxlarge"').replace("0.3018", "-1")
    assert {p.place for p in problems_of(tmp_path, text)} == {
        "line 8, column instance_type",
        "line 10, column spot_usd_per_hour",
    }


def test_what_csv_cannot_hold_is_said(tmp_path):
    paper = load_catalog("paper")
    said = "\n".join(save_catalog(paper, tmp_path / "paper.csv"))
    assert "resnet152" in said and "sources of curves" in said
    again = load_catalog(tmp_path / "paper.csv")
    assert [i.name for i in again] == [i.name for i in paper]
    assert again["g4dn.xlarge"].curve("ring").c == paper["g4dn.xlarge"].curve("ring").c
    assert save_catalog(again, tmp_path / "again.csv") == ()
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "paper.csv").read_bytes()


def test_the_rows_are_plain_csv():
    text, _ = format_catalog(load_catalog("paper"), ".csv")
    rows = list(
        csv.DictReader(
            io.StringIO("".join(li for li in text.splitlines(True) if not li.startswith("#")))
        )
    )
    assert len(rows) == 14
    assert rows[1]["spot_usd_per_hour"] == "0.1578" and rows[1]["measured"].startswith(
        "1:1 2:1.036 "
    )
