"""How VMs of an exported plan meet: against a server that answers like AWS, with a metadata service
of our own.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.metadata_services import Imds
from support.moto_server import moto_server

from deepvm.errors import CloudError
from deepvm.jobs.clouds.aws import meeting
from deepvm.jobs.clouds.aws.meeting import Rendezvous, main


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def imds(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imds]:
    service = Imds()
    service.facts |= {
        "local-ipv4": "127.0.0.1",
        "instance-id": "i-1",
        "placement/region": "us-east-1",
    }
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    yield service
    service.close()


@pytest.fixture
def port() -> Iterator[int]:
    """One on which something answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def at(imds: Imds, address: str, job: str, wait_s: float = 20.0) -> Rendezvous:
    imds.facts |= {"local-ipv4": address, "instance-id": f"i-{address}"}
    return Rendezvous(job, wait_s, look_s=0.05)


def test_all_keepers_have_one_token(imds: Imds, port: int, tmp_path: Path) -> None:
    """However many make it at once."""
    nodes = [at(imds, f"127.0.0.{i}", "one") for i in range(1, 6)]
    threads = [
        threading.Thread(target=n.keep, args=(str(tmp_path / f"{i}"),)) for i, n in enumerate(nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = {(tmp_path / f"{i}").read_text() for i in range(5)}
    assert len(tokens) == 1 and len(tokens.pop()) == 64
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o600


def test_trainers_take_the_keepers_that_answer(imds: Imds, port: int, tmp_path: Path) -> None:
    # Of an earlier cluster: nothing listens there
    at(imds, "127.0.0.99", "some", 5).keep(str(tmp_path / "a"))
    at(imds, "127.0.0.1", "some").keep(str(tmp_path / "b"))
    assert at(imds, "127.0.0.7", "some").join(str(tmp_path / "c"), 1, port) == ["127.0.0.1"]
    assert (tmp_path / "c").read_text() == (tmp_path / "b").read_text()


def test_only_one_leads_and_the_others_follow(imds: Imds, port: int) -> None:
    vms = [at(imds, "127.0.0.1", "race"), *[at(imds, f"127.0.1.{i}", "race") for i in range(4)]]
    found: list[tuple[int, str, bool]] = []
    vms[0].lead(0, port)  # the one that listens
    threads = [threading.Thread(target=lambda v=v: found.append(v.lead(0, port))) for v in vms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(1, "127.0.0.1", False)] * 4 + [(1, "127.0.0.1", True)]


def test_a_term_is_given_once(imds: Imds, port: int) -> None:
    """All ask at once, and nobody listens: those that did not get the term wait for its leader."""
    vms = [at(imds, f"127.0.2.{i}", "claims", 1.0) for i in range(1, 6)]
    led: list[tuple[int, str, bool]] = []
    gave_up: list[object] = []

    def lead(vm: Rendezvous) -> None:
        try:
            led.append(vm.lead(0, 9))
        except SystemExit as error:
            gave_up.append(error.code)

    threads = [threading.Thread(target=lead, args=(vm,)) for vm in vms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(led) == 1 and led[0][0] == 1 and led[0][2]
    assert len(gave_up) == 4 and all(
        "no VM leads: nothing answers on TCP port 9" in str(code) for code in gave_up
    )


def test_a_leader_that_is_gone_is_succeeded(
    imds: Imds, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "SILENT_S", 0.3)
    assert at(imds, "127.0.0.99", "gone").lead(0, port) == (1, "127.0.0.99", True)
    # One that has just booted
    assert at(imds, "127.0.0.1", "gone").lead(0, port) == (2, "127.0.0.1", True)
    # One that saw the first fail
    assert at(imds, "127.0.0.5", "gone").lead(1, port) == (2, "127.0.0.1", False)


def test_what_is_missing_is_said_in_time(imds: Imds, tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"after 0 s: 2 keepers .* /deepvm/none/nodes names no VM: see their log"
    ):
        at(imds, "127.0.0.1", "none", 0.2).join(str(tmp_path / "t"), 2, 9)


def test_aws_that_does_not_answer(
    imds: Imds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A role that is not known yet is waited for.

    One that never comes ends the wait with AWS's words.

    What AWS says is printed once, at once: a permission that is missing looks like a role that is
    not known yet.
    """
    asked: list[str] = []

    class Refusing(meeting.Aws):
        def call(self, question: Any, answers: Any = (), **parameters: Any) -> Any:
            asked.append(question.operation)
            if len(asked) < 3:
                raise CloudError("ssm GetParameter", "permission", "not authorized yet", "wait")
            return super().call(question, answers, **parameters)

    monkeypatch.setattr(meeting, "Aws", Refusing)
    at(imds, "127.0.0.1", "patient").keep(str(tmp_path / "t"))
    assert asked[:3] == ["GetParameter"] * 3
    assert caplog.text.count("/deepvm/patient: ssm GetParameter: not authorized yet") == 1
    asked.clear()
    monkeypatch.setattr(
        Refusing, "call", lambda *_, **__: (_ for _ in ()).throw(OSError("no route"))
    )
    with pytest.raises(SystemExit, match="after 0 s: /deepvm/patient: no route"):
        at(imds, "127.0.0.1", "patient", 0.1).keep(str(tmp_path / "t"))


def test_the_command_line_writes_what_it_was_told(imds: Imds, port: int, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        main(["--job", "words", "--wait", "20", *words, str(tmp_path / "told")])
        return (tmp_path / "told").read_text()

    assert run("keep", str(tmp_path / "token")) == "127.0.0.1\n"
    assert run("join", str(tmp_path / "token"), "1", str(port)) == "127.0.0.1\n"
    assert run("lead", "0", str(port)) == "1 127.0.0.1 true\n"
    assert run("lead", "1", str(port)) == "2 127.0.0.1 true\n"
