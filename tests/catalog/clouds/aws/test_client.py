"""Clients of AWS's services, and several questions at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from support.aws_account import REGION

from deepvm.catalog.clouds.aws.client import ApiCall, Aws
from deepvm.errors import CloudError


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def test_the_clients_are_set_up_as_designed():
    client = Aws()._client(ApiCall("ec2", "", "eu-central-1"))
    config = client.meta.config
    assert config.retries == {"mode": "standard", "total_max_attempts": 5}
    assert (config.connect_timeout, config.read_timeout) == (5, 30)
    assert "deepvm/" in config.user_agent_extra
    assert client.meta.region_name == "eu-central-1"


def test_threads_share_one_client(monkeypatch):
    aws = Aws()
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(aws._client(ApiCall("ec2", "", REGION))))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 16
    assert len({id(client) for client in made}) == 1


class TestEach:
    """Several questions at once."""

    def test_answers_keep_the_order_and_at_most_so_many_are_under_way(self):
        now, most, lock = [0], [0], threading.Lock()

        def ask(item):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.005 * (item % 3))
            with lock:
                now[0] -= 1
            return -item

        aws = Aws()
        aws.at_once = 4
        assert aws.each(ask, range(40)) == [-i for i in range(40)]
        assert 1 < most[0] <= 4
        assert Aws().each(ask, []) == []

    def test_a_failure_ends_it(self):
        asked = []

        def ask(item):
            asked.append(item)
            time.sleep(0.002)
            raise CloudError("x", "reply", str(item), "y")

        aws = Aws()
        aws.at_once = 1
        with pytest.raises(CloudError, match="0"):
            aws.each(ask, range(1000))
        time.sleep(0.05)
        before = len(asked)
        time.sleep(0.1)
        assert len(asked) == before < 1000

    def test_of_several_failures_the_first_is_raised(self):
        """Others may follow before anybody hears of it."""

        def ask(item):
            raise CloudError("x", "reply", f"item {item}", "y")

        aws = Aws()
        aws.at_once = 1
        for _ in range(100):
            with pytest.raises(CloudError, match="item 0;"):
                aws.each(ask, range(20))

    def test_a_process_ends_at_once_although_aws_is_silent(self):
        code = (
            "import threading, time; from deepvm.catalog.clouds.aws.client import"
            " Aws;threading.Thread(target=lambda: Aws().each(time.sleep, [60] * 4),"
            " daemon=True).start(); time.sleep(0.2)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
