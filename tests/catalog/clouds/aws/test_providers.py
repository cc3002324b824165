"""The providers ask AWS the right questions (its service model checks them) and read whole answers
only.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from datetime import timedelta

import pytest
from botocore.stub import ANY
from support.aws_account import NOW, REGION, Step, account, pages, recorded
from support.moto_server import moto_server
from support.places import SHARED

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.providers import (
    _in_use,
    aws_providers,
    history_provider,
    placement_provider,
)
from deepvm.catalog.clouds.aws.quota_codes import QUOTA_NAMES
from deepvm.catalog.signals import signal as kinds
from deepvm.catalog.signals.signal import (
    OFFERINGS,
    ON_DEMAND,
    QUOTAS,
    SPECS,
    SPOT,
    ZONES,
    Provider,
    base,
    ttl_s,
)
from deepvm.core.cluster.instances import Market
from deepvm.errors import CloudError

TABLE = SHARED / "data" / "aws" / "specs.csv"


def spot_question(**more):
    return {"ProductDescriptions": ["Linux/UNIX"], "MaxResults": 1000, **more}


ZONES_STEP = Step("ec2", "describe_availability_zones", {}, recorded("describe-availability-zones"))


def fetch(aws, kind, region, now):
    return aws_providers(aws)[kind].fetch(region, now)


def specs_step(*names):
    """What a history asks first: these types have an NVIDIA GPU and a spot market."""
    types = [gpu_row() | {"InstanceType": name} for name in names]
    return Step("ec2", "describe_instance_types", {"MaxResults": 100}, {"InstanceTypes": types})


class TestQuestions:
    """Each provider against a script: Stubber refuses a question that AWS's model does not know."""

    def test_specs(self):
        script = account(
            *pages(
                "ec2",
                "describe_instance_types",
                {"MaxResults": 100},
                recorded("describe-instance-types"),
            )
        )
        signal = fetch(script.aws, SPECS, REGION, NOW)
        script.done()
        assert (signal.kind, signal.region, signal.observed_at, signal.origin) == (
            kinds.SPECS,
            REGION,
            NOW,
            "live",
        )
        assert signal.data["g4dn.xlarge"]["gpu"]["name"] == "T4"
        assert signal.refused == {"unusable row": 1}
        json.dumps(signal.data)  # plain JSON

    def test_offerings(self):
        replies = [
            {"InstanceTypeOfferings": [], "NextToken": "2"},
            {"InstanceTypeOfferings": [offering("g4dn.xlarge", "use1-az6")], "NextToken": "3"},
            {"InstanceTypeOfferings": [offering("g4dn.xlarge", "use1-az4")]},
        ]
        question = {"LocationType": "availability-zone-id", "MaxResults": 1000}
        script = account(*pages("ec2", "describe_instance_type_offerings", question, replies))
        assert fetch(script.aws, OFFERINGS, REGION, NOW).data == {
            "g4dn.xlarge": ["use1-az4", "use1-az6"]
        }
        script.done()

    def test_zones(self):
        script = account(ZONES_STEP)
        assert fetch(script.aws, ZONES, REGION, NOW).data["use1-az4"] == "us-east-1a"

    def test_on_demand(self):
        wanted = {
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "capacitystatus": "Used",
            "preInstalledSw": "NA",
            "marketoption": "OnDemand",
            "regionCode": "eu-west-1",
        }
        question = {
            "ServiceCode": "AmazonEC2",
            "FormatVersion": "aws_v1",
            "MaxResults": 100,
            "Filters": [
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in wanted.items()
            ],
        }
        script = account(*pages("pricing", "get_products", question, recorded("get-products")))
        signal = fetch(script.aws, ON_DEMAND, "eu-west-1", NOW)
        script.done()
        assert signal.data["g4dn.xlarge"] == "0.526"
        assert sum(signal.refused.values()) == 4
        assert signal.region == "eu-west-1"

    def test_spot_asks_for_names_of_zones_when_a_row_lacks_the_id(self):
        replies = recorded("describe-spot-price-history")
        script = account(
            *pages("ec2", "describe_spot_price_history", spot_question(StartTime=NOW), replies),
            ZONES_STEP,
        )
        signal = fetch(script.aws, SPOT, REGION, NOW)
        script.done()
        assert signal.data["g4dn.xlarge"]["use1-az4"] == ["0.1578", "2026-11-21T08:45:12Z"]
        assert signal.data["c5.xlarge"] == {"use1-az1": ["0.0735", "2026-11-21T06:00:00Z"]}
        json.dumps(signal.data)

    def test_spot_does_not_ask_for_names_otherwise(self):
        replies = recorded("describe-spot-price-history")[1:2]
        del replies[0]["NextToken"]
        script = account(
            Step("ec2", "describe_spot_price_history", spot_question(StartTime=NOW), replies[0])
        )
        assert set(fetch(script.aws, SPOT, REGION, NOW).data) == {"g4dn.xlarge", "g5.xlarge"}

    def test_history_of_the_types_with_whole_nvidia_gpus_and_a_spot_market(self):
        types = ["g4dn.12xlarge", "g4dn.xlarge", "g5.xlarge", "p4d.24xlarge", "p5.4xlarge"]
        question = spot_question(
            StartTime=NOW - timedelta(days=30), EndTime=NOW, InstanceTypes=types
        )
        script = account(
            *pages(
                "ec2",
                "describe_instance_types",
                {"MaxResults": 100},
                recorded("describe-instance-types"),
            ),
            *pages(
                "ec2",
                "describe_spot_price_history",
                question,
                recorded("describe-spot-price-history-30d"),
            ),
        )
        asked = history_provider(script.aws, 30)
        signal = asked.fetch(REGION, NOW)
        script.done()
        assert signal.kind == asked.kind == "history:30"
        assert [price for _, price in signal.data["g4dn.xlarge"]["use1-az4"]] == [
            "0.1499",
            "0.1511",
            "0.1578",
        ]
        json.dumps(signal.data)

    def test_history_of_all_gpu_types_in_chunks(self):
        types = [f"g4dn.{i:02}xlarge" for i in range(19)]
        history = recorded("describe-spot-price-history-30d")[2]
        chunks = [types[i : i + 8] for i in (0, 8, 16)]
        script = account(
            specs_step(*types),
            *(
                Step(
                    "ec2",
                    "describe_spot_price_history",
                    spot_question(
                        StartTime=NOW - timedelta(days=7), EndTime=NOW, InstanceTypes=chunk
                    ),
                    {
                        "SpotPriceHistory": [
                            r | {"InstanceType": chunk[0]} for r in history["SpotPriceHistory"]
                        ]
                    },
                )
                for chunk in chunks
            ),
        )
        signal = history_provider(script.aws, 7).fetch(REGION, NOW)
        script.done()
        assert list(signal.data) == [chunk[0] for chunk in chunks]
        assert signal.kind == "history:7"

    def test_history_of_types_that_had_no_capacity_is_empty(self):
        empty = Step("ec2", "describe_spot_price_history", None, {"SpotPriceHistory": []})
        assert (
            history_provider(account(specs_step("p5.48xlarge"), empty).aws, 1)
            .fetch(REGION, NOW)
            .data
            == {}
        )

    def test_placement(self):
        question = {
            "InstanceTypes": ["g4dn.xlarge", "g5.xlarge", "g6.xlarge"],
            "TargetCapacity": 17,
            "SingleAvailabilityZone": True,
            "RegionNames": [REGION],
            "MaxResults": 1000,
        }
        replies = recorded("get-spot-placement-scores")
        script = account(*pages("ec2", "get_spot_placement_scores", question, replies))
        asked = placement_provider(script.aws, ["g6.xlarge", "g4dn.xlarge", "g5.xlarge"], 17)
        signal = asked.fetch(REGION, NOW)
        script.done()
        assert signal.data[0] == {"zone": "use1-az4", "score": 9}
        assert ttl_s(signal.kind) == 600

    def test_placement_scores_of_other_questions_have_other_names(self):
        def kind(types, count):
            return placement_provider(Aws(), types, count).kind

        assert kind(["a", "b"], 3) == kind(["b", "a", "b"], 3)
        assert len({kind(["a", "b"], 3), kind(["a", "b"], 4), kind(["a"], 3)}) == 3
        assert kinds.KINDS[base(kind(["a"], 1))].of_account

    def test_regions(self):
        found = {"Regions": [{"RegionName": "us-east-1"}, {"RegionName": "ap-northeast-2"}]}
        assert account(Step("ec2", "describe_regions", {}, found)).aws.regions(REGION) == (
            "ap-northeast-2",
            "us-east-1",
        )


