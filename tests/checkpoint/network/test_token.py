"""Who may do what at a memory node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint.memory_nodes import TOKEN, make_image, make_layout, put, running, tier

from deepvm.checkpoint.files.file_names import part_job
from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.client import (
    Link,
    Token,
    node_status,
    read_token,
    token_from_environment,
)
from deepvm.checkpoint.network.protocol import BrokenError, Channel, Kind, RequestRefused
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError, RequestError

MASTER = Token(TOKEN)


def test_tokens_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("  sehr geheimes Wort\n")
    assert read_token(token) == Token(b"sehr geheimes Wort")
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    assert token_from_environment() == Token(b"sehr geheimes Wort")
    for content in (b"", b" \n", b"x" * 5000, b"x" * 15):
        token.write_bytes(content)
        with pytest.raises(RequestError, match="16"):
            read_token(token)
    monkeypatch.delenv("DEEPVM_TOKEN_FILE")
    with pytest.raises(RequestError, match="DEEPVM_TOKEN_FILE"):
        token_from_environment()


@given(
    job=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    secret=st.binary(min_size=16),
)
def test_a_jobs_token_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, job: str, secret: bytes
) -> None:
    made = Token(secret).of_job(job)
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(made.to_text() + "\n")
    assert read_token(file) == made and made.job == job and made.secret != secret
    assert made.secret != Token(secret).of_job("x" if job != "x" else "y").secret


class TestJobs:
    """One node, two jobs, and a token for each."""

    def test_each_has_its_own_versions(self, tmp_path: Path) -> None:
        layout = make_layout(10_000)
        with running(persist=tmp_path) as node:
            one, two, both = (
                tier(node, token=t) for t in (MASTER.of_job("one"), MASTER.of_job("two"), MASTER)
            )  # type: ignore[arg-type]
            for to, job in ((one, "one"), (two, "two")):
                assert put(to, 1, layout, make_image(layout, 1), job=job).wait(Level.DURABLE)
                (manifest,) = to.versions(job)
                assert to.fetch(manifest, tmp_path / job).exists()
                assert both.versions(job) == (manifest,)
                assert to.damaged(job) == ()
            (other,) = two.versions("two")
            path = node.store.file("two", 1)  # type: ignore[union-attr]
            before = path.read_bytes()
            forbidden: list[Callable[[], object]] = [
                lambda: one.versions("two"),
                lambda: one.damaged("two"),
                lambda: one.fetch(other, tmp_path),
                lambda: one.set_aside("two", [1]),
                lambda: put(one, 1, layout, make_image(layout, 2), job="two"),
                lambda: put(one, 2, layout, make_image(layout, 2), job="two"),
                lambda: node_status(node.address, MASTER.of_job("one")),  # type: ignore[attr-defined]
            ]
            for attempt in forbidden:
                with pytest.raises(CheckpointError, match="the token is that of job 'one'"):
                    attempt()
            assert path.read_bytes() == before and two.versions("two") == (other,)
            assert node_status(node.address, MASTER)["versions"]  # type: ignore[attr-defined]
            for to in (one, two, both):
                to.close()

    def test_parts_on_several_nodes_are_of_the_job(self) -> None:
        layout = make_layout(10_000)
        with running() as node:
            for job in ("one", "two"):
                to = tier(node, token=MASTER.of_job("one"))  # type: ignore[arg-type]
                name = part_job(job, 1, 2)
                if job == "one":
                    put(to, 1, layout, make_image(layout, 1), job=name)
                    assert len(to.versions(name)) == 1
                else:
                    with pytest.raises(CheckpointError, match="the token is that of job 'one'"):
                        to.versions(name)
                to.close()

    def test_a_connection_cannot_change_its_job(self) -> None:
        with running() as node:
            link = Link(node.address, MASTER.of_job("one"))  # type: ignore[attr-defined]
            greeting = {"role": "sender", "session": "s", "world": 1, "rank": 0, "layout": "x"}
            link.hello({**greeting, "job": "one"})
            with pytest.raises(RequestRefused, match="this is 'two'"):
                link.hello({**greeting, "job": "two"})
            link.close()
            assert "two" not in node.registry.jobs

    def test_what_is_no_token_of_this_job(self) -> None:
        for token in [
            Token(TOKEN, "one"),  # the node's own secret, passed off as a job's
            Token(MASTER.of_job("one").secret),  # a job's, passed off as the node's
            Token(MASTER.of_job("one").secret, "two"),
            Token(MASTER.of_job("one").secret, "one.part-1-of-2"),
            Token(Token(b"another one, just as long").of_job("one").secret, "one"),
            Token(MASTER.of_job("one").secret, "x" * 300),
        ]:
            with running() as node:
                with pytest.raises(
                    (CheckpointError, BrokenError), match="token is wrong|closed|reset"
                ):
                    Link(node.address, token)  # type: ignore[attr-defined]
                assert node.metrics()["connections"] == 0

    def test_who_has_it_cannot_pose_as_the_node_to_others(self) -> None:
        """It knows the secret of one job alone, and must prove that of the caller's."""
        with running(token=MASTER.of_job("one").secret) as impostor:
            for known in (MASTER, MASTER.of_job("two"), MASTER.of_job("one")):
                with pytest.raises(CheckpointError, match="token is wrong"):
                    Link(impostor.address, known)  # type: ignore[attr-defined]


def test_an_older_node_tells_of_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list has no such key."""
    send = Channel.send

    def older(self: Channel, kind: Kind, body: object = b"", **more: object) -> None:
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if name != "damaged"}
        send(self, kind, body, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Channel, "send", older)
    with running() as node:
        to = TcpTier(node.url, "s", TOKEN)  # type: ignore[attr-defined]
        assert to.damaged("job") == to.versions("job") == ()
        to.close()
