"""What is known about credentials and regions without boto3.

Boto3 itself is the oracle where it has an opinion.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.environment import in_environment

from deepvm.catalog.clouds.aws import aws_cloud
from deepvm.catalog.clouds.aws.aws_cloud import AwsCloud
from deepvm.errors import RequestError

AWS = AwsCloud()
check_region = AWS.check_region
KEYS = "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = s3cr3t\n"


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def no_machine(monkeypatch):
    monkeypatch.setattr(aws_cloud, "_SYSTEM", Path("/nonexistent"))


def may_exist(home, profile="", **environ):
    environ = {"HOME": str(home), **environ}
    return in_environment(environ, AWS.credentials_may_exist, profile)


def account_tag(profile, environ):
    return in_environment(environ, AWS.account_tag, profile)


def region_of(profile, environ):
    return in_environment(environ, AWS.own_region, profile)


def write(home, credentials="", config=""):
    (home / ".aws" / "credentials").write_text(credentials)
    (home / ".aws" / "config").write_text(config)


class TestMayExist:
    def test_nothing(self, home):
        assert not may_exist(home)
        assert not may_exist(home / "no such folder")

    @pytest.mark.parametrize(
        "variable",
        [
            "AWS_ACCESS_KEY_ID",
            "AWS_PROFILE",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ],
    )
    def test_signs_in_the_environment(self, home, variable):
        assert may_exist(home, **{variable: "x"})
        assert not may_exist(home, **{variable: ""})

    def test_a_profile_that_is_asked_for(self, home):
        assert may_exist(home, "work")

    @pytest.mark.parametrize(
        ("credentials", "config", "exist"),
        [
            (f"[work]\n{KEYS}", "", True),
            ("", "[default]\ncredential_process = /bin/get-keys\n", True),
            ("", "[default]\nregion = eu-west-1\noutput = json\n", False),
            ("[default]\naws_access_key_id =\n", "", False),
            ("\xff\xfe", "", False),
        ],
    )
    def test_files(self, home, credentials, config, exist):
        (home / ".aws" / "credentials").write_bytes(credentials.encode("latin-1"))
        (home / ".aws" / "config").write_text(config)
        assert may_exist(home) is exist
        elsewhere = {"AWS_CONFIG_FILE": "~/no", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
        assert not may_exist(home, **elsewhere)

    @pytest.mark.parametrize(
        ("place", "words", "found"),
        [
            ("class/dmi/id/sys_vendor", "Amazon EC2\n", True),
            ("class/dmi/id/sys_vendor", "QEMU\n", False),
            ("hypervisor/uuid", "ec2e1916-9099-7caf-fd21-012345abcdef\n", True),
            ("hypervisor/uuid", "0123\n", False),
        ],
    )
    def test_machines_that_may_have_a_role(self, home, monkeypatch, place, words, found):
        (home / "sys" / place).parent.mkdir(parents=True)
        (home / "sys" / place).write_text(words)
        monkeypatch.setattr(aws_cloud, "_SYSTEM", home / "sys")
        assert may_exist(home) is found
        assert not may_exist(home, AWS_EC2_METADATA_DISABLED="true")


class TestAccountTag:
    def test_examples(self):
        assert re.fullmatch("default-[0-9a-f]{12}", account_tag("", {}))
        assert re.fullmatch("work-[0-9a-f]{12}", work := account_tag("work", {}))
        assert account_tag("", {"AWS_PROFILE": "work"}) == work
        both = {"AWS_PROFILE": "work", "AWS_DEFAULT_PROFILE": "old"}
        assert account_tag("", both) == account_tag("old", {})  # boto3's order
        key = account_tag("", {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"})
        assert re.fullmatch("default-[0-9a-f]{12}", key) and key != account_tag("", {})

    def test_a_profile_that_is_asked_for_beats_keys_and_these_beat_the_environments_profile(self):
        """As in boto3."""
        environ = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_PROFILE": "home"}
        assert account_tag("work", environ) == account_tag("work", {})
        assert account_tag("", environ) != account_tag("home", {})

    @given(st.text(min_size=1), st.text(min_size=1))
    def test_safe_and_never_shared(self, one, other):
        tag = account_tag(one, {})
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,60}", tag)
        assert (tag == account_tag(other, {})) == (one == other)

    def test_a_profile_cannot_pass_for_a_key(self):
        key = account_tag("", {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"})
        assert account_tag(key, {}) != key


class TestRegionOf:
    def test_the_order(self, home):
        write(home, config="[default]\nregion = eu-west-3\n[profile work]\nregion = sa-east-1\n")
        environ = {"HOME": str(home)}
        assert region_of("", environ).name == "eu-west-3"
        assert region_of("work", environ) == ("sa-east-1", f"profile work in {home}/.aws/config")
        assert region_of("", environ | {"AWS_PROFILE": "work"}).name == "sa-east-1"
        environ["AWS_DEFAULT_REGION"] = "eu-west-2"
        assert region_of("work", environ) == (
            "eu-west-2",
            "environment variable AWS_DEFAULT_REGION",
        )
        environ["AWS_REGION"] = "eu-west-1"
        assert region_of("work", environ).name == "eu-west-1"

    def test_the_default_says_so(self, home):
        found = region_of("", {"HOME": str(home)})
        assert found.name == AWS.default_region
        assert "default" in found.where

    def test_a_region_beside_the_keys(self, home):
        write(home, f"[default]\n{KEYS}region = ca-central-1\n")
        assert region_of("", {"HOME": str(home)}).name == "ca-central-1"

    def test_a_file_that_cannot_be_read_has_no_region(self, home):
        write(home, config="[default\nregion = eu-west-3\n")
        assert region_of("", {"HOME": str(home)}).name == AWS.default_region

    def test_wrong_names_say_where_they_stand(self, home):
        with pytest.raises(RequestError, match="^invalid value for AWS_REGION: 'nowhere'"):
            region_of("", {"AWS_REGION": "nowhere"})
        write(home, config="[default]\nregion = nowhere\n")
        with pytest.raises(
            RequestError,
            match=r"^invalid value for region of profile default in .*config: 'nowhere'",
        ):
            region_of("", {"HOME": str(home)})


class TestCheckRegion:
    @pytest.mark.parametrize(
        "partition", ["aws", "aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b", "aws-eusc"]
    )
    def test_all_that_boto3_knows(self, partition):
        import boto3

        for name in boto3.Session().get_available_regions("ec2", partition):
            assert check_region(name) == name

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "us-east",
            "US-EAST-1",
            "us_east_1",
            "us-east-1 ",
            "us-east-1\n",
            "../etc",
            "use1-az4",
            "é-east-1",
        ],
    )
    def test_what_is_none(self, name):
        with pytest.raises(RequestError, match="us-east-1") as caught:
            check_region(name)
        assert caught.value.option == "region"

    def test_a_zone_is_told_apart(self):
        with pytest.raises(RequestError, match="did you mean us-east-1"):
            check_region("us-east-1a")


def test_no_boto3_here():
    code = (
        "import sys; from deepvm.catalog.clouds.aws.aws_cloud import AwsCloud; aws ="
        " AwsCloud();aws.credentials_may_exist(''); aws.account_tag('');"
        " aws.own_region('');print({'boto3', 'botocore', 'socket'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