def offering(name, zone):
    return {"InstanceType": name, "LocationType": "availability-zone-id", "Location": zone}


def gpu_row():
    found = (row for page in recorded("describe-instance-types") for row in page["InstanceTypes"])
    return next(row for row in found if row["InstanceType"] == "g4dn.xlarge")


CODES = [name.code for name in QUOTA_NAMES.values()]


def quota_steps(values, defaults):
    """The questions after quotas: each code that has no value of the account's is asked for again
    as a default.
    """
    for code in CODES:
        question = {"ServiceCode": "ec2", "QuotaCode": code}
        if code in values:
            yield Step("service-quotas", "get_service_quota", question, quota(code, values[code]))
            continue
        yield Step("service-quotas", "get_service_quota", question, code="NoSuchResourceException")
        if code in defaults:
            yield Step(
                "service-quotas",
                "get_aws_default_service_quota",
                question,
                quota(code, defaults[code]),
            )
        else:
            yield Step(
                "service-quotas",
                "get_aws_default_service_quota",
                question,
                code="NoSuchResourceException",
            )


def quota(code, value):
    return {
        "Quota": {
            "ServiceCode": "ec2",
            "QuotaCode": code,
            "Value": value,
            "Unit": "None",
            "Adjustable": True,
        }
    }


LIVE = {
    "Filters": [{"Name": "instance-state-name", "Values": ["pending", "running"]}],
    "MaxResults": 1000,
}


