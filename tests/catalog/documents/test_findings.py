"""What a user is told about a JSON catalog that cannot be used: file, place, what was found, what
is allowed.
"""

import copy
import json

import pytest

from deepvm.catalog.store import load_catalog, load_quotas
from deepvm.errors import CatalogFormatError

GOOD = {
    "schema_version": "deepvm.catalog/1",
    "name": "mine",
    "quotas": [{"family": "G", "market": "spot", "vcpus": 8}],
    "n_sat": [{"network_gbps": 1, "n_sat": 3}, {"network_gbps": 10, "n_sat": 20}],
    "instances": [
        {
            "instance_type": "c5.xlarge",
            "vcpus": 4,
            "memory_gib": 8,
            "network_gbps": 10,
            "on_demand_usd_per_hour": 0.17,
        },
        {
            "instance_type": "g5.xlarge",
            "vcpus": 4,
            "memory_gib": 16,
            "network_gbps": 10,
            "on_demand_usd_per_hour": 1.006,
            "spot_usd_per_hour": "0.3018",
            "gpu": {"name": "A10G", "count": 1, "memory_gib": 24},
            "eflops": 696,
            "speedups": [
                {"kind": "hybrid", "a": 0.085, "b": 20, "c": 5},
                {"kind": "ring", "c": 6.7, "l": 0.12},
                {"kind": "measured", "points": [[1, 1], [2, 0.473], [4, 0.618]]},
            ],
        },
    ],
}
G5 = "instances[1] (g5.xlarge)"


def changed(*steps_and_value):
    """GOOD with one value replaced: the steps to it, then the value; ``del`` removes it."""
    *steps, last, value = steps_and_value
    document = copy.deepcopy(GOOD)
    target = document
    for step in steps:
        target = target[step]
    if value == "del":
        del target[last]
    else:
        target[last] = value
    return document


def problems_of(tmp_path, document):
    path = tmp_path / "mine.json"
    path.write_text(
        document if isinstance(document, str) else json.dumps(document), encoding="utf-8"
    )
    with pytest.raises(CatalogFormatError) as caught:
        load_catalog(path)
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value)
    return caught.value


