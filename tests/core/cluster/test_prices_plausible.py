"""Prices that cannot be true: the bounds, what they compare with, and how robust that is."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import SHARED

from deepvm.core.cluster.instances import InstanceType, flopp
from deepvm.core.cluster.prices import (
    FEWEST_PEERS,
    LEAST_SPOT_SHARE,
    LEAST_USD_PER_HOUR,
    MOST_SPOT_SHARE,
    MOST_USD_PER_HOUR,
    PricedType,
    PriceSanityCheck,
    family,
)
from deepvm.errors import RequestError

SHARED = SHARED / "data" / "aws"
G4DN = {
    "xlarge": (4, "0.526"),
    "2xlarge": (8, "0.752"),
    "4xlarge": (16, "1.204"),
    "8xlarge": (32, "2.176"),
}
OTHERS = {"c5.xlarge": (4, "0.17"), "p5.48xlarge": (192, "55.04"), "t3.nano": (2, "0.0052")}


def market(**changed: str | None) -> PriceSanityCheck:
    """Types with on-demand prices, some changed: ``g4dn_xlarge="0.1"``."""
    rows = {f"g4dn.{size}": row for size, row in G4DN.items()} | OTHERS
    prices = {name: changed.get(name.replace(".", "_"), price) for name, (_, price) in rows.items()}
    return PriceSanityCheck(
        {n: PricedType(rows[n][0], None if p is None else Decimal(p)) for n, p in prices.items()}
    )


def test_all_real_prices_are_plausible() -> None:
    judged = market()
    for name, priced in judged.types.items():
        assert priced.on_demand_usd_per_hour is not None
        assert judged.on_demand(name, priced.on_demand_usd_per_hour) is None
        for share in ("0.1", "0.3", "1", "1.2"):
            assert judged.spot(name, priced.on_demand_usd_per_hour * Decimal(share)) is None


def test_an_on_demand_price_is_compared_with_its_peers() -> None:
    for name, price, why in [
        ("g4dn.xlarge", "0.00000001", "below $0.0005/h, less than any VM costs"),
        ("g4dn.xlarge", "999999", "above $10000/h, more than any VM costs"),
        ("g4dn.xlarge", "0.01", "below 1/25 of the median of family g4dn for 4 vCPUs, $0.3010/h"),
        ("g4dn.xlarge", "10", "above 25 times the median of family g4dn for 4 vCPUs, $0.3760/h"),
        ("p5.48xlarge", "0.1", "below 1/50 of the median of all types for 192 vCPUs, $13.0560/h"),
        ("c5.xlarge", "30", "above 50 times the median of all types for 4 vCPUs, $0.3760/h"),
    ]:
        doubt = market(**{name.replace(".", "_"): price}).on_demand(name, Decimal(price))
        assert doubt is not None and doubt.why == why
        assert str(doubt).startswith(f"${Decimal(price):f}"[:5])


def test_a_spot_price_is_compared_with_the_on_demand_price() -> None:
    for on_demand, price, why in [
        ("0.526", "0.00000001", "below 2 % of its on-demand price, $0.5260/h"),
        ("0.526", "0.010519", "below 2 % of its on-demand price, $0.5260/h"),
        ("0.526", "0.01052", None),
        ("0.526", "0.53", None),  # dearer than on demand is legal
        ("0.526", "5.26", None),
        ("0.526", "5.260001", "above 10 times its on-demand price, $0.5260/h"),
        (None, "0.0002", "below $0.0005/h, less than any VM costs"),
        (None, "0.15", None),
        (None, "200", "above 250 times the median of family g4dn for 4 vCPUs, $0.3010/h"),
        # The on-demand price is the one that is wrong: the spot price is judged by the family.
        ("0.00000001", "0.15", None),
        ("9999", "0.15", None),
    ]:
        doubt = market(g4dn_xlarge=on_demand).spot("g4dn.xlarge", Decimal(price))
        assert (doubt and doubt.why) == why


def test_of_two_prices_that_disagree_the_one_further_from_the_peers_is_wrong() -> None:
    for on_demand, spot, wrong, why in [
        (
            "0.02",
            "0.21",
            "on-demand",
            "below 1/10 of its spot price, $0.2100/h, which is nearer to the median",
        ),
        (
            "9",
            "0.15",
            "on-demand",
            "above 50 times its spot price, $0.1500/h, which is nearer to the median",
        ),
        ("0.526", "5.5", "spot", "above 10 times its on-demand price, $0.5260/h"),
        ("0.526", "0.01", "spot", "below 2 % of its on-demand price, $0.5260/h"),
        ("0.526", "0.15", "", ""),
        ("0.05", "0.5", "", ""),  # far from each other, and not too far
    ]:
        rows = market().types | {"g4dn.xlarge": PricedType(4, Decimal(on_demand), Decimal(spot))}
        judged = PriceSanityCheck(rows)
        doubts = {
            "on-demand": judged.on_demand("g4dn.xlarge", Decimal(on_demand)),
            "spot": judged.spot("g4dn.xlarge", Decimal(spot)),
        }
        assert [market for market, doubt in doubts.items() if doubt] == ([wrong] if wrong else [])
        assert not wrong or (doubt := doubts[wrong]) is not None and doubt.why.startswith(why)


@given(st.decimals("0.0005", "10000", places=6), st.decimals("0.0005", "10000", places=6))
def test_prices_that_disagree_are_never_both_kept_nor_both_refused_for_it(
    on_demand: Decimal, spot: Decimal
) -> None:
    judged = PriceSanityCheck(market().types | {"g4dn.xlarge": PricedType(4, on_demand, spot)})
    first, second = judged.on_demand("g4dn.xlarge", on_demand), judged.spot("g4dn.xlarge", spot)
    if not LEAST_SPOT_SHARE * on_demand <= spot <= MOST_SPOT_SHARE * on_demand:
        assert first or second
    if first and "spot price" in first.why:
        assert second is None


def test_without_peers_the_spot_price_is_the_one_that_goes() -> None:
    judged = PriceSanityCheck({"x": PricedType(4, Decimal("0.02"), Decimal("0.21"))})
    assert judged.on_demand("x", Decimal("0.02")) is None and judged.spot("x", Decimal("0.21"))


def test_the_bounds_are_part_of_what_is_plausible() -> None:
    lonely = PriceSanityCheck({"x": PricedType(1)})
    assert (
        lonely.spot("x", LEAST_USD_PER_HOUR) is None and lonely.spot("x", MOST_USD_PER_HOUR) is None
    )
    assert lonely.spot("x", LEAST_USD_PER_HOUR - Decimal("0.000001")) is not None
    assert lonely.on_demand("x", MOST_USD_PER_HOUR + 1) is not None


def test_few_types_say_nothing_of_one_another() -> None:
    prices = {"a.x": Decimal("0.01"), "b.x": Decimal(9000)}
    assert len(prices) < FEWEST_PEERS
    pair = PriceSanityCheck({name: PricedType(4, price) for name, price in prices.items()})
    assert all(pair.on_demand(name, price) is None for name, price in prices.items())


@given(st.sets(st.sampled_from(sorted(G4DN)), max_size=1), st.decimals("0", "0.0004", places=8))
def test_one_bad_price_of_a_family_never_makes_a_good_one_doubtful(
    bad: set[str], price: Decimal
) -> None:
    judged = market(**{f"g4dn_{size}": f"{price:f}" for size in bad})
    for size, (_, good) in G4DN.items():
        doubt = judged.on_demand(f"g4dn.{size}", price if size in bad else Decimal(good))
        assert (doubt is not None) == (size in bad)


def test_a_family_that_is_wrong_as_a_whole_is_found() -> None:
    judged = market(**{f"g4dn_{size}": "0.00000001" for size in G4DN})
    assert all(judged.on_demand(f"g4dn.{size}", Decimal("0.00000001")) for size in G4DN)
    assert judged.on_demand("c5.xlarge", Decimal("0.17")) is None


def test_a_price_below_a_micro_dollar_is_no_price_of_a_type() -> None:
    """In micro-dollars it would be 0, and operations for each dollar infinite."""
    with pytest.raises(RequestError, match="at most 6 decimals"):
        InstanceType("x", 4, on_demand_usd_per_hour=Decimal("0.00000001"))
    with pytest.raises(RequestError):
        InstanceType("x", 4, spot_usd_per_hour=0)
    smallest = InstanceType("x", 4, spot_usd_per_hour=Decimal("0.000001"), eflops=1e9)
    assert smallest.spot_usd_per_hour and flopp(1e9, float(smallest.spot_usd_per_hour)) < float(
        "inf"
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (SHARED / name).open() as lines:
        yield from csv.DictReader(lines)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared AWS prices are not here")
def test_no_real_price_is_doubted() -> None:
    """Every price of AWS's that was collected, by region.

    Where a region has no on-demand prices, also without any.
    """
    vcpus = {row["instance_type"]: int(row["vcpu"]) for row in _rows("specs.csv")}
    on_demand: dict[str, dict[str, Decimal]] = {}
    for row in _rows("ondemand.csv"):
        on_demand.setdefault(row["region"], {})[row["instance_type"]] = Decimal(row["usd_per_hour"])
    judged, wrong = 0, []
    for prices in on_demand.values():
        region = PriceSanityCheck(
            {t: PricedType(vcpus[t], p) for t, p in prices.items() if t in vcpus}
        )
        wrong += [(t, str(d)) for t in region.types if (d := region.on_demand(t, prices[t]))]
        judged += len(region.types)
    for name in ("spot.csv", "spot_2021.csv", "spot_feed_gpu.csv"):
        spot: dict[str, dict[str, Decimal]] = {}
        for row in _rows(name):
            price = row["usd_per_hour"] or row.get("derived_usd_per_hour")
            if price and row["instance_type"] in vcpus:
                spot.setdefault(row["region"], {})[row["instance_type"]] = Decimal(price)
        for place, prices in spot.items():
            known = on_demand.get(place, {})
            region = PriceSanityCheck(
                {t: PricedType(vcpus[t], known.get(t), p) for t, p in prices.items()}
            )
            wrong += [(t, str(d)) for t, p in prices.items() if (d := region.spot(t, p))]
            wrong += [
                (t, str(d)) for t in prices if t in known and (d := region.on_demand(t, known[t]))
            ]
            judged += len(prices)
    assert wrong == [] and judged > 5000


def test_families() -> None:
    assert [family(n) for n in ("g4dn.xlarge", "u-24tb1.metal", "mine")] == [
        "g4dn",
        "u-24tb1",
        "mine",
    ]
    assert Decimal(0) < LEAST_SPOT_SHARE < 1 < MOST_SPOT_SHARE