class TestQuotas:
    def test_what_runs_is_counted_by_family_and_market(self):
        c5 = {"InstanceTypes": [gpu_row() | {"InstanceType": "c5.xlarge"}]}
        script = account(
            *pages("ec2", "describe_instances", LIVE, recorded("describe-instances")),
            Step("ec2", "describe_instance_types", {"InstanceTypes": ["c5.xlarge"]}, c5),
        )
        assert _in_use(script.aws, REGION) == {
            ("G and VT", Market.SPOT): 8,
            ("G and VT", Market.ON_DEMAND): 2,  # half its threads are switched off
            # Not the one on a Dedicated Host; Capacity Blocks have own limits
            ("Standard", Market.ON_DEMAND): 4 + 2,
        }
        script.done()

    def test_the_accounts_limits_then_the_defaults_less_what_runs(self):
        c5 = {"InstanceTypes": [gpu_row() | {"InstanceType": "c5.xlarge"}]}
        script = account(
            *quota_steps(
                {"L-3819A6DF": 64.0, "L-1216C47A": 1152.0}, {"L-DB2E81BA": 0.0, "L-34B43A08": 5.0}
            ),
            *pages("ec2", "describe_instances", LIVE, recorded("describe-instances")),
            Step("ec2", "describe_instance_types", {"InstanceTypes": ["c5.xlarge"]}, c5),
        )
        signal = fetch(script.aws, QUOTAS, REGION, NOW)
        script.done()
        assert signal.data == [
            {"family": "Standard", "market": "spot", "code": "L-34B43A08", "vcpus": 5, "in_use": 0},
            {
                "family": "Standard",
                "market": "on-demand",
                "code": "L-1216C47A",
                "vcpus": 1152,
                "in_use": 6,
            },
            {
                "family": "G and VT",
                "market": "spot",
                "code": "L-3819A6DF",
                "vcpus": 64,
                "in_use": 8,
            },
            {
                "family": "G and VT",
                "market": "on-demand",
                "code": "L-DB2E81BA",
                "vcpus": 0,
                "in_use": 2,
            },
        ]

    def test_a_region_without_quotas_is_no_answer(self):
        with pytest.raises(CloudError, match="none of EC2's quotas"):
            fetch(account(*quota_steps({}, {})).aws, QUOTAS, REGION, NOW)

    def test_usage_that_may_not_be_seen_costs_the_whole_signal(self):
        script = account(
            *quota_steps(dict.fromkeys(CODES, 8.0), {}),
            Step("ec2", "describe_instances", LIVE, code="UnauthorizedOperation", status=403),
        )
        with pytest.raises(CloudError, match="ec2:DescribeInstances") as caught:
            fetch(script.aws, QUOTAS, REGION, NOW)
        assert caught.value.why == "permission"

    def test_limits_that_may_not_be_seen(self):
        first = {"ServiceCode": "ec2", "QuotaCode": CODES[0]}
        script = account(
            Step("service-quotas", "get_service_quota", first, code="AccessDeniedException"),
            *quota_steps({}, {}),
        )
        with pytest.raises(CloudError, match="allow servicequotas:GetServiceQuota;"):
            fetch(script.aws, QUOTAS, REGION, NOW)


