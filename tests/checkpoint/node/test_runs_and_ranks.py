"""Who sends to a memory node: runs of one name, attempts at one version, and ranks that belong
together.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import (
    MIB,
    Acks,
    finished,
    make_image,
    make_layout,
    put,
    put_all,
    raw_sender,
    running,
    tier,
    until,
)

from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.layout import runs
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.network.protocol import Kind, RequestRefused
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.errors import CheckpointError, TierBusyError


def test_two_runs_of_one_name() -> None:
    layout = make_layout(MIB)
    with running() as node:
        one, two = tier(node, "one"), tier(node, "two")
        put(one, 1, layout, make_image(layout, 1))
        with pytest.raises(CheckpointError, match="another training run of the name 'job'.*30 s"):
            put(two, 1, layout, make_image(layout, 1))
        assert put(two, 1, layout, make_image(layout, 1), job="other").levels == [Level.REMOTE]
        one.close()
        assert put(two, 2, layout, make_image(layout, 2)).levels == [Level.REMOTE]
        assert {m.version for m in two.versions("job")} == {1, 2}
        two.close()


def test_a_silent_run_loses_its_name_and_its_unfinished_versions() -> None:
    layout = make_layout(MIB)
    with running(lease_s=0.2) as node:
        old = raw_sender(node, layout, "old")
        assert old.call(Kind.RESERVE, {"version": 5, "put": "p"}).kind is Kind.CREDIT
        start, length = layout.shards[0][0]
        image = make_image(layout, 5)
        old.channel.send_data(start, image[start : start + min(length, MIB // 2)], label="test")
        assert old.call(Kind.PING).kind is Kind.PONG
        to = tier(node, "new")
        with pytest.raises(CheckpointError, match="another training run"):
            put(to, 6, layout, image)
        time.sleep(0.25)
        assert put(to, 6, layout, image).levels == [Level.REMOTE]
        assert [v["version"] for v in node.metrics()["versions"]] == [6]
        with pytest.raises((OSError, RequestRefused)):  # its connection was ended
            old.call(Kind.COMMIT, {"version": 5})
        old.close()
        to.close()


def test_a_stale_commit_and_stale_data_are_refused() -> None:
    """As after a pause of the whole VM: the connection stands, and its run is over."""
    layout = make_layout(MIB)
    with running() as node:
        old = raw_sender(node, layout, "old")
        assert old.call(Kind.RESERVE, {"version": 5, "put": "p"}).kind is Kind.CREDIT
        with node.registry.changed:
            node.registry.jobs["job"].session.senders.clear()
        new = raw_sender(node, layout, "new")
        with pytest.raises(RequestRefused, match="is over here") as error:
            old.call(Kind.COMMIT, {"version": 5})
        assert error.value.code == "stale"
        with pytest.raises(RequestRefused, match="version 5 of 'job' is not being received here"):
            new.call(Kind.COMMIT, {"version": 5})
        old.close()
        new.close()


def test_a_commit_twice_is_one(tmp_path: Path) -> None:
    layout = make_layout(MIB)
    image = make_image(layout, 1)
    with running() as node:
        to = tier(node)
        put(to, 1, layout, image)
        link = raw_sender(node, layout)
        for _ in range(2):  # the answer to the first was lost
            assert link.call(Kind.RESERVE, {"version": 2, "put": "p"}).kind is Kind.CREDIT
            link.channel.send_data(0, image[:5000], label="test")
        received = link.call(Kind.RESERVE, {"version": 2, "put": "p"}).body["received"]
        assert received == [[0, 5000]]
        for start in range(5000, layout.size, 2**20):
            for offset, length in runs(layout.shards[0]):
                end = min(start + 2**20, offset + length)
                link.channel.send_data(start, image[start:end], label="test")
        for _ in range(2):
            assert link.call(Kind.COMMIT, {"version": 2}).body["complete"]
            assert link.call(Kind.RESERVE, {"version": 2, "put": "p"}).body["received"] == [
                [0, layout.size]
            ]
        assert node.metrics()["counts"]["received_bytes"] == 2 * layout.size
        assert node.metrics()["counts"]["complete"] == 2
        link.close()
        to.close()


@pytest.mark.parametrize("size", [MIB, MIB + 5000])
def test_a_version_put_again_is_the_new_one(tmp_path: Path, size: int) -> None:
    """After a failure other bytes may come under the same number: they are never mixed."""
    layout, other = make_layout(MIB, 2, seed=3), make_layout(size, 2, seed=3)
    with running() as node:
        tiers = [tier(node), tier(node)]
        put_all(tiers, 1, layout, make_image(layout, 1))
        put_all(tiers, 1, other, make_image(other, 2))
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(make_image(other, 2), other)
        # The other rank's part never came; then all again
        put(tiers[0], 2, layout, make_image(layout, 1), 0)
        put(tiers[1], 2, layout, make_image(layout, 2), 1)
        put(tiers[0], 3, layout, make_image(layout, 1), 0)
        put(tiers[0], 3, layout, make_image(layout, 2), 0)
        put(tiers[1], 3, layout, make_image(layout, 2), 1)
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(make_image(layout, 2), layout)
        for one in tiers:
            one.close()


def test_parts_of_two_saves_of_a_number_are_no_version(tmp_path: Path) -> None:
    """The ranks are not equally fast: one sends the second save while another is still at the
    first.
    """
    layout = make_layout(MIB, 2, seed=3)
    first, second = make_image(layout, 1), make_image(layout, 2)
    with running() as node:
        tiers = [tier(node), tier(node)]

        def save(rank: int, image: memoryview, attempt: int) -> Acks:
            acks = Acks()
            tiers[rank].put(Shard("job", 1, rank, layout, image, attempt=attempt), acks)
            return acks

        save(0, first, 1)
        save(0, second, 2)
        with pytest.raises(RequestRefused, match="saved again"):
            save(1, first, 1)
        assert tiers[0].versions("job") == ()
        assert save(1, second, 2).levels == [Level.REMOTE]
        save(1, second, 3)
        assert save(0, second, 3).levels == [Level.REMOTE]
        with pytest.raises(RequestRefused, match="saved again"):
            save(1, first, 2)
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(second, layout)
        for one in tiers:
            one.close()


def test_half_of_an_attempt_is_not_half_of_the_next(tmp_path: Path) -> None:
    layout = make_layout(MIB, 2, seed=3)
    first, second = make_image(layout, 1), make_image(layout, 2)
    with running() as node:
        links = [raw_sender(node, layout, rank=r) for r in (0, 1)]
        for rank, link in enumerate(links):
            assert link.call(Kind.RESERVE, {"version": 1, "put": "one"}).kind is Kind.CREDIT
            start, length = layout.shards[rank][0]
            link.channel.send_data(start, first[start : start + length], label="test")
            assert link.call(Kind.PING).kind is Kind.PONG
        tiers = [tier(node), tier(node)]
        assert all(isinstance(a, Acks) for a in put_all(tiers, 1, layout, second))
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(second, layout)
        with pytest.raises(RequestRefused, match="not being received any more"):
            links[0].call(Kind.COMMIT, {"version": 1})
        for one in (*tiers, *links):
            one.close()


def test_an_attempt_with_another_layout(tmp_path: Path) -> None:
    """The state's structure changed after a save that failed half way."""
    layout, other = make_layout(MIB, seed=1), make_layout(MIB + 999, seed=2)
    with running() as node:
        link = raw_sender(node, layout)
        assert link.call(Kind.RESERVE, {"version": 1, "put": "one"}).kind is Kind.CREDIT
        link.channel.send_data(0, make_image(layout, 1)[:5000], label="test")
        to = tier(node)
        assert put(to, 1, other, make_image(other, 2)).levels == [Level.REMOTE]
        path = to.fetch(to.versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(make_image(other, 2), other)
        assert len(node.metrics()["versions"]) == 1
        link.close()
        to.close()


def test_put_returns_before_the_other_ranks_and_is_told_later() -> None:
    layout = make_layout(MIB, 2)
    image = make_image(layout, 1)
    with running() as node:
        tiers = [tier(node), tier(node)]
        first = put(tiers[0], 1, layout, image, 0)
        assert first.levels == [] and tiers[0].versions("job") == ()
        second = put(tiers[1], 1, layout, image, 1)
        assert second.levels == [Level.REMOTE] and first.wait(Level.REMOTE, 2)
        for one in tiers:
            one.close()


def test_all_ranks_skip_the_same_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(MIB, 2)
    monkeypatch.setattr(VersionRegistry, "_slot", lambda *_: None)
    with running() as node:
        tiers = [tier(node), tier(node)]
        with pytest.raises(TierBusyError):
            put(tiers[0], 1, layout, make_image(layout, 1), 0)
        monkeypatch.undo()
        with pytest.raises(TierBusyError):
            put(tiers[1], 1, layout, make_image(layout, 1), 1)
        for one in tiers:
            one.close()


def test_a_version_that_the_others_left_makes_room() -> None:
    layout = make_layout(MIB, 2)
    with running(2 * MIB) as node:
        tiers = [tier(node), tier(node)]
        assert all(isinstance(a, Acks) for a in put_all(tiers, 1, layout, make_image(layout, 1)))
        put(tiers[0], 2, layout, make_image(layout, 2), 0)  # rank 1 never sends its part ...
        with pytest.raises(TierBusyError):
            put(tiers[0], 3, layout, make_image(layout, 3), 0)
        # ... and goes on to a newer one
        assert isinstance(put(tiers[1], 4, layout, make_image(layout, 4), 1), Acks)
        put(tiers[0], 4, layout, make_image(layout, 4), 0)
        assert tiers[0].versions("job")[0].version == 4
        put(tiers[0], 5, layout, make_image(layout, 5), 0)
        node.registry.jobs["job"].partial[5].heard -= 31  # its lease is over
        assert all(isinstance(a, Acks) for a in put_all(tiers, 6, layout, make_image(layout, 6)))
        for one in tiers:
            one.close()


def test_ranks_of_different_layouts() -> None:
    one, two = make_layout(MIB, 2, seed=1), make_layout(MIB, 2, seed=2)
    with running() as node:
        tiers = [tier(node), tier(node)]
        put(tiers[0], 1, one, make_image(one, 1), 0)
        with pytest.raises(CheckpointError, match="different layouts of version 1"):
            put(tiers[1], 1, two, make_image(two, 1), 1)
        for each in tiers:
            each.close()


def test_a_run_that_starts_again_from_an_earlier_version(tmp_path: Path) -> None:
    """Its versions have lower numbers than some on disk; they must not be deleted for that."""
    layout = make_layout(MIB)
    with running(8 * MIB, tmp_path / "p", keep=2) as node:
        for session, versions in (("one", (10, 20, 30)), ("two", (5, 6, 7, 20))):
            to = tier(node, session)
            for version in versions:
                image = make_image(layout, version + len(session))
                assert put(to, version, layout, image).wait(Level.DURABLE)
                assert version in [m.version for m in VersionFolder(tmp_path / "p").versions("job")]
            to.close()
        to = tier(node, "three")
        assert until(
            lambda: (
                {m.version for m in VersionFolder(tmp_path / "p").versions("job")} == {30, 20, 7}
            )
        )
        manifest = next(m for m in to.versions("job") if m.version == 20)
        assert to.fetch(manifest, tmp_path / "f").read_bytes() == finished(image, layout)
        to.close()
