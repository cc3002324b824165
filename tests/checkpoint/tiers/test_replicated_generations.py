"""Replicas and generations of a job: nodes miss the newer one, an older one goes on.

Versions kept in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.images import noise, plain_shard
from support.checkpoint.memory_nodes import MIB, TOKEN, Acks, until
from support.checkpoint.object_store import BUCKET
from support.checkpoint.object_store import running as bucket_running
from support.checkpoint.replicas import Machine, machines, mirrored, put

from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.striped import StripedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError


def test_an_older_generation_gets_too_few_nodes_even_if_one_missed_the_newer() -> None:
    with machines(2) as places, mirrored(places) as old, mirrored(places, session="s2") as new:
        old.begin("job", 1)
        assert put(old, 1, noise(1000, 1)).levels == [Level.REMOTE]
        places[0].lose()
        new.begin("job", 2)
        places[0].start()  # it has heard of neither
        acks = Acks()
        with pytest.raises(CheckpointError):
            old.put(plain_shard(noise(1000, 2), 2), acks)
        assert acks.levels == []


def test_what_an_older_generation_goes_on_with_is_never_restored(tmp_path: Path) -> None:
    """A node that missed the newer one takes it all the same.

    The version there has a higher number.
    """
    with (
        machines(3, tmp_path / "disks") as places,
        mirrored(places) as old,
        mirrored(places, session="s2") as new,
    ):
        old.begin("job", 1)
        put(old, 1, noise(1000, 1))

        def cut(*_: Any) -> None:
            raise ConnectionRefusedError("no network between these two")

        new._nodes[2]._connect = cut  # type: ignore[assignment]
        new.begin("job", 2)
        for version in (2, 3):
            assert put(new, version, noise(1000, 20 + version)).levels[:1] == [Level.REMOTE]
        for version in range(2, 7):
            with suppress(CheckpointError):
                put(old, version, noise(1000, version))
        with mirrored(places, session="s3") as third:
            assert [r.version for r in third._nodes[2].versions("job")][0] == 6, (
                "the node has taken it"
            )
            third.begin("job", 3)
            assert [record.version for record in third.versions("job")] == [3, 2, 1]
            newest = third.fetch(third.versions("job")[0], tmp_path)
            assert newest.read_bytes() == bytes(noise(1000, 23))


def test_a_node_that_missed_a_generation_is_told_when_it_answers() -> None:
    with machines(3) as places, mirrored(places) as tier:
        places[2].lose()
        tier.begin("job", 2)
        places[2].start()
        with node_of(places[2], "s9") as alone:
            until(lambda: refuses(alone, 1))


def refuses(node: TcpTier, epoch: int) -> bool:
    try:
        node.begin("job", epoch)
    except CheckpointError as error:
        return "is over" in str(error)
    return False


@contextmanager
def node_of(place: Machine, session: str) -> Iterator[TcpTier]:
    node = TcpTier(place.url, session, TOKEN, limit_s=5.0)
    try:
        yield node
    finally:
        node.close()


def test_a_refusal_is_no_silence() -> None:
    """Else a machine that was thought lost would begin again, where one node has not heard of the
    newer generation.
    """
    with machines(2) as places, mirrored(places) as tier:
        with node_of(places[0], "s2") as new:
            new.begin("job", 2)
        with pytest.raises(CheckpointError, match="generation 1 of 'job' is over"):
            tier.begin("job", 1)


@pytest.mark.parametrize("first", ["shared", "replicas"])
def test_versions_that_were_kept_in_another_way_are_no_reason_to_start_over(first: str) -> None:
    with machines(2) as places:
        nodes = [TcpTier(place.url, "s1", TOKEN, limit_s=5.0) for place in places]
        shared, mirrors = StripedTier(nodes), ReplicatedTier(nodes, 2)
        before, after, said = (
            (shared, mirrors, r"shared by 2 nodes.*continue with tcp://[^?]+, or")
            if first == "shared"
            else (mirrors, shared, r"continue with .*\?replicas=2")
        )
        before.put(plain_shard(noise(MIB)), lambda level: None)
        before.settle(10)
        with pytest.raises(CheckpointError, match=said):
            after.versions("job")
        assert len(before.versions("job")) == 1
        assert before.versions("another") == after.versions("another") == ()
        after.close()
        before.close()


@pytest.mark.parametrize("store", ["", "file", "s3"])
def test_other_lists_of_the_same_nodes_are_no_reason_to_start_over(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they have been started again, and only their disks know of it."""
    with ExitStack() as stack:
        if store == "s3":
            monkeypatch.setenv("AWS_ENDPOINT_URL", stack.enter_context(bucket_running()).url)
        kept = {
            "": [None] * 3,
            "file": [tmp_path / n for n in "abc"],
            "s3": [f"s3://{BUCKET}/{n}" for n in "abc"],
        }
        places = [Machine(persist) for persist in kept[store]]
        for place in places:
            stack.callback(place.lose)
        nodes = [TcpTier(place.url, "s1", TOKEN, limit_s=5.0) for place in places]
        shared = StripedTier(nodes[:2])
        put(shared, 1, noise(MIB))
        assert shared.settle(10)
        for place in places if store else ():
            place.restart()
        turned = nodes[1::-1]
        others = [
            nodes[0],
            StripedTier(turned),
            StripedTier(nodes),
            ReplicatedTier(nodes, 2),
            ReplicatedTier(turned, 2),
        ]
        for other in others:
            with pytest.raises(
                CheckpointError, match="the checkpoints of job are shared by 2 nodes"
            ):
                other.versions("job")
            assert other.versions("another") == ()
        assert [record.version for record in shared.versions("job")] == [1]


def test_a_run_without_a_number_is_no_older_generation() -> None:
    """What it saved, on the two nodes that answered, is the newest when the first one answers
    again.
    """
    with machines(3) as places:
        with mirrored(places) as run:
            run.begin("job", 3)
            assert put(run, 1, noise(1000, 1)).levels == [Level.REMOTE]
        for place in places[1:]:  # other machines: version 1 is on the first one alone
            place.lose()
            place.start()
        with mirrored(places, session="s2") as by_hand:

            def cut(*_: Any) -> None:
                raise ConnectionRefusedError("no network between these two")

            by_hand._nodes[0]._connect = cut  # type: ignore[assignment]
            with suppress(CheckpointError):
                put(by_hand, 2, noise(1000, 2))
            assert put(by_hand, 3, noise(1000, 3)).levels == [Level.REMOTE]
        with mirrored(places, session="s3") as reader:
            assert [record.version for record in reader.versions("job")][0] == 3
