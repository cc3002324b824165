"""The rules that every offer of a public catalog must keep, and when a whole file is refused."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest

from deepvm.catalog.public.offers import (
    CONFLICT,
    FAR,
    FAR_SPOT,
    WRONG_MEMORY,
    Offer,
    Rows,
    check,
    signals_of,
    total,
    without_reserved,
)
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, Signal, price_text
from deepvm.errors import DataError

_T4: dict[str, Any] = {
    "instance_type": "g4dn.xlarge",
    "region": "us-east-1",
    "zone": "use1-az1",
    "vcpus": 4,
    "memory_gib": 16.0,
    "gpu": "T4",
    "gpu_count": 1,
    "gpu_memory_gib": 16.0,
    "arch": "x86_64",
    "on_demand": "0.526",
    "spot": "0.18",
}


_H100: dict[str, Any] = {"instance_type": "p5.48xlarge", "gpu": "H100", "gpu_memory_gib": 80.0}
_CPU: dict[str, Any] = {"gpu": None, "gpu_count": None, "gpu_memory_gib": None, "spot": None}


def offer(**changes: Any) -> Offer:
    return Offer(**{name: value for name, value in (_T4 | changes).items() if value is not None})


ZONES = [offer(zone=f"use1-az{n}") for n in range(1, 31)]


def checked(*offers: Offer, broken: int = 0) -> Rows:
    return check(Rows([*ZONES, *offers], Counter({("us-east-1", "broken row"): broken})))


def reasons(found: Rows) -> dict[str, int]:
    return {reason: n for (_, reason), n in found.refused.items() if n}


def of(found: Rows, zone: str) -> Offer | None:
    return next((o for o in found.offers if o.zone == zone), None)


class TestPrices:
    @pytest.mark.parametrize(
        ("text", "exact"),
        [
            ("0.526", "0.526"),
            ("10.00", "10"),
            ("0.1234561", "0.123457"),
            (" 1 ", "1"),
            ("100", "100"),
            ("", None),
        ],
    )
    def test_are_exact_and_rounded_up(self, text: str, exact: str | None) -> None:
        assert price_text(text) == exact

    @pytest.mark.parametrize("text", ["0", "0.0", "-0.5", "free", "nan", "inf", "1e999", "0x1"])
    def test_others_are_none(self, text: str) -> None:
        assert price_text(text) is None

    def test_are_added_without_rounding(self) -> None:
        assert (total("0.73948", "2.93391"), total("1", None), total("0.1", "0.2")) == (
            "3.67339",
            None,
            "0.3",
        )


class TestFamilies:
    @pytest.mark.parametrize(
        ("on_demand", "stays"), [("0.11", True), ("0.10", False), ("2.6", True), ("2.7", False)]
    )
    def test_a_price_is_between_a_fifth_and_five_times_the_median(
        self, on_demand: str, stays: bool
    ) -> None:
        found = checked(offer(zone="odd", on_demand=on_demand))
        left = of(found, "odd")
        assert left is not None and (left.on_demand == on_demand) == stays
        assert reasons(found) == ({} if stays else {FAR: 1})

    def test_it_is_the_price_of_one_gpu(self) -> None:
        four = offer(instance_type="g4dn.12xlarge", gpu_count=4, zone="four", on_demand="3.912")
        assert of(checked(four), "four") == four

    def test_types_with_other_gpus_are_another_family(self) -> None:
        big = [offer(**_H100, zone=f"b{n}", on_demand="55", spot="9") for n in range(3)]
        assert reasons(checked(*big)) == {}

    def test_few_prices_have_no_median(self) -> None:
        two = [offer(**_H100, zone=p, on_demand=p, spot=None) for p in ("1", "90")]
        assert reasons(checked(*two)) == {}

    def test_sizes_of_a_cpu_family_cost_in_proportion_to_their_memory(self) -> None:
        sizes = [
            offer(**_CPU, instance_type=f"t3.{n}", memory_gib=gib, on_demand=p)
            for n, gib, p in (
                ("nano", 0.5, "0.0052"),
                ("large", 8.0, "0.0832"),
                ("2xlarge", 32.0, "0.3328"),
            )
        ]
        assert reasons(checked(*sizes)) == {}
        odd = offer(**_CPU, instance_type="t3.odd", on_demand="83.2")
        assert reasons(checked(*sizes, odd)) == {FAR: 1}

    @pytest.mark.parametrize(
        ("spot", "stays"), [("0.036", True), ("0.035", False), ("0.89", True), ("0.91", False)]
    )
    def test_a_spot_price_is_compared_with_the_types_others(self, spot: str, stays: bool) -> None:
        found = checked(offer(zone="odd", spot=spot))
        left = of(found, "odd")
        assert left is not None and (left.spot == spot) == stays
        assert reasons(found) == ({} if stays else {FAR_SPOT: 1})

    @pytest.mark.parametrize("spot", ["0.01", "5.3"])
    def test_a_spot_price_is_a_share_of_the_price_on_demand(self, spot: str) -> None:
        alone = offer(instance_type="g4dn.8xlarge", spot=spot)  # one zone has no median
        assert reasons(checked(alone)) == {FAR_SPOT: 1}


class TestRows:
    def test_a_doubled_row_counts_once_and_does_no_harm(self) -> None:
        found = checked(*ZONES)
        assert (len(found.offers), reasons(found)) == (30, {})

    def test_of_two_prices_for_one_place_neither_is_used(self) -> None:
        found = checked(offer(zone="twice"), offer(zone="twice", on_demand="0.6"))
        assert of(found, "twice") is None and reasons(found) == {CONFLICT: 2}

    def test_rows_of_the_two_markets_are_one_offer(self) -> None:
        found = checked(offer(zone="z", spot=None), offer(zone="z", on_demand=None))
        assert of(found, "z") == offer(zone="z")
        found = checked(offer(zone="z", on_demand=None), offer(zone="z", spot=None))
        assert of(found, "z") == offer(zone="z")

    @pytest.mark.parametrize(
        ("gpu", "gib", "stays"),
        [
            *(
                ("T4", 16.0, True),
                ("T4", 14.7, True),
                ("T4", 24.0, False),
                ("A100", 40.0, True),
                ("A100", 80.0, True),
            ),
            *(
                ("A100", 60.0, False),
                ("A10G", 22.352, True),
                ("H200", 141.0, True),
                ("H200", 0.08, False),
            ),
            *(
                ("B200", 180.0, True),
                ("H100", 94.0, True),
                ("Unheard-of", 33.0, True),
                ("T4", None, True),
            ),
        ],
    )
    def test_a_gpu_has_the_memory_of_its_model(
        self, gpu: str, gib: float | None, stays: bool
    ) -> None:
        found = checked(
            offer(zone="z", instance_type="x.y", gpu=gpu, gpu_memory_gib=gib, spot=None)
        )
        assert (of(found, "z") is not None) == stays and reasons(found) == (
            {} if stays else {WRONG_MEMORY: 1}
        )

    @pytest.mark.parametrize(
        "changes",
        [
            *({"region": r} for r in ("", "../x", "US", "a" * 70, "all regions", "us_east")),
            *({"instance_type": n} for n in ("", " g5", "g5\n", "g5\x1b[2J", "-" * 200, "gé")),
            *({"zone": z} for z in ("a/../b\n", "\u202e")),
        ],
    )
    def test_names_are_plain_text(self, changes: dict[str, str]) -> None:
        table = Rows()
        cells = {name: str(value) for name, value in _T4.items()}
        table.read([cells, {**cells, "zone": "z"} | changes], lambda row: row)
        assert table.offers == [offer()] and list(reasons(table).values()) == [1]


class TestFiles:
    def test_few_broken_rows_are_left_out(self) -> None:
        assert reasons(checked(broken=3)) == {"broken row": 3}

    def test_with_many_the_file_is_refused(self) -> None:
        with pytest.raises(DataError, match="4 of 34 rows cannot be true: 4 x broken row"):
            checked(broken=4)

    def test_a_file_without_offers_is_refused(self) -> None:
        with pytest.raises(DataError, match="no offer that can be used: no rows"):
            check(Rows())

    def test_a_file_of_few_rows_is_not_judged_by_a_share(self) -> None:
        assert len(check(Rows([offer()], Counter({("", "broken row"): 1}))).offers) == 1


def by_region(table: Rows) -> dict[str, dict[str, Signal]]:
    found: dict[str, dict[str, Signal]] = {}
    for signal in signals_of(table, observed_at=datetime.now(timezone.utc), source="a source"):
        found.setdefault(signal.region, {})[signal.kind] = signal
    return found


def test_offers_become_signals_of_each_region() -> None:
    other = offer(region="us-west-2", zone="usw2-az1", spot=None)
    table = checked(other, offer(zone="far", on_demand="99"), broken=1)
    found = by_region(table)
    assert {r: sorted(kinds) for r, kinds in found.items()} == {
        "us-east-1": sorted([SPECS, OFFERINGS, ON_DEMAND, SPOT]),
        "us-west-2": sorted([SPECS, OFFERINGS, ON_DEMAND]),
    }
    assert found["us-west-2"][ON_DEMAND].data == {"g4dn.xlarge": "0.526"}
    assert found["us-west-2"][SPECS].refused == {}
    assert found["us-east-1"][SPECS].refused == {FAR: 1, "broken row": 1}
    assert found["us-east-1"][SPOT].data["g4dn.xlarge"]["use1-az1"] == ["0.18", ""]
    assert "far" in found["us-east-1"][SPOT].data["g4dn.xlarge"], (
        "its spot price is as good as others"
    )


def test_of_different_prices_in_the_zones_of_a_region_the_higher_counts() -> None:
    said = by_region(Rows([offer(on_demand="9"), offer(zone="b", on_demand="10")]))
    assert said["us-east-1"][ON_DEMAND].data == {"g4dn.xlarge": "10"}


def test_rates_of_reserved_gpus_are_told_from_those_on_demand() -> None:
    prices = {
        "H100": {
            "us-east4": 9.79655,
            "us-east5": 11.03385,
            "europe-west4": 12.73552,
            "us-central1": 4.20076,
        },
        # True prices, far apart
        "L4": {"us-east4": 0.55821, "asia-south1": 0.58298, "me-central2": 0.89606},
        # An absurd price is no measure
        "T4": {"a": 1.0, "b": 1.0, "c": 99.0},
    }
    offers = [
        offer(
            instance_type=f"two-{model}",
            gpu=model,
            gpu_count=2,
            region=region,
            on_demand=f"{2 * price}",
        )
        for model, regions in prices.items()
        for region, price in regions.items()
    ]
    left = without_reserved(offers, lambda o: o.gpu)
    lost = [o for o in left if o.on_demand is None]
    assert [(o.gpu, o.region, o.spot) for o in lost] == [("H100", "us-central1", "0.18")]
    assert [o for o in left if o not in lost] == [o for o in offers if o.region != "us-central1"]
    assert without_reserved([], lambda o: o.gpu) == []
