"""Rules that join fields of catalogs and quotas; tests/documents/test_reader.py has the fields."""

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


def changed(*steps_and_value):
    """GOOD with one value replaced: the steps to it, then the value."""
    *steps, last, value = steps_and_value
    document = copy.deepcopy(GOOD)
    target = document
    for step in steps:
        target = target[step]
    target[last] = value
    return document


I1 = ("instances", 1)
CURVES = (*I1, "speedups")
HYBRID = {"kind": "hybrid", "a": 1, "b": 1, "c": 1}
QUOTA = {"family": "G", "market": "spot", "vcpus": 8}


def zone(name, usd_per_hour=0.3018):
    return {"zone": name, "usd_per_hour": usd_per_hour}


RULES = {
    "n_sat falls": (("n_sat", 0, "n_sat", 30), "n_sat: expected whole numbers >= 1 that never"),
    "n_sat twice": (("n_sat", 0, "network_gbps", 10), "n_sat: expected positive bandwidths"),
    "second quota": (("quotas", [QUOTA, QUOTA]), "quotas[1]: expected one limit of each family"),
    "name twice": ((*I1, "instance_type", "c5.xlarge"), "'c5.xlarge' occurs twice"),
    "no price": (("instances", 0, "on_demand_usd_per_hour", None), "no price"),
    "two curves": ((*CURVES, [HYBRID, HYBRID]), "speedups[1]: expected one curve of each kind"),
    "points": ((*CURVES, 2, "points", [[2, 1], [1, 1]]), "speedups[2].points: expected"),
    "S(1)": ((*CURVES, 2, "points", [[1, 2], [2, 1]]), "speedups[2].points: expected"),
    "dear zone": ((*I1, "spot_zones", [zone("a", 0.4)]), "spot_usd_per_hour to be the cheapest"),
    "order": ((*I1, "spot_zones", [zone("a", 0.4), zone("b")]), "expected the cheapest zone first"),
    "zone twice": ((*I1, "spot_zones", [zone("a"), zone("a")]), "expected one price of each zone"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named_with_its_key(rule, tmp_path):
    change, message = RULES[rule]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(changed(*change)))
    with pytest.raises(CatalogFormatError) as caught:
        load_catalog(path)
    assert message in str(caught.value) and len(caught.value.problems) == 1


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


def test_quotas(tmp_path):
    path = tmp_path / "quotas.json"
    path.write_text(json.dumps({"schema_version": "deepvm.quotas/1", "quotas": [QUOTA]}))
    (quota,) = load_quotas(path)
    assert (quota.family, quota.market.value, quota.vcpus) == ("G", "spot", 8)
    path.write_text(json.dumps({"schema_version": "deepvm.quotas/1", "quotas": [QUOTA, QUOTA]}))
    with pytest.raises(CatalogFormatError, match=r"quotas\[1\]: expected one limit"):
        load_quotas(path)