def test_the_document_that_the_cases_change_is_good(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert [i.name for i in load_catalog(path)] == ["c5.xlarge", "g5.xlarge"]


I1 = ("instances", 1)
MIB = "did you mean memory_gib (main memory in GiB"
CURVES = (*I1, "speedups")
HYBRID = {"kind": "hybrid", "a": 1, "b": 1, "c": 1}
SPEEDUPS = f"{G5}.speedups"
ZONES = f"{G5}.spot_zones"


def zone(name, usd_per_hour=0.3018):
    return {"zone": name, "usd_per_hour": usd_per_hour}


CASES = {
    "negative price": ((*I1, "spot_usd_per_hour", -0.3), f"{G5}.spot_usd_per_hour", "-0.3", "above 0 and at most"),
    "zero price": ((*I1, "spot_usd_per_hour", 0), f"{G5}.spot_usd_per_hour", "0", "$/h"),
    "huge price": ((*I1, "spot_usd_per_hour", 100001), f"{G5}.spot_usd_per_hour", "100001", "at most 100000"),
    "tiny price": ((*I1, "spot_usd_per_hour", 1e-7), f"{G5}.spot_usd_per_hour", "1E-7", "at most 6 decimals"),
    "seven decimals": ((*I1, "spot_usd_per_hour", "0.1234567"), f"{G5}.spot_usd_per_hour", "0.1234567", "6 decimals"),
    "euro": ((*I1, "spot_usd_per_hour", "0.3 EUR"), f"{G5}.spot_usd_per_hour", "0.3 EUR", "US dollars an hour"),
    "dollar sign": ((*I1, "spot_usd_per_hour", "$0.3"), f"{G5}.spot_usd_per_hour", "$0.3", "without its unit"),
    "decimal comma": ((*I1, "spot_usd_per_hour", "0,3"), f"{G5}.spot_usd_per_hour", "0,3", "decimal point"),
    "bool price": ((*I1, "spot_usd_per_hour", True), f"{G5}.spot_usd_per_hour", "true", "$/h"),
    "GB": ((*I1, "memory_gib", "16 GB"), f"{G5}.memory_gib", '"16 GB"', "main memory in GiB"),
    "number as text": ((*I1, "memory_gib", "16"), f"{G5}.memory_gib", '"16"', "without quotes"),
    "MiB": ((*I1, "memory_gib", 131072), f"{G5}.memory_gib", "131072", "if this is in MiB, write 128 (GiB)"),
    "Mbps": ((*I1, "network_gbps", 50000), f"{G5}.network_gbps", "50000", "if this is in Mbit/s, write 50 (Gbit/s)"),
    "zero network": ((*I1, "network_gbps", 0), f"{G5}.network_gbps", "0", "Gbit/s"),
    "no vcpus": ((*I1, "vcpus", "del"), f"{G5}.vcpus", "missing", "from 1 to 4096"),
    "half a vcpu": ((*I1, "vcpus", 0.5), f"{G5}.vcpus", "0.5", "whole number"),
    "too many vcpus": ((*I1, "vcpus", 5000), f"{G5}.vcpus", "5000", "from 1 to 4096"),
    "bool vcpus": ((*I1, "vcpus", True), f"{G5}.vcpus", "true", "whole number"),
    "vcpus with exponent": ((*I1, "vcpus", 10**30), f"{G5}.vcpus", "1000000", "whole number"),
    "null vcpus": ((*I1, "vcpus", None), f"{G5}.vcpus", "null", "whole number"),
    "list": ((*I1, "vcpus", [4]), f"{G5}.vcpus", "a list of 1", "whole number"),
    "wrong unit name": ((*I1, "memory_mb", 3), f"{G5}.memory_mb", "unknown field", MIB),
    "misspelt": ((*I1, "spot_usd_per_houre", 3), f"{G5}.spot_usd_per_houre", "unknown", "mean spot_usd_per_hour"),
    "other tool's name": ((*I1, "price", 3), f"{G5}.price", "unknown", "did you mean on_demand_usd_per_hour"),
    "far from all": ((*I1, "zzz", 3), f"{G5}.zzz", "unknown", "allowed fields: instance_type, vcpus"),
    "unknown at the top": (("regoin", "x"), "regoin", "unknown", "did you mean region"),
    "gpu as text": ((*I1, "gpu", "A10G"), f"{G5}.gpu", '"A10G"', "an object"),
    "gpu without name": ((*I1, "gpu", {"count": 1}), f"{G5}.gpu.name", "missing", "GPU model"),
    "half a gpu": ((*I1, "gpu", "count", 0.5), f"{G5}.gpu.count", "0.5", "from 1 to 1024"),
    "gpu memory in MiB": ((*I1, "gpu", "memory_gib", 24576), f"{G5}.gpu.memory_gib", "24576", "write 24 (GiB)"),
    "eflops zero": ((*I1, "eflops", 0), f"{G5}.eflops", "0", "eflops_unit"),
    "blank name": ((*I1, "instance_type", " g5"), "instances[1] ( g5).instance_type", '" g5"', "without blanks"),
    "empty name": ((*I1, "instance_type", ""), "instances[1].instance_type", '""', "1 to 100 visible characters"),
    "comment name": ((*I1, "instance_type", "#g5"), "instances[1] (#g5).instance_type", '"#g5"', "not starting with #"),
    "line break": ((*I1, "note", "a\nb"), f"{G5}.note", '"a\\nb"', "one line"),
    "lone surrogate": ((*I1, "note", "\ud800"), f"{G5}.note", "\\ud800", "one line"),
    "text reversed": ((*I1, "instance_type", "g5\u202ex"), "instances[1].instance_type", "g5\\u202ex", "visible"),
    "isolate": (("name", "a\u2067b"), "name", "a\\u2067b", "visible"),
    "mark": ((*I1, "gpu", "name", "A\u200f10G"), f"{G5}.gpu.name", "A\\u200f10G", "visible"),
    "no width": ((*I1, "quota_family", "G\u200b"), f"{G5}.quota_family", "G\\u200b", "visible"),
    "name twice": ((*I1, "instance_type", "c5.xlarge"), "instances[1] (c5.xlarge).instance_type", "twice", "the first"),
    "no price": (("instances", 0, "on_demand_usd_per_hour", None), "instances[0] (c5.xlarge)", "no price", "spot_usd"),
    "unknown curve": ((*CURVES, 0, "kind", "log"), f"{SPEEDUPS}[0].kind", '"log"', "hybrid, ring, measured"),
    "curve without kind": ((*CURVES, 0, "kind", "del"), f"{SPEEDUPS}[0].kind", "missing", "hybrid, ring"),
    "curve is no object": ((*CURVES, 0, 3), f"{SPEEDUPS}[0]", "", "hybrid"),
    "steepness": ((*CURVES, 0, "a", 0), f"{SPEEDUPS}[0].a", "0", "steepness of the logistic"),
    "negative latency": ((*CURVES, 1, "l", -1), f"{SPEEDUPS}[1].l", "-1", "latency per hop"),
    "curve field": ((*CURVES, 1, "d", 1), f"{SPEEDUPS}[1].d", "unknown field", "allowed fields: "),
    "two general": ((*CURVES, 1, HYBRID), f"{SPEEDUPS}[1]", "a second hybrid", "one of each"),
    "points fall": ((*CURVES, 2, "points", [[4, 2], [2, 1]]), f"{SPEEDUPS}[2].points", "a list of 2", "increasing"),
    "S(1) is not 1": ((*CURVES, 2, "points", [[1, 2], [2, 3]]), f"{SPEEDUPS}[2].points", "a list", "exactly 1"),
    "only n = 1": ((*CURVES, 2, "points", [[1, 1]]), f"{SPEEDUPS}[2].points", "a list of 1", "above 1"),
    "no points": ((*CURVES, 2, "points", []), f"{SPEEDUPS}[2].points", "a list of 0", "pairs"),
    "a triple": ((*CURVES, 2, "points", [[2, 1, 3]]), f"{SPEEDUPS}[2].points[0]", "a list of 3", "pairs"),
    "a point's text": ((*CURVES, 2, "points", 1, 1, "x"), f"{SPEEDUPS}[2].points[1][1]", '"x"', "number"),
    "zones no price": ((*I1, "spot_zones", [{"zone": "a"}]), f"{ZONES}[0].usd_per_hour", "missing", "spot price there"),
    "zones dearer": ((*I1, "spot_zones", [zone("a", 0.4)]), ZONES, "the cheapest zone costs 0.4", "spot_usd_per_hour"),
    "zones twice": ((*I1, "spot_zones", [zone("a"), zone("a")]), f"{ZONES}[1]", "a second price", "one of each zone"),
    "zones mixed": ((*I1, "spot_zones", [zone("a", 0.4), zone("b")]), ZONES, "not sorted", "the cheapest zone first"),
    "zone name": ((*I1, "zones", [3]), f"{G5}.zones[0]", "3", "ids of the zones"),
    "no instances": (("instances", []), "instances", "a list of 0", "1 to 20000"),
    "instances missing": (("instances", "del"), "instances", "missing", "1 to 20000"),
    "instances no list": (("instances", {}), "instances", "an object", "a list"),
    "instance no object": (("instances", 0, "c5"), "instances[0]", '"c5"', "an object with at least"),
    "no version": (("schema_version", "del"), "schema_version", "missing", "deepvm.catalog/1"),
    "other version": (("schema_version", "deepvm.catalog/2"), "schema_version", "deepvm.catalog/2", "deepvm.catalog/1"),
    "date as number": (("prices_as_of", 20231001), "prices_as_of", "20231001", "YYYY-MM-DD"),
    "31 February": (("prices_as_of", "2023-02-31"), "prices_as_of", "2023-02-31", "YYYY-MM-DD"),
    "default curve": (("default_speedup", "amdahl"), "default_speedup", '"amdahl"', "hybrid, ring or measured"),
    "memory nodes": (("memory_nodes", "small"), "memory_nodes", '"small"', "real or paper"),
    "market": (("quotas", 0, "market", "ondemand"), "quotas[0].market", '"ondemand"', "spot or on-demand"),
    "negative quota": (("quotas", 0, "vcpus", -1), "quotas[0].vcpus", "-1", "from 0"),
    "n_sat zero": (("n_sat", 0, "n_sat", 0), "n_sat[0].n_sat", "0", "from 1"),
    "n_sat falls": (("n_sat", 0, "n_sat", 30), "n_sat", "falls", "never decrease"),
    "n_sat twice": (("n_sat", 0, "network_gbps", 10), "n_sat", "two rows for one bandwidth", "strictly increasing"),
    "n_sat empty": (("n_sat", []), "n_sat", "a list of 0", "1 to 1000"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_value_is_named_with_its_place_and_what_is_allowed(case, tmp_path):
    change, place, found, expected = CASES[case]
    error = problems_of(tmp_path, changed(*change))
    assert len(error.problems) == 1, error
    problem = error.problems[0]
    assert problem.place == place
    assert found in problem.found
    assert expected in problem.expected


@pytest.mark.parametrize(
    "constant", ["NaN", "Infinity", "-Infinity", "1e400", "1e-400", "1e99999999999999999999"]
)
@pytest.mark.parametrize("field", ["memory_gib", "eflops", "spot_usd_per_hour"])
def test_numbers_that_are_not_finite_are_refused_with_their_place(field, constant, tmp_path):
    text = json.dumps(changed(*I1, field, "HERE")).replace('"HERE"', constant)
    problem = problems_of(tmp_path, text).problems[0]
    assert problem.place == f"{G5}.{field}"


def test_a_number_of_thousands_of_digits_is_refused_in_few_words(tmp_path):
    text = json.dumps(changed(*I1, "vcpus", "HERE")).replace('"HERE"', "9" * 200_000)
    problem = problems_of(tmp_path, text).problems[0]
    assert problem.place == f"{G5}.vcpus" and len(problem.found) <= 60


def test_every_problem_is_collected(tmp_path):
    document = changed(*I1, "vcpus", 0)
    document["instances"][0]["memory_gib"] = "8 GB"
    document["instances"].append({"instance_type": "c5.xlarge", "vcpus": 1})
    document["surprise"] = 1
    error = problems_of(tmp_path, document)
    places = {p.place for p in error.problems}
    assert places == {
        f"{G5}.vcpus",
        "instances[0] (c5.xlarge).memory_gib",
        "instances[2] (c5.xlarge)",
        "instances[2] (c5.xlarge).instance_type",
        "surprise",
    }


def test_many_problems_are_counted_and_the_first_ten_shown(tmp_path):
    document = changed("name", "x")
    document["instances"] = [
        {"instance_type": f"t{i}", "vcpus": -1, "spot_usd_per_hour": 1} for i in range(30)
    ]
    error = problems_of(tmp_path, document)
    assert len(error.problems) == 30
    assert "and 20 more problems" in str(error)


def test_repeated_keys_are_named_where_they_stand(tmp_path):
    text = json.dumps(GOOD).replace('"memory_gib": 16,', '"memory_gib": 16, "memory_gib": 32,')
    problem = problems_of(tmp_path, text).problems[0]
    assert problem.place == f"{G5}.memory_gib" and "twice" in problem.found


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ('{"a": 1,\n "b": }', "line 2, column 7", "not JSON"),
        ('{"a": 1', "line 1, column 8", "not JSON"),
        ("rubbish", "line 1, column 1", "not JSON"),
        ("[" * 100_000, "file", "nested too deeply"),
        ('{"a":' * 100_000, "file", "nested too deeply"),
        ("[]", "top level", "a list of 0"),
        ("3", "top level", "3"),
        ("null", "top level", "null"),
        ('"text"', "top level", '"text"'),
        ("{" + ",".join(f'"k{i}": 1' for i in range(2000)) + "}", "file", "2000 fields"),
    ],
)
def test_a_file_that_is_no_catalog_at_all(text, place, found, tmp_path):
    problem = problems_of(tmp_path, text).problems[0]
    assert problem.place == place
    assert found in problem.found
    assert "allowed: " in problem.expected


def test_whole_numbers_may_be_written_as_spreadsheets_do(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(changed(*I1, "vcpus", 4.0)), encoding="utf-8")
    assert load_catalog(path)["g5.xlarge"].vcpus == 4


def test_a_file_without_name_date_and_table_gets_the_defaults(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(
        json.dumps({"schema_version": "deepvm.catalog/1", "instances": GOOD["instances"]})
    )
    catalog = load_catalog(path)
    assert (catalog.name, catalog.region, catalog.quotas) == ("bare", "", ())
    assert catalog.provenance.prices_as_of is None and catalog.provenance.kind == "file"
    assert catalog.n_sat.lookup(0.3) == 3


def test_editors_may_name_the_schema(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"$schema": "catalog.schema.json", **GOOD}))
    assert load_catalog(path).name == "mine"