class TestEmptyAnswers:
    """An empty answer must not replace an older one that was not."""

    @pytest.mark.parametrize(
        ("kind", "step"),
        [
            (SPECS, Step("ec2", "describe_instance_types", None, {"InstanceTypes": []})),
            (OFFERINGS, Step("ec2", "describe_instance_type_offerings", None, {})),
            (ZONES, Step("ec2", "describe_availability_zones", None, {})),
            (SPOT, Step("ec2", "describe_spot_price_history", None, {})),
            (ON_DEMAND, Step("pricing", "get_products", None, {"PriceList": ["{}"]})),
        ],
    )
    def test_is_an_error(self, kind, step):
        with pytest.raises(CloudError) as caught:
            fetch(account(step).aws, kind, "eu-west-1", NOW)
        assert caught.value.why == "reply"
        assert caught.value.exit_code == 5


class TestHalfAnAnswer:
    def test_a_page_that_fails_costs_the_whole_list(self):
        question = spot_question(StartTime=NOW)
        first, *_ = pages(
            "ec2",
            "describe_spot_price_history",
            question,
            recorded("describe-spot-price-history")[:2],
        )
        failed = Step("ec2", "describe_spot_price_history", None, code="InternalError", status=500)
        with pytest.raises(CloudError) as caught:
            fetch(account(first, failed).aws, SPOT, REGION, NOW)
        assert caught.value.why == "reply"
        assert "InternalError" in caught.value.detail

    def test_one_chunk_of_the_history_that_fails(self):
        good = Step(
            "ec2",
            "describe_spot_price_history",
            None,
            recorded("describe-spot-price-history-30d")[2],
        )
        bad = Step(
            "ec2", "describe_spot_price_history", None, code="RequestLimitExceeded", status=503
        )
        script = account(specs_step(*(f"g{i}.xlarge" for i in range(12))), good, bad)
        with pytest.raises(CloudError) as caught:
            history_provider(script.aws, 30).fetch(REGION, NOW)
        assert caught.value.why == "throttled"
        script.done()

    def test_an_answer_of_too_many_pages_ends(self):
        replies = recorded("describe-instance-types")[:2]
        script = account(*pages("ec2", "describe_instance_types", {"MaxResults": 100}, replies))
        script.aws._total_s = 0
        with pytest.raises(CloudError) as caught:
            fetch(script.aws, SPECS, REGION, NOW)
        assert caught.value.why == "timeout"


class TestRequests:
    def test_the_providers_without_parameters(self):
        found = aws_providers(Aws())
        assert set(found) == {
            *(kinds.SPECS, kinds.OFFERINGS, kinds.ZONES),
            *(kinds.ON_DEMAND, kinds.SPOT, kinds.QUOTAS),
        }
        for kind, one in found.items():
            assert isinstance(one, Provider)
            assert one.kind == kind
            assert ttl_s(kind) > 0


