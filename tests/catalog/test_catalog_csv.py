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
HEADER = (
    "instance_type,vcpus,memory_gib,spot_usd_per_hour,gpu_name,gpu_count,hybrid_a,hybrid_b,hybrid_c"
    ",measured\n"
)
CPU = "c5.xlarge,4,8,0.1,,,,,,\n"
GPU = "g5.xlarge,4,16,0.3018,A10G,1,0.085,20,5,1:1 2:0.473\n"
GOOD = HEAD + HEADER + CPU + GPU


def load(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "mine.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return load_catalog(path)


def problems_of(tmp_path, text):
    with pytest.raises(CatalogFormatError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 4
    assert str(tmp_path / "mine.csv") in str(caught.value)
    return caught.value.problems, str(caught.value)


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
    "value": (("0.3018", "0.3 EUR"), "9: invalid value for spot_usd_per_hour: '0.3 EUR' (expected"),
    "infinity": (("0.3018", "1e999999999999"), "9: invalid value for spot_usd_per_hour: '1e999"),
    "missing": (("g5.xlarge,4,", "g5.xlarge,,"), "9: missing key vcpus (expected virtual CPUs"),
    "gpu": (("A10G,1", "A10G,0"), "9: invalid value for gpu_count: '0' (expected GPUs in one VM"),
    "no gpu": (("A10G,1", ",1"), "9: missing key gpu_name (expected"),
    "half a curve": (("0.085,20,5", "0.085,,5"), "9: missing key hybrid_b (expected inflection"),
    "point": (("2:0.473", "2:x"), "9: invalid value for measured: 'x' (expected measured"),
    "no pair": (("2:0.473", "2"), "9: missing key measured (expected measured"),
    "S(1)": (("1:1 2", "1:3 2"), "9: measured: expected"),
    "name twice": (("g5.xlarge", "c5.xlarge"), "9: instance_type: 'c5.xlarge' occurs twice"),
    "short row": ((",1:1 2:0.473", ""), "9: 9 fields (expected 10, as in the header)"),
    "long row": (("0.3018", "0,3018"), "9: 11 fields (expected 10, as in the header)"),
    "open quote": (("A10G", '"A10G'), "9: not CSV: "),
    "version": (("catalog/1", "catalog/9"), "1: invalid value for schema_version: 'deepvm.cata"),
    "no version": (("# schema_version: deepvm.catalog/1\n", ""), " missing key schema_version"),
    "date": (("2026-01-02", "02.01.2026"), "3: invalid value for prices_as_of: '02.01.2026'"),
    "unknown key": (("# name:", "# nam:"), "2: unknown key nam (did you mean name?)"),
    "key twice": (("# name:", "# schema_version:"), "2: repeated key schema_version"),
    "quota": ((", spot, 128", ", sport, 128"), "4: invalid value for quotas[0].market: 'sport'"),
    "short quota": (("G and VT, spot, 128", "spot, 128"), "4: missing key quotas[0].vcpus"),
    "n_sat": (("10, 20", "10, 2"), "5: n_sat: expected"),
    "column": (("gpu_count", "gpu_cuont"), "7: unknown column 'gpu_cuont'"),
    "column twice": (("memory_gib", "vcpus"), "7: repeated column vcpus"),
    "separator": ((",", ";"), "7: fields are not separated by commas (expected"),
}


@pytest.mark.parametrize("case", CELLS)
def test_a_wrong_cell_is_named_by_line_and_column(case, tmp_path):
    (old, new), message = CELLS[case]
    count = -1 if case == "separator" else 1
    problems, error = problems_of(tmp_path, GOOD.replace(old, new, count))
    assert f"mine.csv:{message}" in error


def test_no_rows_and_no_header(tmp_path):
    assert "7: invalid value for instances: a list of 0" in problems_of(tmp_path, HEAD + HEADER)[1]
    for text in (HEAD, "rubbish\nmore\n"):
        assert problems_of(tmp_path, text)


def test_a_line_break_in_a_field_does_not_shift_the_lines(tmp_path):
    text = GOOD.replace("c5.xlarge", '"c5\nxlarge"').replace("0.3018", "-1")
    problems, _ = problems_of(tmp_path, text)
    assert {(p.line, p.key) for p in problems} == {(8, "instance_type"), (10, "spot_usd_per_hour")}


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
