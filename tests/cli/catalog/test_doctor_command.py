"""``deepvm doctor`` as a user meets it: what fails is said, with the next step and exit code 5."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.command import Run
from support.public_catalogs import public_server

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.clouds.aws import checks
from deepvm.catalog.signals.cloud import Check

SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No credentials, no settings, an end point where nobody answers, and a cache of its own."""
    for name in [n for n in os.environ if n.startswith(("AWS_", "DEEPVM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DEEPVM_CONFIG", "none")
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DEEPVM_ADVISOR_URL", "http://127.0.0.1:9/advisor.json")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "doctor")


def rows(out: str) -> dict[str, dict[str, str]]:
    return {c["name"]: c for c in json.loads(out)["checks"]}


@pytest.mark.system
def test_without_credentials_the_next_step_is_named(run: Run) -> None:
    code, out, err = run("-o", "json")
    found = json.loads(out)
    assert code == 5
    assert (found["schema_version"], found["ok"], found["regions"]) == (
        "deepvm.doctor/1",
        False,
        ["us-east-1"],
    )
    assert "us-east-1 (the default" in err
    assert rows(out)["credentials"]["status"] == "failed"
    assert "aws configure" in rows(out)["credentials"]["advice"]
    assert rows(out)["cache"]["status"] == "ok"
    code, out, _ = run()
    assert code == 5
    table = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    assert table[0] == ["check", "status", "found", "what to do"]
    assert table[1][:2] == ["cache", "ok"]
    assert [r[1] for r in table if r[0] == "credentials"] == ["failed"]


@pytest.mark.system
def test_the_cache_is_checked_by_writing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "not made yet" in rows(run("-o", "json")[1])["cache"]["detail"]
    assert not (tmp_path / "cache").exists()  # a check changes nothing
    (tmp_path / "cache").write_text("a file stands in the way")
    found = rows(run("-o", "json")[1])["cache"]
    assert found["status"] == "warning"
    assert "Not a directory" in found["detail"] and "DEEPVM_CACHE_DIR" in found["advice"]
    monkeypatch.setenv("DEEPVM_CACHE_DIR", "/proc/deepvm")
    assert rows(run("-o", "json")[1])["cache"]["status"] == "warning"


def test_the_policy_is_printed_and_nothing_is_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(checks, "check_aws")
    code, out, err = run("--iam")
    assert (code, err) == (0, "")
    assert out == DEFAULT_CLOUD.policy()
    actions = [a for s in json.loads(out)["Statement"] for a in s["Action"]]
    assert "ec2:DescribeSpotPriceHistory" in actions
    assert not [a for a in actions if not re.search(r":(Describe|Get)", a)]


def test_a_policy_is_for_a_bucket_and_not_for_a_path(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_AWS_BUCKET", "s3://mine/")
    assert "arn:aws:s3:::mine" in run("--iam", "--for", "run")[1]
    monkeypatch.setenv("DEEPVM_AWS_BUCKET", "s3://mine/x")
    code, out, err = run("--iam", "--for", "run")
    assert (code, out) == (2, "") and "DEEPVM_AWS_BUCKET: 'mine/x'" in err


@pytest.mark.system
def test_exit_codes_follow_the_checks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What AWS says is simulated here.

    The checks themselves have their tests beside the catalog.
    """
    answers: tuple[Check, ...] = ()
    monkeypatch.setattr(checks, "check_aws", lambda aws, region, now: answers)
    for ok, code, status in ((True, 0, "ok"), (None, 0, "warning"), (False, 5, "failed")):
        answers = (Check("clock", True, "agrees"), Check("quota", ok, "0 vCPUs", "request more"))
        found = run("-o", "json")
        assert found[0] == code
        assert json.loads(found[1])["ok"] is (code == 0)
        assert rows(found[1])["quota"] == {
            "name": "quota",
            "status": status,
            "detail": "0 vCPUs",
            "advice": "request more",
        }
        assert run()[0] == code


@pytest.mark.parametrize(("words", "status"), [(["unshare"], "ok"), ([], "warning")])
def test_what_keeps_local_machines_together(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], status: str
) -> None:
    monkeypatch.setattr("deepvm.jobs.clouds.local.unshared", lambda: words)
    monkeypatch.setattr(checks, "check_aws", lambda *_: ())
    code, out, _ = run("-o", "json", "-r", "eu-west-1")
    assert (code, rows(out)["local machines"]["status"]) == (0, status)


@pytest.mark.system
def test_several_regions_and_those_of_the_settings(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(aws: checks.Aws, region: str, now: object) -> tuple[Check, ...]:
        asked.append((aws.profile, region))
        return (Check("clock", True, "agrees"),)

    monkeypatch.setattr(checks, "check_aws", answer)
    _, out, _ = run(
        "-o", "json", "-r", "eu-west-1", "-r", "us-west-2", "-r", "eu-west-1", "--profile", "work"
    )
    assert asked == [("work", "eu-west-1"), ("work", "us-west-2")]
    assert {"cache", "local machines", "eu-west-1: clock", "us-west-2: clock"} == set(rows(out))
    asked.clear()
    Path("deepvm.toml").write_text('region = ["ap-south-1"]\nprofile = "home"\nobjective = "flopp"')
    assert set(rows(run("-o", "json")[1])) == {"cache", "local machines", "clock"}
    assert run("-o", "json", "-r", "eu-west-1")[0] == 0
    assert asked == [("home", "ap-south-1"), ("home", "eu-west-1")]
    asked.clear()
    Path("deepvm.toml").write_text('region = "all"')
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    code, _, err = run("-o", "json")
    assert (code, asked) == (0, [("", "eu-north-1")])
    assert "AWS_REGION" in err


def test_what_cannot_be_a_region_is_refused(run: Run) -> None:
    for region in ["mars", "us-east-1a", "us-east-1\n", "--iam"]:
        code, out, err = run(f"--region={region}")
        assert (code, out) == (2, "")
        assert f"--region: {region!r}" in err


@pytest.mark.system
def test_a_key_is_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    code, out, err = run("-o", "json")
    assert code == 5
    assert SECRET not in out + err and "AKIAIOSFODNN7EXAMPLE" not in out + err


@pytest.mark.system
def test_another_cloud_needs_a_public_catalog_that_answers(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with public_server() as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("DEEPVM_SKYPILOT_URL", server.url)
        monkeypatch.setenv("DEEPVM_GPUHUNT_URL", "http://127.0.0.1:9")
        code, out, err = run("--cloud", "gcp", "-o", "json")
        assert code == 0 and "checking AWS" not in err, out
        found = rows(out)
        assert found["Google Cloud: skypilot-catalog"]["status"] == "ok"
        assert found["Google Cloud: gpuhunt"]["status"] == "warning"  # the other has answered
        assert "credentials" not in found and json.loads(out)["regions"] == []


@pytest.mark.system
def test_a_cloud_whose_catalogs_are_off_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPVM_SKYPILOT_URL", "none")
    monkeypatch.setenv("DEEPVM_GPUHUNT_URL", "none")
    code, out, _ = run("--cloud", "lambda", "-o", "json")
    assert code == 5 and rows(out)["Lambda: prices"]["status"] == "failed"
    code, _, err = run("--cloud", "gcp", "--region", "us-east1")
    assert code == 2 and "Error: --region needs AWS: public catalogs" in err
    code, _, err = run("--cloud", "gpc")
    assert code == 2 and "did you mean --cloud gcp?" in err