def test_nothing_is_loaded_before_something_is_asked():
    code = (
        "import sys; from deepvm.catalog.clouds.aws.client import Aws;from"
        " deepvm.catalog.clouds.aws.providers import aws_providers,"
        " history_provider;aws_providers(Aws('nobody')); history_provider(Aws(), 3);import"
        " deepvm.catalog.clouds.aws.checks; print(sorted({'boto3', 'botocore'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def aws():
    with moto_server() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
        patch.delenv("AWS_PROFILE", raising=False)
        yield Aws()


@pytest.fixture(scope="module")
def specs(aws):
    return fetch(aws, SPECS, REGION, NOW).data


class TestAgainstAServer:
    """moto speaks AWS's protocol over real HTTP; its types are those of the real service."""

    @pytest.mark.slow
    def test_all_types_can_be_read(self, specs):
        assert len(specs) > 1000
        assert specs["g4dn.12xlarge"]["gpu"]["count"] == 4
        assert specs["p5.48xlarge"]["baseline_gbps"] == 3200

    def test_the_types_agree_with_the_published_table(self, specs):
        """A table that was made from the same source by other means says the same."""
        if not TABLE.exists():
            pytest.skip("the table of specifications is not beside this checkout")
        with TABLE.open(newline="") as stream:
            published = {row["instance_type"]: row for row in csv.DictReader(stream)}
        assert set(specs) == set(published)
        for name, row in published.items():
            spec = specs[name]
            assert spec["vcpus"] == int(row["vcpu"]), name
            assert spec["memory_gib"] == pytest.approx(float(row["memory_gib"]), abs=0.001), name
            assert spec.get("baseline_gbps") == _worded(
                _figure(row["net_baseline_gbps_total"]), row
            ), name
            assert spec.get("peak_gbps") == _worded(_figure(row["net_peak_gbps_total"]), row), name
            assert spec["arch"] == row["arch"].split("|")[-1], name
            assert spec["current"] == (row["current_generation"] == "True"), name
            assert spec["burstable"] == (row["burstable"] == "True"), name
            assert spec["metal"] == (row["bare_metal"] == "True"), name
            assert spec["spot"] == ("spot" in row["usage_classes"].split("|")), name
            whole = int(row["gpu_count"]) > 0
            assert spec.get("gpu", {}).get("count", 0) == (int(row["gpu_count"]) if whole else 0), (
                name
            )
            if whole:
                assert spec["gpu"]["name"] == row["gpu_name"], name
                assert spec["gpu"]["memory_gib"] == pytest.approx(
                    float(row["gpu_mem_gib_each"]), abs=0.001
                ), name
            elif row["neuron_devices"] or row["gpu_partition"]:
                assert spec["unusable"], name

    def test_offerings_and_zones_speak_of_the_same_zones(self, aws):
        offerings = fetch(aws, OFFERINGS, REGION, NOW).data
        zones = fetch(aws, ZONES, REGION, NOW).data
        assert set().union(*offerings.values()) <= set(zones)
        assert all(name.startswith(REGION) for name in zones.values())

    def test_spot_prices_are_joined_by_the_names_of_zones(self, aws, specs):
        """moto knows no zone ids in prices."""
        signal = fetch(aws, SPOT, REGION, NOW)
        zones = fetch(aws, ZONES, REGION, NOW).data
        assert set(signal.data["g4dn.xlarge"]) <= set(zones)
        assert set(signal.data) <= set(specs)
        assert signal.refused == {}

    def test_regions_have_zones_of_their_own(self, aws):
        assert all(
            zone.startswith("apne2") for zone in fetch(aws, ZONES, "ap-northeast-2", NOW).data
        )
        assert "ap-northeast-2" in aws.regions(REGION)

    def test_history_from_several_threads(self, aws):
        data = history_provider(aws, 30).fetch(REGION, NOW).data
        assert {"g4dn.xlarge", "g5.xlarge"} <= set(data) and len(data) > 16, (
            "of more than two chunks"
        )

    def test_what_runs_is_counted(self, aws):
        import boto3

        ec2 = boto3.client("ec2", region_name="eu-west-1")
        image = ec2.describe_images()["Images"][0]["ImageId"]

        def start(name, **more):
            ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType=name, **more)

        start("g4dn.xlarge", InstanceMarketOptions={"MarketType": "spot"})
        start("g4dn.2xlarge")
        start("c5.xlarge")
        start("c5.2xlarge")
        stopped = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="g5.xlarge")
        ec2.stop_instances(InstanceIds=[stopped["Instances"][0]["InstanceId"]])
        assert _in_use(aws, "eu-west-1") == {
            ("G and VT", Market.SPOT): 4,
            ("G and VT", Market.ON_DEMAND): 8,
            ("Standard", Market.ON_DEMAND): 12,
        }

    def test_a_service_that_the_server_lacks_costs_its_signal_only(self, aws):
        with pytest.raises(CloudError) as caught:
            fetch(aws, ON_DEMAND, REGION, NOW)
        assert caught.value.why == "reply"
        assert "\n" not in str(caught.value)


def _figure(text):
    return float(text) if text else None


def _worded(total, row):
    """The table adds cards up; two of a c6in.32xlarge may each use all of its 200 Gbit/s."""
    words = row["network_performance"].removesuffix(" Gigabit")
    return (
        min(total, float(words))
        if total and int(row["network_cards"]) > 1 and words.isdigit()
        else total
    )


def test_any_start_time_would_not_do():
    """The script is strict: a question that differs is refused, so these tests can fail."""
    step = Step(
        "ec2",
        "describe_spot_price_history",
        {"StartTime": ANY, "ProductDescriptions": ["Windows"]},
        {},
    )
    with pytest.raises(CloudError, match="ProductDescriptions"):
        fetch(account(step).aws, SPOT, REGION, NOW)