class TestQuotas:
    GOOD = {
        "schema_version": "deepvm.quotas/1",
        "quotas": [{"family": "P", "market": "on-demand", "vcpus": 0}],
    }

    def write(self, tmp_path, document):
        path = tmp_path / "quotas.json"
        path.write_text(json.dumps(document))
        return path

    def test_a_valid_file(self, tmp_path):
        (quota,) = load_quotas(self.write(tmp_path, self.GOOD))
        assert (quota.family, quota.market.value, quota.vcpus) == ("P", "on-demand", 0)

    @pytest.mark.parametrize(
        ("document", "place"),
        [
            (
                {**GOOD, "quotas": [{"family": "P", "market": "spot", "vcpus": "8"}]},
                "quotas[0].vcpus",
            ),
            ({**GOOD, "quotas": GOOD["quotas"] * 2}, "quotas[1]"),
            ({**GOOD, "limits": []}, "limits"),
            ({"schema_version": "deepvm.quotas/1"}, "quotas"),
            ({"schema_version": "deepvm.catalog/1", "instances": []}, "schema_version"),
            ([], "top level"),
        ],
    )
    def test_an_invalid_file(self, document, place, tmp_path):
        with pytest.raises(CatalogFormatError) as caught:
            load_quotas(self.write(tmp_path, document))
        assert caught.value.problems[0].place == place

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(CatalogFormatError, match="does not exist"):
            load_quotas(tmp_path / "none.json")
