"""What AWS's replies say about types, zones, VMs and prices, with the real service's quirks."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.aws_account import NOW, recorded

from deepvm.catalog.clouds.aws import responses
from deepvm.catalog.clouds.aws.responses import (
    read_history,
    read_offerings,
    read_on_demand,
    read_placement,
    read_running,
    read_specs,
    read_spot,
    read_zones,
)
from deepvm.catalog.signals.signal import FetchResult, price_text
from deepvm.core.units import to_micro_usd

ZONE_IDS = {"us-east-1a": "use1-az4", "us-east-1b": "use1-az6", "us-east-1c": "use1-az1"}


def rows(name, key):
    return [row for page in recorded(name) for row in page.get(key, [])]


def type_rows():
    return rows("describe-instance-types", "InstanceTypes")


@pytest.fixture(scope="module")
def specs():
    return read_specs(type_rows())


def a_type(**changes):
    """A row of DescribeInstanceTypes with some of its members replaced."""
    base = next(row for row in type_rows() if row["InstanceType"] == "g4dn.xlarge")
    return base | changes


def spec_of(**changes):
    (spec,) = read_specs([a_type(**changes)]).data.values()
    return spec


class TestSpecs:
    def test_a_whole_gpu(self, specs):
        assert specs.data["g4dn.xlarge"] == {
            "vcpus": 4,
            "memory_gib": 16.0,
            "baseline_gbps": 5.0,
            "peak_gbps": 25.0,
            "arch": "x86_64",
            "current": True,
            "burstable": False,
            "metal": False,
            "spot": True,
            "on_demand": True,
            "gpu": {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16.0},
        }

    def test_rows_that_lack_figures_are_counted(self, specs):
        assert specs.refused == {responses.UNUSABLE: 1}
        assert "g9new.xlarge" not in specs.data
        assert len(specs.data) == len(type_rows()) - 1

    def test_types_are_in_the_order_of_their_names(self, specs):
        assert list(specs.data) == sorted(specs.data)

    def test_bandwidth_is_summed_over_the_cards(self, specs):
        assert specs.data["p4d.24xlarge"]["baseline_gbps"] == 400.0
        assert specs.data["p4d.24xlarge"]["peak_gbps"] == 400.0
        assert specs.data["trn1.32xlarge"]["peak_gbps"] == 800.0

    def test_words_for_bandwidth_without_figures(self, specs):
        assert "peak_gbps" not in specs.data["t1.micro"]  # "Very Low"
        assert specs.data["g4ad.xlarge"]["peak_gbps"] == 10.0  # "Up to 10 Gigabit"
        assert "baseline_gbps" not in specs.data["g4ad.xlarge"]
        assert specs.data["dl1.24xlarge"]["baseline_gbps"] == 400.0  # "4x 100 Gigabit"

    @pytest.mark.parametrize(
        ("words", "found"),
        [
            ("100 Gigabit", {"baseline_gbps": 100.0, "peak_gbps": 100.0}),
            ("Up to 12.5 Gigabit", {"peak_gbps": 12.5}),
            ("up to 10 gigabit", {"peak_gbps": 10.0}),
            ("16x 200 Gigabit", {"baseline_gbps": 3200.0, "peak_gbps": 3200.0}),
            ("Up to 500 Megabit", {"peak_gbps": 0.5}),
            ("Low to Moderate", {}),
            ("High", {}),
            ("", {}),
            ("10 Gigabit or more", {}),
        ],
    )
    def test_words(self, words, found):
        spec = spec_of(NetworkInfo={"NetworkPerformance": words})
        assert {
            name: spec[name] for name in ("baseline_gbps", "peak_gbps") if name in spec
        } == found

    @pytest.mark.parametrize(
        ("words", "cards", "gbps"),
        [
            ("400 Gigabit", 4 * [400.0], 400.0),  # g6e.48xlarge: each card may use the whole
            # P6-b300.48xlarge: EFA on 16 of 17 cards
            ("6400 Gigabit", [350.0] + 16 * [400.0], 6400.0),
            # P6-b200.48xlarge: the words count EFA, the cards Ethernet
            ("3200 Gigabit", 8 * [200.0], 1600.0),
            ("4x 100 Gigabit", 4 * [100.0], 400.0),
            ("High", 2 * [100.0], 200.0),
            ("10 Gigabit", [12.0], 12.0),  # r4.8xlarge: one card knows better
        ],
    )
    def test_several_cards_have_no_more_than_the_words_say(self, words, cards, gbps):
        cards = [{"BaselineBandwidthInGbps": card, "PeakBandwidthInGbps": card} for card in cards]
        spec = spec_of(NetworkInfo={"NetworkPerformance": words, "NetworkCards": cards})
        assert (spec["baseline_gbps"], spec["peak_gbps"]) == (gbps, gbps)

    def test_one_card_without_figures_makes_the_sum_unknown(self):
        cards = [
            {"BaselineBandwidthInGbps": 50.0, "PeakBandwidthInGbps": 100.0},
            {"NetworkCardIndex": 1},
        ]
        spec = spec_of(NetworkInfo={"NetworkPerformance": "High", "NetworkCards": cards})
        assert "baseline_gbps" not in spec
        assert "peak_gbps" not in spec

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("g6f.large", "a share of a GPU (0.125 of one L4)"),
            ("gr6f.4xlarge", "a share of a GPU (0.5 of one L4)"),
            ("trn1.32xlarge", "16 x Trainium, which deepvm cannot plan for"),
            ("inf1.xlarge", "1 x Inferentia, which deepvm cannot plan for"),
            ("f2.6xlarge", "1 x Virtex UltraScale+ (VU47P), which deepvm cannot plan for"),
            ("vt1.3xlarge", "1 x U30, which deepvm cannot plan for"),
            ("dl2q.24xlarge", "8 x Qualcomm AI100, which deepvm cannot plan for"),
            (
                "g9mixed.xlarge",
                "different GPUs in one VM: 1 x L4 and 2 x T4, which deepvm cannot plan for",
            ),
            ("mac2.metal", "it runs only macOS"),
        ],
    )
    def test_what_no_cluster_can_have(self, specs, name, why):
        assert specs.data[name]["unusable"] == why
        assert "gpu" not in specs.data[name]

    def test_other_makers_gpus_keep_their_maker(self, specs):
        assert specs.data["g4ad.xlarge"]["gpu"]["manufacturer"] == "AMD"
        assert specs.data["dl1.24xlarge"]["gpu"] == {
            "name": "Gaudi HL-205",
            "manufacturer": "Habana",
            "count": 8,
            "memory_gib": 32.0,
        }

    def test_gpus_of_one_model_in_two_entries_are_added(self):
        one = {
            "Name": "L4",
            "Manufacturer": "NVIDIA",
            "Count": 1,
            "MemoryInfo": {"SizeInMiB": 22888},
        }
        assert spec_of(GpuInfo={"Gpus": [one, one]})["gpu"] == {
            "name": "L4",
            "manufacturer": "NVIDIA",
            "count": 2,
            "memory_gib": 22.352,
        }

    def test_markets(self, specs):
        assert (
            specs.data["u-3tb1.56xlarge"]["spot"],
            specs.data["u-3tb1.56xlarge"]["on_demand"],
        ) == (False, True)
        assert spec_of(SupportedUsageClasses=["capacity-block"])["on_demand"] is False
        assert spec_of(SupportedUsageClasses=[])["spot"] is False

    def test_flags_and_architectures(self, specs):
        assert specs.data["t3.micro"]["burstable"] is True
        assert specs.data["t1.micro"]["current"] is False
        assert specs.data["t1.micro"]["arch"] == "x86_64"  # and i386
        assert specs.data["mac2.metal"]["metal"] is True

    def test_members_that_are_null(self):
        spec = spec_of(
            GpuInfo=None, NetworkInfo=None, ProcessorInfo=None, SupportedUsageClasses=None
        )
        assert "gpu" not in spec
        assert spec["arch"] == ""

    @pytest.mark.parametrize(
        "broken", [{"VCpuInfo": {}}, {"MemoryInfo": None}, {"VCpuInfo": {"DefaultVCpus": 0}}]
    )
    def test_rows_without_size_are_refused(self, broken):
        assert read_specs([a_type(**broken)]) == FetchResult({}, {responses.UNUSABLE: 1})


class TestZones:
    def test_offerings(self):
        def row(name, zone, kind="availability-zone-id"):
            return {"InstanceType": name, "LocationType": kind, "Location": zone}

        reading = read_offerings(
            [
                row("b", "use1-az6"),
                row("b", "use1-az4"),
                row("a", "use1-az4"),
                row("b", "us-east-1a", "region"),
                {},
            ]
        )
        assert reading.data == {"a": ["use1-az4"], "b": ["use1-az4", "use1-az6"]}
        assert reading.refused == {responses.UNUSABLE: 2}

    def test_zones(self):
        reading = read_zones(
            recorded("describe-availability-zones")["AvailabilityZones"] + [{"ZoneName": "x"}]
        )
        assert reading.data == {
            "use1-az1": "us-east-1c",
            "use1-az4": "us-east-1a",
            "use1-az6": "us-east-1b",
        }
        assert reading.refused == {responses.UNUSABLE: 1}


class TestUsage:
    def test_stopped_vms_do_not_count(self):
        row = {"InstanceType": "c5.xlarge", "State": {"Name": "stopped"}, "CpuOptions": None}
        assert read_running([{"Instances": [row]}, {}]) == []


class TestOnDemand:
    def test_the_recorded_list(self):
        reading = read_on_demand(rows("get-products", "PriceList"))
        assert reading.data == {
            "c5.xlarge": "0.17",
            "g4dn.12xlarge": "3.912",  # the higher one of two
            "g4dn.xlarge": "0.526",
            "g5.xlarge": "1.006",
            "p5.48xlarge": "55.04",
            "t4g.nano": "0.004201",  # 0.0042000001 rounded up
        }
        assert reading.refused == {responses.UNUSABLE: 4}

    def product(self, **changes):
        document = json.loads(rows("get-products", "PriceList")[0])
        document["product"]["attributes"].update(changes)
        return document

    @pytest.mark.parametrize(
        "row",
        [
            None,
            7,
            "",
            "null",
            "[]",
            "{}",
            "[" * 100_000,
            '{"product": {"attributes": {"instanceType": "x"}}}',
        ],
    )
    def test_rows_that_are_no_products(self, row):
        assert read_on_demand([row]) == FetchResult({}, {responses.UNUSABLE: 1})

    @pytest.mark.parametrize("name", ["", None, 5])
    def test_products_without_a_type(self, name):
        assert read_on_demand([json.dumps(self.product(instanceType=name))]).refused == {
            responses.UNUSABLE: 1
        }

    @pytest.mark.parametrize("usd", ["-0.5", "NaN", "Infinity", "1e99", "0,526", None, True])
    def test_prices_that_are_none(self, usd):
        document = self.product()
        (term,) = document["terms"]["OnDemand"].values()
        (dimension,) = term["priceDimensions"].values()
        dimension["pricePerUnit"]["USD"] = usd
        assert read_on_demand([json.dumps(document)]).refused == {responses.UNUSABLE: 1}

    def test_a_price_by_another_unit_is_no_price_per_hour(self):
        document = self.product()
        (term,) = document["terms"]["OnDemand"].values()
        (dimension,) = term["priceDimensions"].values()
        dimension["unit"] = "Quantity"
        assert read_on_demand([json.dumps(document)]).refused == {responses.UNUSABLE: 1}

    def test_the_order_of_conflicting_rows_does_not_matter(self):
        forward = rows("get-products", "PriceList")
        assert read_on_demand(forward) == read_on_demand(forward[::-1])


class TestSpot:
    def test_the_recorded_prices(self):
        reading = read_spot(rows("describe-spot-price-history", "SpotPriceHistory"), ZONE_IDS)
        assert reading.data == {
            "c5.xlarge": {"use1-az1": ["0.0735", "2026-11-21T06:00:00Z"]},
            "g4dn.12xlarge": {"use1-az4": ["1.5538", "2026-11-21T08:31:00Z"]},
            "g4dn.xlarge": {
                "use1-az4": ["0.1578", "2026-11-21T08:45:12Z"],
                "use1-az6": ["0.1635", "2026-11-21T07:01:33Z"],
            },
            "g5.xlarge": {"use1-az4": ["0.4529", "2026-11-21T08:30:02Z"]},
            "m6i.xlarge": {"use1-az4": ["0.079124", "2026-11-20T21:00:00Z"]},
        }
        assert reading.refused == {responses.UNUSABLE: 3}

    def test_the_order_of_the_rows_does_not_matter(self):
        found = rows("describe-spot-price-history", "SpotPriceHistory")
        assert read_spot(found[::-1], ZONE_IDS).data == read_spot(found, ZONE_IDS).data

    @pytest.mark.parametrize(
        "broken", [{"Timestamp": None}, {"Timestamp": datetime(2026, 1, 1)}, {"InstanceType": ""}]
    )
    def test_incomplete_rows(self, broken):
        row = rows("describe-spot-price-history", "SpotPriceHistory")[0] | broken
        assert read_spot([row], ZONE_IDS) == FetchResult({}, {responses.UNUSABLE: 1})

    @given(
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from(["z1", "z2"]),
                st.integers(0, 3),
                st.integers(0, 9),
            ),
            max_size=12,
        )
    )
    def test_the_newest_price_wins_and_never_the_lower_of_two(self, points):
        found = [
            {
                "InstanceType": name,
                "AvailabilityZoneId": zone,
                "Timestamp": NOW + timedelta(seconds=at),
                "SpotPrice": f"0.{price}",
            }
            for name, zone, at, price in points
        ]
        best = {}
        for name, zone, at, price in points:
            if price:
                best[name, zone] = max(best.get((name, zone), (at, price)), (at, price))
        data = read_spot(found, {}).data
        assert {(n, z): Fraction(v[0]) for n, zs in data.items() for z, v in zs.items()} == {
            place: Fraction(price, 10) for place, (_, price) in best.items()
        }


class TestHistory:
    def test_the_recorded_change_points(self):
        reading = read_history(
            rows("describe-spot-price-history-30d", "SpotPriceHistory"), ZONE_IDS
        )
        at = {
            day: int(datetime.fromisoformat(f"2026-{day}+00:00").timestamp())
            for day in ("10-21T22:10:00", "11-02T02:15:40", "11-21T08:45:12", "11-11T07:01:33")
        }
        assert reading.data == {
            "g4dn.xlarge": {
                "use1-az4": [
                    [at["10-21T22:10:00"], "0.1499"],
                    [at["11-02T02:15:40"], "0.1511"],
                    [at["11-21T08:45:12"], "0.1578"],
                ],
                "use1-az6": [[at["11-11T07:01:33"], "0.1635"]],
            }
        }
        assert reading.refused == {responses.UNUSABLE: 1}

    def test_two_prices_at_one_time(self):
        row = rows("describe-spot-price-history", "SpotPriceHistory")[0]
        reading = read_history(
            [row, row | {"SpotPrice": "0.2"}, row | {"SpotPrice": "0.1"}], ZONE_IDS
        )
        ((_, price),) = reading.data["g4dn.xlarge"]["use1-az4"]
        assert price == "0.2"
        assert reading.refused == {}


def test_placement_scores():
    reading = read_placement(rows("get-spot-placement-scores", "SpotPlacementScores"), "us-east-1")
    assert reading.data == [
        {"zone": "use1-az4", "score": 9},
        {"zone": "use1-az2", "score": 3},
        {"zone": "use1-az6", "score": 3},
    ]
    assert reading.refused == {responses.UNUSABLE: 1}  # a score of the whole region
    other = {"Region": "eu-central-1", "AvailabilityZoneId": "euc1-az1", "Score": 3}
    assert (
        read_placement([other, other | {"Region": "us-east-1", "Score": 11}], "us-east-1").data
        == []
    )


class TestPriceText:
    @pytest.mark.parametrize(
        ("price", "text"),
        [
            ("0.5260000000", "0.526"),
            ("55.0400000000", "55.04"),
            ("12.0000000000", "12"),
            ("100", "100"),
            ("0.0000001", "0.000001"),
            ("1E-6", "0.000001"),
            ("0.1234561", "0.123457"),
            ("1E+2", "100"),
        ],
    )
    def test_examples(self, price, text):
        assert price_text(price) == text

    @given(st.decimals(min_value="0.000000001", max_value=10_000, places=9))
    def test_never_too_low_and_exact_in_micro_dollars(self, price):
        shown = Decimal(price_text(str(price)))
        assert 0 <= shown - price < Decimal("0.000001")
        to_micro_usd(shown)


def test_times_are_in_utc():
    row = rows("describe-spot-price-history", "SpotPriceHistory")[0]
    east = row["Timestamp"].astimezone(timezone(timedelta(hours=9)))
    assert read_spot([row | {"Timestamp": east}], ZONE_IDS) == read_spot([row], ZONE_IDS)
