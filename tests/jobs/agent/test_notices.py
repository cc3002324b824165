"""Notices of AWS, GCP and Azure, against servers that answer as theirs do."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from support.jobs.metadata_services import AzureMetadata, GcpMetadata, Imds, Service

import deepvm.jobs.agent.notices as notices
from deepvm.errors import RequestError
from deepvm.jobs.agent.notices import (
    AzureNotices,
    Ec2Notices,
    GcpNotices,
    MetadataError,
    NoNotices,
    Notice,
    NoticeSource,
    cloud_here,
    notice_source,
)
from deepvm.jobs.clouds.local_machine import FakeMetadata

S = TypeVar("S", bound=Service)


@contextlib.contextmanager
def serving(service: S) -> Iterator[S]:
    yield service
    service.close()


def found(source: NoticeSource) -> Notice:
    notice = source.poll()
    assert notice is not None
    return notice


# --- AWS ------------------------------------------------------------------------------------------


def test_ec2() -> None:
    for action in ["terminate", "stop", "hibernate"]:
        with serving(Imds()) as imds:
            source = Ec2Notices(imds.url)
            assert source.poll() is None and not source.rebalance()
            imds.notice(1_900_000_000, action)
            assert found(source) == Notice(1_900_000_000.0, action)
            assert not source.rebalance()
            imds.recommend_rebalance()
            assert source.rebalance()
            assert len(imds.tokens) == 1  # one token lasts for hours


def test_ec2_token_that_has_expired_is_renewed() -> None:
    with serving(Imds()) as imds:
        source = Ec2Notices(imds.url)
        source.poll()
        # As after 6 h, or after the instance was stopped
        imds.tokens = dict.fromkeys(imds.tokens, 0.0)
        assert source.poll() is None and len(imds.tokens) == 2


def test_ec2_without_a_token_says_why() -> None:
    class Refusing(Imds):
        def answer(
            self, method: str, path: str, headers: object
        ) -> tuple[int, str, dict[str, str]]:
            return (200, "token", {}) if method == "PUT" else (401, "", {})

    with (
        serving(Refusing()) as imds,
        pytest.raises(MetadataError, match="401 Unauthorized.*hop limit.*at least 2"),
    ):
        Ec2Notices(imds.url).poll()

    class Closed(Imds):
        def answer(
            self, method: str, path: str, headers: object
        ) -> tuple[int, str, dict[str, str]]:
            return 403, "", {}  # http-endpoint disabled

    with serving(Closed()) as imds, pytest.raises(MetadataError, match="gives no token: 403"):
        Ec2Notices(imds.url).poll()


def test_ec2_from_a_container_behind_one_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices._request, "__defaults__", ("GET", 0.2))
    with (
        serving(Imds(hop_limit=1)) as imds,
        pytest.raises(MetadataError, match="does not answer; .*hop limit"),
    ):
        Ec2Notices(imds.url).poll()


def test_an_ec2_notice_that_cannot_be_read_is_one_notice() -> None:
    for text in ["", "{", "[]", '{"action": "stop"}', '{"action": "stop", "time": "soon"}']:
        with serving(Imds()) as imds:
            imds.facts["spot/instance-action"] = text
            source = Ec2Notices(imds.url)
            first = found(source)
            assert 110 < first.taken_s - time.time() <= 120
            time.sleep(0.05)
            assert (
                source.poll() == first
            )  # a later time each second would be a new notice each second


def test_ec2_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Imds()) as imds:
        imds.notice(1893456000)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # no proxy knows this machine
        assert found(notice_source("aws")).taken_s == 1893456000.0


def test_nothing_there() -> None:
    for source in [Ec2Notices, GcpNotices, AzureNotices]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match="refused"):
                source(f"http://127.0.0.1:{unused.getsockname()[1]}").poll()


# --- GCP ------------------------------------------------------------------------------------------


def test_gcp() -> None:
    with serving(GcpMetadata()) as metadata:
        source = GcpNotices(metadata.url)
        assert source.poll() is None and not source.rebalance()
        metadata.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
        assert not source.rebalance()
        metadata.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
        assert source.rebalance()
        metadata.preempted = True
        first = found(source)
        assert 25 < first.taken_s - time.time() <= 30
        time.sleep(0.02)
        assert source.poll() == first  # 30 s from the first time it was said


def test_whoever_is_not_googles_server_is_not_believed() -> None:
    with serving(AzureMetadata()) as other, pytest.raises(MetadataError, match="Metadata-Flavor"):
        GcpNotices(other.url).poll()


# --- Azure ----------------------------------------------------------------------------------------


def test_azure() -> None:
    with serving(AzureMetadata()) as metadata:
        source = AzureNotices(metadata.url)
        metadata.add("Freeze")
        assert source.poll() is None  # it goes on after seconds
        metadata.add("Preempt", "Mon, 19 Sep 2030 18:29:47 GMT")
        assert found(source) == Notice(1916072987.0, "preempt")
        metadata.add("Terminate", "Mon, 19 Sep 2030 18:20:00 GMT")
        assert found(source).action == "terminate"  # the earlier one


def test_a_started_azure_event_is_one_notice() -> None:
    for kind in ["Preempt", "Terminate", "Reboot", "Redeploy"]:
        with serving(AzureMetadata()) as metadata:
            source = AzureNotices(metadata.url)
            metadata.add(kind, status="Started")
            first = found(source)
            assert first.action == kind.lower() and 25 < first.taken_s - time.time() <= 30
            time.sleep(0.05)
            assert source.poll() == first


def test_azure_events_of_other_machines_of_a_scale_set() -> None:
    with serving(AzureMetadata("train_1")) as metadata:
        source = AzureNotices(metadata.url)
        metadata.add("Preempt", of="train_0")
        assert source.poll() is None
        metadata.add("Preempt", of="TRAIN_1")
        assert found(source).action == "preempt"


def test_azures_first_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_TIMEOUT_S", 0.1)
    with serving(AzureMetadata(first_s=0.5)) as metadata:
        assert AzureNotices(metadata.url).poll() is None
        assert len(metadata.asked) == 1


@pytest.mark.parametrize("body", ["", "[]", '{"Events": [7]}', "<html>"])
def test_azure_that_is_none(body: str) -> None:
    class Other(AzureMetadata):
        def answer(
            self, method: str, path: str, headers: object
        ) -> tuple[int, str, dict[str, str]]:
            return 200, body, {}

    with (
        serving(Other()) as metadata,
        pytest.raises(MetadataError, match="does not answer as scheduled events do"),
    ):
        AzureNotices(metadata.url).poll()


# --- which ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        (
            {
                "sys_vendor": "Microsoft Corporation",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
            },
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "None"}, ""),
        ({"sys_vendor": "QEMU"}, ""),
        ({}, ""),
    ],
)
def test_the_firmware_names_the_cloud(facts: dict[str, str], cloud: str, tmp_path: Path) -> None:
    for name, text in facts.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert cloud_here(tmp_path) == cloud


def test_sources_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(notice_source("gcp"), GcpNotices) and isinstance(
        notice_source("azure"), AzureNotices
    )
    assert isinstance(notice_source("http://10.0.0.1:80"), Ec2Notices)
    monkeypatch.setattr(notices, "cloud_here", lambda: "gcp")
    assert isinstance(notice_source("auto"), GcpNotices)
    monkeypatch.setattr(notices, "cloud_here", lambda: "")
    source = notice_source("auto")
    assert isinstance(source, NoNotices) and not source.rebalance()
    with pytest.raises(MetadataError, match="--metadata names a service"):
        source.poll()
    with pytest.raises(RequestError, match="metadata"):
        notice_source("oracle")


def test_the_fake_of_local_machines_answers_as_ec2_does() -> None:
    fake = FakeMetadata({})
    source = Ec2Notices(fake.url)
    assert source.poll() is None and not source.rebalance()
    fake.notice(1_900_000_000.5)
    fake.facts["events/recommendations/rebalance"] = json.dumps(
        {"noticeTime": "2026-11-26T09:00:00Z"}
    )
    assert found(source).taken_s == pytest.approx(1_900_000_000.5) and source.rebalance()


def test_the_fake_says_nothing_of_an_agent_that_was_killed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake = FakeMetadata({})
    port = int(fake.url.rpartition(":")[2])
    for _ in range(5):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.sendall(b"GET /latest/meta-data/x HTTP/1.1\r\n")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # resets the connection
    time.sleep(0.2)  # for the threads that read from them
    assert Ec2Notices(fake.url).poll() is None
    assert capfd.readouterr().err == ""
