"""Plans are read from what ``recommend -o json`` writes.

What is wrong in them is named with its place.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import paper, simulated
from support.plans import document, memory_vms, text, tiering

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import ANCHOR, MEMORY, TRAINING
from deepvm.documents.inputs.plan import decode_plan, load_plan, parse_plan
from deepvm.errors import CatalogFormatError, DeepVMError, RequestError
from deepvm.reports.documents import to_json
from deepvm.services.keywords import recommend


def refused(changed: Any, rank: int = 1) -> CatalogFormatError:
    with pytest.raises(CatalogFormatError) as caught:
        parse_plan(changed if isinstance(changed, str) else json.dumps(changed), rank, "plan.json")
    assert caught.value.exit_code == 4
    return caught.value


def only(changed: Any) -> str:
    """The one problem of a document."""
    error = refused(changed)
    assert len(error.problems) == 1, str(error)
    return str(error)


def test_a_document_is_read_whole() -> None:
    assert parse_plan(text()) == tiering()


def test_another_rank() -> None:
    plan = parse_plan(text(), 2)
    assert (plan.architecture, plan.training.spot_count, plan.training.on_demand_count) == (
        "single-anchor",
        8,
        1,
    )
    assert plan.memory is None and plan.training.gpus_per_vm is None and plan.training.zones == ()
    assert plan.region == "us-east-1"  # of the source, where the configuration does not say


@pytest.mark.parametrize("budget", ["3", "6.5", "0.6"])
@pytest.mark.parametrize("catalog", [paper(), simulated()], ids=["paper", "simulated"])
def test_what_recommend_writes_can_be_read(catalog: Any, budget: str) -> None:
    answer = recommend(catalog, budget)
    written = to_json(answer.to_dict())
    for r in answer.configurations:
        plan, cluster = parse_plan(written, r.rank), r.cluster
        assert plan.usd_per_hour == cluster.usd_per_hour  # exact, through JSON and back
        assert [(g.instance_type, g.market, g.count) for g in plan.groups] == [
            (g.instance.name, g.market, g.count) for g in cluster.groups
        ]
        assert str(plan) == str(cluster)
        assert plan.rank == r.rank and plan.architecture == cluster.architecture


def test_unknown_fields_are_ignored_everywhere() -> None:
    changed = document()
    for part in (
        changed,
        changed["source"],
        *changed["configurations"],
        changed["configurations"][0]["gpu"],
    ):
        part["a_later_field"] = {"anything": [1]}
    changed["configurations"][0]["gpu"]["zones"][0]["since"] = "2026-08-10T00:00:00Z"
    assert parse_plan(json.dumps(changed)) == tiering()


def test_optional_fields_may_be_null_or_missing() -> None:
    changed = document()
    first = changed["configurations"][0]
    for name in (
        "spot_usd_per_hour",
        "on_demand_usd_per_hour",
        "gpu_name",
        "gpus_per_vm",
        "cpu_architecture",
        "zones",
    ):
        first["gpu"][name] = None
    first["zone"] = first["region"] = first["memory"] = None
    changed["source"] = {"region": None, "prices_as_of": None}
    plan = parse_plan(json.dumps(changed))
    assert (plan.region, plan.zone, plan.source.prices_as_of, plan.training.zones) == (
        "",
        "",
        None,
        (),
    )


def test_counts_that_contradict_each_other() -> None:
    changed = document()
    changed["configurations"][0]["gpu"]["count"] = 18
    assert "18 is not spot_count + on_demand_count" in only(changed)


def test_a_price_that_is_not_the_sum_of_its_parts() -> None:
    changed = document()
    changed["configurations"][0]["memory"]["count"] = 500
    assert "the sum of counts x prices, 8" in only(changed)
    # Unknown, so nothing to compare with
    changed["configurations"][0]["memory"]["on_demand_usd_per_hour"] = None
    assert parse_plan(json.dumps(changed)).memory is not None


def test_nothing_feasible_says_why() -> None:
    answer = recommend(paper(), "0.1")
    assert answer.infeasible is not None
    message = only(to_json(answer.to_dict()))
    assert f"the plan has no configuration: {answer.infeasible.reason}" in message
    assert answer.infeasible.advice in message


def test_an_empty_plan_without_a_reason() -> None:
    changed = document()
    changed["configurations"] = []
    assert "the plan has no configuration: nothing was feasible" in only(changed)


def test_of_several_regions_each_has_its_own_prices() -> None:
    changed = document()
    changed["configurations"][1]["region"] = "eu-west-1"
    changed["regions"] = [
        {"region": "us-east-1", "source": changed["source"]},
        {
            "region": "eu-west-1",
            "source": {
                "catalog": "aws-eu",
                "prices_as_of": "2026-01-02",
                "price_basis": "p95 of 30 days",
            },
        },
    ]
    first, second = parse_plan(json.dumps(changed)), parse_plan(json.dumps(changed), 2)
    assert first == tiering()
    assert (second.region, second.source.catalog, second.source.basis) == (
        "eu-west-1",
        "aws-eu",
        "p95 of 30 days",
    )


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(RequestError) as caught:
        parse_plan(text(), 3, "plan.json")
    assert str(caught.value) == "invalid value for rank: 3 (expected the ranks of plan.json: 1, 2)"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xef\xbb\xbf" + text().encode())
    assert load_plan(path) == tiering()


def test_bytes_from_a_pipe() -> None:
    assert decode_plan(text().encode()) == tiering()
    assert decode_plan(b"\xef\xbb\xbf" + text().encode()) == tiering()
    for data in (b"", b" \n", b"\xff", b"\xef\xbb\xbf"):
        with pytest.raises(CatalogFormatError, match="standard input"):
            decode_plan(data)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.data())
def test_whatever_stands_in_a_field_nothing_but_our_errors_come_out(data: st.DataObject) -> None:
    changed = document()
    part: Any = changed
    while True:
        step = data.draw(
            st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part)))
        )
        if not isinstance(part[step], (dict, list)) or not part[step] or data.draw(st.booleans()):
            break
        part = part[step]
    part[step] = data.draw(_VALUES)
    try:
        plan = parse_plan(json.dumps(changed))
    except DeepVMError as error:
        assert str(error)
    else:
        assert plan.usd_per_hour > 0 and plan.training_count >= 1 and plan.groups


@given(st.decimals("0.000001", "100000", places=6, allow_nan=False))
def test_prices_are_exact(price: Decimal) -> None:
    changed = document()
    configuration = changed["configurations"][0]
    configuration["gpu"] |= {"count": 1, "spot_count": 1, "spot_usd_per_hour": float(price)}
    configuration |= {"memory": None, "usd_per_hour": float(price)}
    configuration["gpu"]["zones"][0]["usd_per_hour"] = float(price)
    plan = parse_plan(json.dumps(changed))
    assert plan.usd_per_hour == price and price in [z.usd_per_hour for z in plan.training.zones]


@pytest.mark.parametrize(
    "place", ["us-east-1; touch x #", "*/../k8s", "$(id)", "a b", "-x", "", "é", "a" * 101, "a\nb"]
)
@pytest.mark.parametrize("where", ["zone", "region", "zones"])
def test_what_goes_into_commands_is_a_plain_name(where: str, place: str) -> None:
    changed = document()
    configuration = changed["configurations"][0]
    if where == "zones":
        configuration["gpu"]["zones"][0]["zone"] = place
    else:
        configuration[where] = place
    if where == "region" and place == "":
        assert parse_plan(json.dumps(changed)).region == "us-east-1"  # that of the source
        return
    with pytest.raises(CatalogFormatError, match="should match pattern"):
        parse_plan(json.dumps(changed))


@pytest.mark.parametrize(
    "name",
    [
        "g4dn.xlarge; touch x",
        "$(id)",
        "`id`",
        "a b",
        "x'y",
        'x"y',
        "a/b",
        "..",
        "-x",
        "${var.region}",
        "a\n",
        "é",
        "a" * 101,
    ],
)
@pytest.mark.parametrize("where", ["gpu", "memory"])
def test_a_type_is_a_name_that_a_provider_could_give(where: str, name: str) -> None:
    """Types go into shell scripts, YAML and HCL. They are quoted there.

    Yet no provider calls a type like that.
    """
    changed = document()
    changed["configurations"][0][where]["instance_type"] = name
    message = only(changed)
    assert f"invalid value for configurations[0].{where}.instance_type" in message
    assert "should match pattern" in message


@pytest.mark.parametrize(
    "name", ["A", "g4dn.xlarge", "u-24tb1.metal", "Standard_NC6s_v3", "n1-standard-4", "8way"]
)
def test_names_of_other_providers_and_invented_ones_are_names(name: str) -> None:
    changed = document()
    changed["configurations"][0]["gpu"]["instance_type"] = name
    assert parse_plan(json.dumps(changed)).training.instance_type == name


def test_roles_of_the_groups() -> None:
    first, second = parse_plan(text()), parse_plan(text(), 2)
    assert [(g.role, g.market) for g in first.groups] == [
        (TRAINING, Market.SPOT),
        (MEMORY, Market.ON_DEMAND),
    ]
    assert [(g.role, g.market) for g in second.groups] == [
        (TRAINING, Market.SPOT),
        (ANCHOR, Market.ON_DEMAND),
    ]
    assert first.rendezvous.role == MEMORY and second.rendezvous.role == ANCHOR


def test_images_for_two_kinds_of_cpu() -> None:
    assert (
        not tiering().mixes_cpu_architectures and not tiering(memory=None).mixes_cpu_architectures
    )
    assert tiering(memory=memory_vms(cpu_architecture="arm64")).mixes_cpu_architectures
    # Nothing is known to differ
    assert not tiering(memory=memory_vms(cpu_architecture="")).mixes_cpu_architectures


def test_zones_can_be_chosen_by_id_or_name() -> None:
    plan = tiering()
    assert plan.in_zones([]) == plan
    for zone in ("use1-az1", "us-east-1b"):
        chosen = plan.in_zones([zone])
        assert [z.zone for z in chosen.training.zones] == ["use1-az1"] and chosen.zone == "use1-az1"
    assert plan.in_zones(["use1-az1", "us-east-1a"]) == plan
    with pytest.raises(RequestError, match=r"us-east-1c.*use1-az4 \(us-east-1a\), use1-az1"):
        plan.in_zones(["us-east-1a", "us-east-1c"])
    with pytest.raises(RequestError, match="without zones"):
        parse_plan(text(), 2).in_zones(["us-east-1a"])
